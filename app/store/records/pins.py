"""Pin records, and the packed keys to which they refer by digest."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import listing
from app.store.base.declarative import EMPTY, Base, Digest, LongName, Name, PushedRecord, Seconds, Whole
from app.store.base.listing import LAST


class PinBodyRow(Base):
    """Packed keys, 32 bytes each, stored under the SHA-256 of these bytes. Pins with the same keys share them."""

    __tablename__ = "pin_bodies"

    digest: Mapped[Digest] = mapped_column(primary_key=True)
    body: Mapped[bytes] = mapped_column(sa.LargeBinary())
    created_at: Mapped[Seconds]


class PinRow(PushedRecord, Base):
    __tablename__ = "pins"

    name: Mapped[Name] = mapped_column(primary_key=True)
    model: Mapped[LongName]
    tenant: Mapped[Name]
    """The salt; empty for the default tenant."""
    strength: Mapped[Name]
    tier: Mapped[Name] = mapped_column(server_default="host")
    key_count: Mapped[Whole]
    keys_digest: Mapped[Digest] = mapped_column(sa.ForeignKey("pin_bodies.digest"), index=True)
    expires_at: Mapped[float | None] = mapped_column(sa.Double())
    """Unix seconds at which the pin ends, as set by the last PUT. Nodes extend the end of pins that refresh."""
    refresh_s: Mapped[float | None] = mapped_column(sa.Double())
    """Seconds from a hit to the new end of the pin; None: the end is fixed."""
    owner: Mapped[Name] = mapped_column(server_default=EMPTY)
    """Principal that first created the pin."""
    origin: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    """Source of the pin, for display: tokens, keys, a hot prefix, or text."""


class StrongPin(NamedTuple):
    """The columns that identify the blocks of a guaranteed or permanent pin."""

    tenant: str
    """The salt."""
    strength: str
    keys_digest: str
    generation: int


async def strong(session: AsyncSession) -> dict[str, StrongPin]:
    """Return guaranteed and permanent pins by name."""
    columns = [getattr(PinRow, name) for name in StrongPin._fields]
    rows = await session.execute(sa.select(PinRow.name, *columns).where(PinRow.strength != "soft"))
    return {row[0]: StrongPin(*row[1:]) for row in rows}


async def counts(session: AsyncSession, salts: Collection[str] | None = None) -> dict[str, int]:
    """Return the number of pins by tenant (salt), optionally only of the tenants `salts`."""
    query = sa.select(PinRow.tenant, sa.func.count()).group_by(PinRow.tenant)
    if salts is not None:
        query = query.where(PinRow.tenant.in_(salts))
    return {row[0]: row[1] for row in await session.execute(query)}


async def names_of(session: AsyncSession, salts: Collection[str]) -> set[str]:
    """Return the names of the pins of these tenants (salts)."""
    return set(await session.scalars(sa.select(PinRow.name).where(PinRow.tenant.in_(salts))))


async def named(session: AsyncSession, names: Collection[str]) -> Sequence[PinRow]:
    """Return those of the pins that exist, in the order of their names."""
    return (await session.scalars(sa.select(PinRow).where(PinRow.name.in_(names)).order_by(PinRow.name))).all()


_SELECTOR = sa.cast(PinRow.selector, sa.Text)
"""The selector as it is stored, which both databases can compare."""


async def selectors(session: AsyncSession) -> dict[str | None, dict[str, str] | None]:
    """Return the selectors of pins that differ, by their stored text. None selects every node."""
    texts: Sequence[str | None] = (await session.scalars(sa.select(_SELECTOR).distinct())).all()
    return {text: None if text is None else msgspec.json.decode(text, type=dict[str, str]) for text in texts}


async def names_with(session: AsyncSession, stored: Collection[str | None], now: float) -> set[str]:
    """Return the names of pins that have one of these selectors, as stored, and have not ended by `now` (Unix
    seconds)."""
    texts = [text for text in stored if text is not None]
    chosen = sa.or_(_SELECTOR.in_(texts), PinRow.selector.is_(None) if None in stored else sa.false())
    not_ended = sa.or_(PinRow.expires_at.is_(None), PinRow.expires_at > now)
    return set(await session.scalars(sa.select(PinRow.name).where(chosen, not_ended)))


async def refreshing(session: AsyncSession) -> Sequence[PinRow]:
    """Return the pins whose end is extended by hits."""
    return (await session.scalars(sa.select(PinRow).where(PinRow.refresh_s.is_not(None)))).all()


SORTABLE = listing.sortable(
    PinRow,
    "name model tenant tier key_count expires_at generation created_at updated_at",
    expires_at=sa.func.coalesce(PinRow.expires_at, float(LAST)),
)


async def bodies(session: AsyncSession, digests: Iterable[str]) -> dict[str, bytes]:
    """Return the bodies that exist, by digest."""
    query = sa.select(PinBodyRow.digest, PinBodyRow.body).where(PinBodyRow.digest.in_(list(digests)))
    return {row.digest: row.body for row in await session.execute(query)}

"""Pin records, and the packed keys they refer to by digest."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store import listing
from app.store.base import EMPTY, Base, Digest, Labels, LongName, Name, Seconds, Whole
from app.store.listing import LAST, Page, Wanted
from app.store.points import Point


class PinBodyRow(Base):
    """Packed keys, 32 bytes each, under the SHA-256 of exactly these bytes; shared by pins that name the same keys."""

    __tablename__ = "pin_bodies"

    digest: Mapped[Digest] = mapped_column(primary_key=True)
    body: Mapped[bytes] = mapped_column(sa.LargeBinary())
    created_at: Mapped[Seconds]


class PinRow(Base):
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
    """As it was put; nodes move the end of pins that refresh."""
    refresh_s: Mapped[float | None] = mapped_column(sa.Double())
    """Every hit moves the end to this many seconds later; None: the end is fixed."""
    note: Mapped[str] = mapped_column(sa.Text())
    managed_by: Mapped[Name] = mapped_column(server_default=EMPTY)
    """Whose it is among those who apply files; empty: nobody's."""
    selector: Mapped[Labels]
    owner: Mapped[Name] = mapped_column(server_default=EMPTY)
    """Who put it first."""
    origin: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    """What it was made from, for people: tokens, keys, a hot prefix, text."""
    generation: Mapped[Whole]
    created_at: Mapped[Seconds]
    updated_at: Mapped[Seconds]


SPEC_COLUMNS = ("name", "model", "tenant", "keys_digest", "expires_at", "strength", "refresh_s", "tier")
"""What nodes are told; the same names as in `PinSpec`."""


BY_KEY = Point(PinRow)


async def get(session: AsyncSession, name: str) -> PinRow | None:
    return await session.get(PinRow, name)


async def wanted(session: AsyncSession) -> list[tuple[dict[str, str] | None, dict[str, Any]]]:
    """Selector and `SPEC_COLUMNS` of all, for snapshots: no objects, because there may be many."""
    columns = [getattr(PinRow, name) for name in SPEC_COLUMNS]
    rows = await session.execute(sa.select(PinRow.selector, *columns))
    return [(row[0], dict(zip(SPEC_COLUMNS, row[1:], strict=True))) for row in rows]


async def counts(session: AsyncSession, salts: Collection[str] | None = None) -> dict[str, int]:
    """Records by tenant (salt), or of these tenants alone."""
    query = sa.select(PinRow.tenant, sa.func.count()).group_by(PinRow.tenant)
    if salts is not None:
        query = query.where(PinRow.tenant.in_(salts))
    return {row[0]: row[1] for row in await session.execute(query)}


async def refreshing(session: AsyncSession) -> Sequence[PinRow]:
    """Pins whose end is moved by hits."""
    return (await session.scalars(sa.select(PinRow).where(PinRow.refresh_s.is_not(None)))).all()


@dataclass(frozen=True)
class Filters:
    """None: any."""

    tenant: str | None = None
    """Salt."""
    model: str | None = None
    strength: str | None = None
    tier: str | None = None
    managed_by: str | None = None


_SORTABLE: dict[str, listing.Expression] = {
    "name": PinRow.name,
    "model": PinRow.model,
    "tenant": PinRow.tenant,
    "tier": PinRow.tier,
    "key_count": PinRow.key_count,
    "expires_at": sa.func.coalesce(PinRow.expires_at, float(LAST)),
    "generation": PinRow.generation,
    "created_at": PinRow.created_at,
    "updated_at": PinRow.updated_at,
}


async def page(
    session: AsyncSession, wanted: Wanted, filters: Filters, salts: Collection[str] | None = None
) -> Page[PinRow]:
    """One page, by name unless sorted otherwise; with `salts`, of these tenants alone. Raises Invalid."""
    where: list[sa.ColumnElement[bool]] = [] if salts is None else [PinRow.tenant.in_(salts)]
    for name in ("tenant", "model", "strength", "tier", "managed_by"):
        value = getattr(filters, name)
        if value is not None:
            where.append(getattr(PinRow, name) == value)
    return await listing.page(session, PinRow, PinRow.name, _SORTABLE, wanted, *where)


async def put_body(session: AsyncSession, digest: str, body: bytes, now: float) -> None:
    """Keep a body; the caller holds the lock of `pins`, so nobody else adds the same one meanwhile."""
    if await session.get(PinBodyRow, digest) is None:
        session.add(PinBodyRow(digest=digest, body=body, created_at=now))
        await session.flush()


async def drop_unused_body(session: AsyncSession, digest: str) -> None:
    """Forget a body that no pin names any more."""
    await session.flush()
    used = sa.select(PinRow.name).where(PinRow.keys_digest == digest).exists()
    await session.execute(sa.delete(PinBodyRow).where(PinBodyRow.digest == digest, ~used))


async def bodies(session: AsyncSession, digests: Iterable[str]) -> dict[str, bytes]:
    """The bodies that are known among `digests`."""
    query = sa.select(PinBodyRow.digest, PinBodyRow.body).where(PinBodyRow.digest.in_(list(digests)))
    return {row.digest: row.body for row in await session.execute(query)}

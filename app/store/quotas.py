"""Quota records, one for each tenant (by salt)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store import listing
from app.store.base import EMPTY, Base, Labels, Name, Seconds, Whole
from app.store.listing import LAST, Page, Wanted
from app.store.points import Point


class QuotaRow(Base):
    __tablename__ = "quotas"

    tenant: Mapped[Name] = mapped_column(primary_key=True)
    """The salt; empty for the default tenant."""
    limit_bytes: Mapped[int | None] = mapped_column(sa.BigInteger())
    floor_bytes: Mapped[Whole] = mapped_column(server_default="0")
    weight: Mapped[float] = mapped_column(sa.Double(), server_default="1")
    pin_budget_bytes: Mapped[int | None] = mapped_column(sa.BigInteger())
    store_rate_bytes: Mapped[int | None] = mapped_column(sa.BigInteger())
    on_exceed: Mapped[Name] = mapped_column(server_default="evict_self")
    mode: Mapped[Name] = mapped_column(server_default="enforce")
    note: Mapped[str] = mapped_column(sa.Text())
    managed_by: Mapped[Name] = mapped_column(server_default=EMPTY)
    """Whose it is among those who apply files; empty: nobody's."""
    selector: Mapped[Labels]
    generation: Mapped[Whole]
    """The generation that last changed this record."""
    created_at: Mapped[Seconds]
    updated_at: Mapped[Seconds]


SPEC_COLUMNS = (
    "tenant",
    "limit_bytes",
    "floor_bytes",
    "weight",
    "pin_budget_bytes",
    "store_rate_bytes",
    "on_exceed",
    "mode",
)
"""What nodes are told; the same names as in `QuotaSpec`."""


BY_KEY = Point(QuotaRow)


async def get(session: AsyncSession, tenant: str) -> QuotaRow | None:
    return await session.get(QuotaRow, tenant)


class Share(NamedTuple):
    """What a record says of a tenant, for lists of many: no object that the session follows."""

    tenant: str
    limit_bytes: int | None
    floor_bytes: int
    weight: float
    pin_budget_bytes: int | None
    store_rate_bytes: int | None
    on_exceed: str
    mode: str
    note: str


SHARES_AT_ONCE = 2000


async def shares(session: AsyncSession, salts: Collection[str] | None = None) -> list[Share]:
    """Of all tenants, or of these; by tenant. Others have their turn after each part of many."""
    columns = [getattr(QuotaRow, name) for name in Share._fields]
    query = sa.select(*columns).order_by(QuotaRow.tenant).limit(SHARES_AT_ONCE)
    if salts is not None:
        query = query.where(QuotaRow.tenant.in_(salts))
    found: list[Share] = []
    while True:
        after = query.where(QuotaRow.tenant > found[-1].tenant) if found else query
        part = (await session.execute(after)).all()
        found += [Share(*row) for row in part]
        if len(part) < SHARES_AT_ONCE:
            return found


@dataclass(frozen=True)
class Filters:
    """None: any."""

    mode: str | None = None
    managed_by: str | None = None


_SORTABLE: dict[str, listing.Expression] = {
    "tenant": QuotaRow.tenant,
    "limit_bytes": sa.func.coalesce(QuotaRow.limit_bytes, LAST),
    "floor_bytes": QuotaRow.floor_bytes,
    "weight": QuotaRow.weight,
    "generation": QuotaRow.generation,
    "created_at": QuotaRow.created_at,
    "updated_at": QuotaRow.updated_at,
}


async def page(
    session: AsyncSession, wanted: Wanted, filters: Filters, salts: Collection[str] | None
) -> Page[QuotaRow]:
    """One page, by tenant unless sorted otherwise; with `salts`, of these tenants alone. Raises Invalid."""
    where: list[sa.ColumnElement[bool]] = [] if salts is None else [QuotaRow.tenant.in_(salts)]
    if filters.mode is not None:
        where.append(QuotaRow.mode == filters.mode)
    if filters.managed_by is not None:
        where.append(QuotaRow.managed_by == filters.managed_by)
    return await listing.page(session, QuotaRow, QuotaRow.tenant, _SORTABLE, wanted, *where)


async def wanted(session: AsyncSession) -> list[tuple[dict[str, str] | None, dict[str, Any]]]:
    """Selector and `SPEC_COLUMNS` of all, for snapshots: no objects, because there may be many."""
    columns = [getattr(QuotaRow, name) for name in SPEC_COLUMNS]
    rows = await session.execute(sa.select(QuotaRow.selector, *columns))
    return [(row[0], dict(zip(SPEC_COLUMNS, row[1:], strict=True))) for row in rows]


async def floors(session: AsyncSession) -> dict[str, tuple[dict[str, str] | None, int]]:
    """Selector and floor of the quotas whose floor binds, by tenant."""
    query = sa.select(QuotaRow.tenant, QuotaRow.selector, QuotaRow.floor_bytes).where(
        QuotaRow.floor_bytes > 0, QuotaRow.mode == "enforce"
    )
    return {row[0]: (row[1], row[2]) for row in await session.execute(query)}

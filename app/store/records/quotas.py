"""Quota records, one per tenant (by salt)."""

import json
from collections.abc import Collection
from typing import Annotated, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import listing
from app.store.base.declarative import NO_ENTRIES, Base, JsonText, Name, PushedRecord, Whole
from app.store.base.listing import LAST

TierShares = Annotated[dict[str, Any], mapped_column(JsonText())]
"""Shares in tiers by name, as `TierQuota` is encoded: fields at their default are omitted."""


class QuotaRow(PushedRecord, Base):
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
    tiers: Mapped[TierShares] = mapped_column(server_default=NO_ENTRIES)


class TenantShare(NamedTuple):
    """Quota of one tenant as plain values, for long lists: the session does not track it."""

    tenant: str
    limit_bytes: int | None
    floor_bytes: int
    weight: float
    pin_budget_bytes: int | None
    store_rate_bytes: int | None
    on_exceed: str
    mode: str
    tiers: dict[str, Any]
    """Bounds by tier, as in `QuotaRow`."""
    note: str


SHARES_AT_ONCE = 2000


async def shares(session: AsyncSession, salts: Collection[str] | None = None) -> list[TenantShare]:
    """Return the quotas of all tenants, or of the tenants `salts`, by tenant.

    Reads in parts, so that other tasks can run in between.
    """
    columns = [getattr(QuotaRow, name) for name in TenantShare._fields]
    query = sa.select(*columns).order_by(QuotaRow.tenant).limit(SHARES_AT_ONCE)
    if salts is not None:
        query = query.where(QuotaRow.tenant.in_(salts))
    shares: list[TenantShare] = []
    while True:
        after = query.where(QuotaRow.tenant > shares[-1].tenant) if shares else query
        part = (await session.execute(after)).all()
        shares += [TenantShare(*row) for row in part]
        if len(part) < SHARES_AT_ONCE:
            return shares


SORTABLE = listing.sortable(
    QuotaRow,
    "tenant limit_bytes floor_bytes weight generation created_at updated_at",
    limit_bytes=sa.func.coalesce(QuotaRow.limit_bytes, LAST),
)


async def floors(session: AsyncSession, excluded: str) -> list[tuple[dict[str, str] | None, int]]:
    """Return the sum of the enforced floors, in bytes, of each selector, without the floor of the tenant `excluded`."""
    selector = sa.cast(QuotaRow.selector, sa.Text)  # PostgreSQL cannot compare JSON
    query = sa.select(selector, sa.func.sum(QuotaRow.floor_bytes)).group_by(selector)
    where = (QuotaRow.floor_bytes > 0, QuotaRow.mode == "enforce", QuotaRow.tenant != excluded)
    rows = await session.execute(query.where(*where))
    return [(json.loads(row[0] or "null"), int(row[1])) for row in rows]

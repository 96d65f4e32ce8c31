"""Quota records, one for each tenant (by salt)."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import Base, Name, Seconds, Whole


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


async def get(session: AsyncSession, tenant: str) -> QuotaRow | None:
    return await session.get(QuotaRow, tenant)


async def all_quotas(session: AsyncSession) -> Sequence[QuotaRow]:
    """By tenant; the default tenant first."""
    return (await session.scalars(sa.select(QuotaRow).order_by(QuotaRow.tenant))).all()


async def page(session: AsyncSession, limit: int, offset: int) -> tuple[Sequence[QuotaRow], int]:
    """One page by tenant, and how many there are."""
    query = sa.select(QuotaRow).order_by(QuotaRow.tenant).limit(limit).offset(offset)
    total = await session.scalar(sa.select(sa.func.count()).select_from(QuotaRow))
    return (await session.scalars(query)).all(), total or 0


async def wanted(session: AsyncSession) -> Sequence[sa.RowMapping]:
    """`SPEC_COLUMNS` of all, for a snapshot: plain rows, because there may be many."""
    columns = [getattr(QuotaRow, name) for name in SPEC_COLUMNS]
    return (await session.execute(sa.select(*columns))).mappings().all()


async def floors(session: AsyncSession, besides: str) -> int:
    """Sum of the floors that bind, of all tenants but one."""
    query = sa.select(sa.func.sum(QuotaRow.floor_bytes)).where(
        QuotaRow.tenant != besides, QuotaRow.mode == "enforce"
    )
    return int(await session.scalar(query) or 0)

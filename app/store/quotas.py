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
    note: Mapped[str] = mapped_column(sa.Text())
    generation: Mapped[Whole]
    """The generation that last changed this record."""
    created_at: Mapped[Seconds]
    updated_at: Mapped[Seconds]


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


async def wanted(session: AsyncSession) -> Sequence[sa.Row[str, int | None]]:
    """(tenant, limit_bytes) of all, for a snapshot: plain rows, because there may be many."""
    return (await session.execute(sa.select(QuotaRow.tenant, QuotaRow.limit_bytes))).all()

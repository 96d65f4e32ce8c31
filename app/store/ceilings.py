"""Ceilings: how far callers that are limited to a tenant may go with its quota and pins. Set by admins."""

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store import listing
from app.store.base import Base, Name, Seconds, Whole
from app.store.listing import Page, Wanted


class CeilingRow(Base):
    __tablename__ = "ceilings"

    tenant: Mapped[Name] = mapped_column(primary_key=True)
    """The salt; empty for the default tenant."""
    max_limit_bytes: Mapped[int | None] = mapped_column(sa.BigInteger())
    max_floor_bytes: Mapped[int | None] = mapped_column(sa.BigInteger())
    max_weight: Mapped[float | None] = mapped_column(sa.Double())
    max_pin_budget_bytes: Mapped[int | None] = mapped_column(sa.BigInteger())
    max_store_rate_bytes: Mapped[int | None] = mapped_column(sa.BigInteger())
    max_ttl_s: Mapped[float | None] = mapped_column(sa.Double())
    no_bound: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))
    """Names of maxima of a quota that are not bounded; those that have no value and are not here may not be raised."""
    strengths: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))
    """Strengths of pins that may be used; None: all but `permanent`."""
    note: Mapped[str] = mapped_column(sa.Text())
    revision: Mapped[Whole]
    created_at: Mapped[Seconds]
    updated_at: Mapped[Seconds]


async def get(session: AsyncSession, tenant: str) -> CeilingRow | None:
    return await session.get(CeilingRow, tenant)


async def page(
    session: AsyncSession, wanted: Wanted, salts: Collection[str] | None = None
) -> Page[CeilingRow]:
    """One page, by tenant; with `salts`, of these tenants alone. Raises Invalid."""
    where: list[sa.ColumnElement[bool]] = [] if salts is None else [CeilingRow.tenant.in_(salts)]
    return await listing.page(
        session, CeilingRow, CeilingRow.tenant, {"tenant": CeilingRow.tenant}, wanted, *where
    )

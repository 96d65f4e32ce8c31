"""Tier records: stores behind the memory of nodes."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.schemas.base.listing import PageRequest
from app.schemas.records.tiers import TierFilters
from app.store.base import listing
from app.store.base.declarative import Base, Labels, Name, Seconds, Whole
from app.store.base.listing import ListPage


class TierRow(Base):
    __tablename__ = "tiers"

    name: Mapped[Name] = mapped_column(primary_key=True)
    type: Mapped[Name]
    budget_bytes: Mapped[Whole]
    parameters: Mapped[dict[str, Any]] = mapped_column(sa.JSON())
    order: Mapped[Whole]
    spill: Mapped[Name]
    load_deadline_s: Mapped[Seconds]
    max_bytes_in_flight: Mapped[Whole]
    compress: Mapped[Name] = mapped_column(server_default="none")
    note: Mapped[str] = mapped_column(sa.Text())
    managed_by: Mapped[Name]
    """Owner of the document that manages the record (see `docs/operate/as-code.md`); empty: none."""
    selector: Mapped[Labels]
    generation: Mapped[Whole]
    """Generation that last changed this record."""
    created_at: Mapped[Seconds]
    updated_at: Mapped[Seconds]


_SORTABLE: dict[str, listing.Expression] = {
    "name": TierRow.name,
    "type": TierRow.type,
    "order": TierRow.order,
    "budget_bytes": TierRow.budget_bytes,
    "generation": TierRow.generation,
    "created_at": TierRow.created_at,
    "updated_at": TierRow.updated_at,
}


async def page(session: AsyncSession, page_request: PageRequest, filters: TierFilters) -> ListPage[TierRow]:
    """Return one page, sorted by name by default. Raise Invalid."""
    where = listing.matching(TierRow, filters)
    return await listing.page(session, TierRow, TierRow.name, _SORTABLE, page_request, *where)

"""Policy records: how eviction chooses victims, and on which nodes."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.schemas.base.listing import PageRequest
from app.schemas.records.policies import PolicyFilters
from app.store.base import listing
from app.store.base.declarative import EMPTY, Base, Labels, Name, Seconds, Whole
from app.store.base.listing import ListPage


class PolicyRow(Base):
    __tablename__ = "policies"

    name: Mapped[Name] = mapped_column(primary_key=True)
    algorithm: Mapped[Name]
    admission: Mapped[bool]
    admission_idle_s: Mapped[Seconds]
    high_watermark: Mapped[float] = mapped_column(sa.Double())
    low_watermark: Mapped[float] = mapped_column(sa.Double())
    note: Mapped[str] = mapped_column(sa.Text())
    managed_by: Mapped[Name] = mapped_column(server_default=EMPTY)
    """Owner of the document that manages the record (see `docs/operate/as-code.md`); empty: none."""
    selector: Mapped[Labels]
    priority: Mapped[Whole] = mapped_column(server_default="0")
    """Of several policies that match a node, the one with the highest priority applies."""
    generation: Mapped[Whole]
    """Generation that last changed this record."""
    created_at: Mapped[Seconds]
    updated_at: Mapped[Seconds]


async def get(session: AsyncSession, name: str) -> PolicyRow | None:
    return await session.get(PolicyRow, name)


_SORTABLE: dict[str, listing.Expression] = {
    "name": PolicyRow.name,
    "algorithm": PolicyRow.algorithm,
    "priority": PolicyRow.priority,
    "generation": PolicyRow.generation,
    "created_at": PolicyRow.created_at,
    "updated_at": PolicyRow.updated_at,
}


async def page(session: AsyncSession, page_request: PageRequest, filters: PolicyFilters) -> ListPage[PolicyRow]:
    """Return one page, sorted by name by default. Raise Invalid."""
    where = listing.matching(PolicyRow, filters)
    return await listing.page(session, PolicyRow, PolicyRow.name, _SORTABLE, page_request, *where)

"""Policy records: how victims are chosen, and on which nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store import listing
from app.store.base import EMPTY, Base, Labels, Name, Seconds, Whole
from app.store.listing import Page, Wanted
from app.store.points import Point


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
    """Whose it is among those who apply files; empty: nobody's."""
    selector: Mapped[Labels]
    priority: Mapped[Whole] = mapped_column(server_default="0")
    """Of several that match a node, the highest is in force."""
    generation: Mapped[Whole]
    """The generation that last changed this record."""
    created_at: Mapped[Seconds]
    updated_at: Mapped[Seconds]


SPEC_COLUMNS = ("name", "algorithm", "admission", "admission_idle_s", "high_watermark", "low_watermark")
"""What nodes are told; the same names as in `PolicySpec`."""


BY_KEY = Point(PolicyRow)


async def get(session: AsyncSession, name: str) -> PolicyRow | None:
    return await session.get(PolicyRow, name)


async def all_policies(session: AsyncSession) -> Sequence[PolicyRow]:
    """By name."""
    return (await session.scalars(sa.select(PolicyRow).order_by(PolicyRow.name))).all()


@dataclass(frozen=True)
class Filters:
    """None: any."""

    algorithm: str | None = None
    managed_by: str | None = None


_SORTABLE: dict[str, listing.Expression] = {
    "name": PolicyRow.name,
    "algorithm": PolicyRow.algorithm,
    "priority": PolicyRow.priority,
    "generation": PolicyRow.generation,
    "created_at": PolicyRow.created_at,
    "updated_at": PolicyRow.updated_at,
}


async def page(session: AsyncSession, wanted: Wanted, filters: Filters) -> Page[PolicyRow]:
    """One page, by name unless sorted otherwise. Raises Invalid."""
    where: list[sa.ColumnElement[bool]] = []
    if filters.algorithm is not None:
        where.append(PolicyRow.algorithm == filters.algorithm)
    if filters.managed_by is not None:
        where.append(PolicyRow.managed_by == filters.managed_by)
    return await listing.page(session, PolicyRow, PolicyRow.name, _SORTABLE, wanted, *where)

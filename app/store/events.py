"""Events that are worth keeping beyond the process: nodes that come, go, refuse or drift."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store import listing
from app.store.base import Base, Name, RowNumber, Seconds
from app.store.listing import Page, Wanted


class EventRow(Base):
    __tablename__ = "events"

    id: Mapped[int] = mapped_column(RowNumber, primary_key=True, autoincrement=True)
    at: Mapped[Seconds] = mapped_column(index=True)
    name: Mapped[Name]
    node: Mapped[Name]
    fields: Mapped[dict[str, Any]] = mapped_column(sa.JSON())


@dataclass(frozen=True)
class Filters:
    """None: any."""

    name: str | None = None
    """One name, or `push.*` for all that begin with `push.`."""
    node: str | None = None
    since: float | None = None
    """Unix seconds."""


_SORTABLE: dict[str, listing.Expression] = {
    "at": EventRow.at,
    "id": EventRow.id,
    "name": EventRow.name,
    "node": EventRow.node,
}


async def append(session: AsyncSession, rows: Sequence[EventRow]) -> None:
    session.add_all(rows)


async def page(session: AsyncSession, wanted: Wanted, filters: Filters) -> Page[EventRow]:
    """One page. Raises Invalid."""
    where: list[sa.ColumnElement[bool]] = []
    if filters.name is not None:
        begins, name = filters.name.removesuffix("*"), EventRow.name
        where.append(name == begins if begins == filters.name else name.startswith(begins, autoescape=True))
    if filters.node is not None:
        where.append(EventRow.node == filters.node)
    if filters.since is not None:
        where.append(EventRow.at >= filters.since)
    return await listing.page(session, EventRow, EventRow.id, _SORTABLE, wanted, *where)

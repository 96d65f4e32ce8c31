"""Events that are kept in the database, such as nodes that join, leave, refuse or drift."""

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.schemas.base.listing import PageRequest
from app.schemas.views.events import EventFilters
from app.store.base import listing
from app.store.base.declarative import EMPTY, Base, Name, RowNumber, Seconds
from app.store.base.listing import ListPage


class EventRow(Base):
    __tablename__ = "events"

    id: Mapped[int] = mapped_column(RowNumber, primary_key=True, autoincrement=True)
    at: Mapped[Seconds] = mapped_column(index=True)
    name: Mapped[Name]
    node: Mapped[Name]
    actor: Mapped[Name] = mapped_column(server_default=EMPTY)
    fields: Mapped[dict[str, Any]] = mapped_column(sa.JSON())
    __table_args__ = (sa.Index(None, "name", "at"),)


SORTABLE = listing.sortable(EventRow, "at id name node actor")


async def append(session: AsyncSession, rows: Sequence[EventRow]) -> None:
    session.add_all(rows)


async def between(
    session: AsyncSession, event_names: Iterable[str], start: float, end: float, max_rows: int
) -> Sequence[EventRow]:
    """Return the newest events of these names between two times, both included, newest first."""
    query = sa.select(EventRow).where(EventRow.name.in_(list(event_names)), EventRow.at >= start, EventRow.at <= end)
    return (await session.scalars(query.order_by(EventRow.at.desc(), EventRow.id.desc()).limit(max_rows))).all()


async def page(session: AsyncSession, page_request: PageRequest, filters: EventFilters) -> ListPage[EventRow]:
    """Return one page. Raise Invalid."""
    where: list[sa.ColumnElement[bool]] = []
    if filters.name is not None:
        begins, name = filters.name.removesuffix("*"), EventRow.name
        where.append(name == begins if begins == filters.name else name.startswith(begins, autoescape=True))
    if filters.node is not None:
        where.append(EventRow.node == filters.node)
    if filters.actor is not None:
        where.append(EventRow.actor == filters.actor)
    if filters.since is not None:
        where.append(EventRow.at >= filters.since)
    return await listing.page(session, EventRow, SORTABLE, page_request, *where)

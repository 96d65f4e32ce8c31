"""Managers that share this database, as each reports itself.

Times are by the database's clock if it has one: the clocks of machines differ, and liveness is a matter of seconds.
"""

import time
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base.declarative import Base, Name, Seconds, Whole

RETENTION_S = 3600.0
MAX_ROWS = 100
"""Rows of managers that are gone are kept for KEPT_S seconds. At most KEPT rows are kept in total."""


class ManagerRow(Base):
    __tablename__ = "managers"

    id: Mapped[Name] = mapped_column(primary_key=True)
    host: Mapped[Name]
    pid: Mapped[Whole]
    url: Mapped[str] = mapped_column(sa.Text())
    pushing: Mapped[bool]
    started_at: Mapped[Seconds]
    seen_at: Mapped[Seconds]


async def clock(session: AsyncSession) -> float:
    """Return Unix seconds by a clock that all managers share."""
    if session.get_bind().dialect.name != "postgresql":
        return time.time()
    return float(await session.scalar(sa.select(sa.extract("epoch", sa.func.clock_timestamp()))) or 0.0)


async def save(session: AsyncSession, row: ManagerRow) -> None:
    """Insert or update a manager, seen now. Delete managers that are long gone."""
    row.seen_at = await clock(session)
    await session.execute(sa.delete(ManagerRow).where(ManagerRow.seen_at < row.seen_at - RETENTION_S))
    newest = sa.select(ManagerRow.id).order_by(ManagerRow.seen_at.desc(), ManagerRow.id).limit(MAX_ROWS)
    await session.execute(sa.delete(ManagerRow).where(ManagerRow.id.not_in(newest)))
    await session.merge(row)


async def remove(session: AsyncSession, manager: str) -> None:
    await session.execute(sa.delete(ManagerRow).where(ManagerRow.id == manager))


async def all_managers(session: AsyncSession) -> Sequence[ManagerRow]:
    """Return all managers, the earliest started first."""
    query = sa.select(ManagerRow).order_by(ManagerRow.started_at, ManagerRow.id)
    return (await session.scalars(query)).all()

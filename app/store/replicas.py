"""Management planes that share this database, as each told of itself. Times are those of the database's clock where it
has one: machines disagree about the time, and who is alive is a matter of seconds."""

import time
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import Base, Name, Seconds, Whole

KEPT_S = 3600.0
KEPT = 100
"""Rows of processes that are gone are kept this long, and this many at most."""


class ReplicaRow(Base):
    __tablename__ = "replicas"

    id: Mapped[Name] = mapped_column(primary_key=True)
    host: Mapped[Name]
    pid: Mapped[Whole]
    url: Mapped[str] = mapped_column(sa.Text())
    pushing: Mapped[bool]
    started_at: Mapped[Seconds]
    seen_at: Mapped[Seconds]


async def clock(session: AsyncSession) -> float:
    """Unix seconds that all replicas agree about."""
    if session.get_bind().dialect.name != "postgresql":
        return time.time()
    return float(await session.scalar(sa.select(sa.extract("epoch", sa.func.clock_timestamp()))) or 0.0)


async def save(session: AsyncSession, row: ReplicaRow) -> None:
    """Insert or update, seen now; what is long gone is forgotten."""
    row.seen_at = await clock(session)
    await session.execute(sa.delete(ReplicaRow).where(ReplicaRow.seen_at < row.seen_at - KEPT_S))
    newest = sa.select(ReplicaRow.id).order_by(ReplicaRow.seen_at.desc(), ReplicaRow.id).limit(KEPT)
    await session.execute(sa.delete(ReplicaRow).where(ReplicaRow.id.not_in(newest)))
    await session.merge(row)


async def remove(session: AsyncSession, replica: str) -> None:
    await session.execute(sa.delete(ReplicaRow).where(ReplicaRow.id == replica))


async def all_replicas(session: AsyncSession) -> Sequence[ReplicaRow]:
    """The ones that started first come first."""
    query = sa.select(ReplicaRow).order_by(ReplicaRow.started_at, ReplicaRow.id)
    return (await session.scalars(query)).all()

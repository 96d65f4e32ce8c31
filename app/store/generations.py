"""The outbox: for each type of snapshot, the number of its newest committed state.

A row here that is ahead of what a node observed is a push that is owed, whoever committed it and whatever died since.
"""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import Base, Name, Seconds, Whole
from dataplane.protocol.control import SnapshotType


class GenerationRow(Base):
    __tablename__ = "generations"

    type: Mapped[Name] = mapped_column(primary_key=True)
    generation: Mapped[Whole]
    changed_at: Mapped[Seconds]


async def heads(session: AsyncSession) -> dict[str, int]:
    """The newest generation of every type; 0 means that nobody ever said anything."""
    rows = await session.execute(sa.select(GenerationRow.type, GenerationRow.generation))
    return {row.type: row.generation for row in rows}


async def lock(session: AsyncSession, kind: SnapshotType) -> int:
    """The newest generation, held until the transaction ends: writers of one type come one after another."""
    query = sa.select(GenerationRow.generation).where(GenerationRow.type == kind).with_for_update()
    return (await session.scalars(query)).one()


async def advance(session: AsyncSession, kind: SnapshotType, generation: int, now: float) -> None:
    """Make `generation` the newest; the caller holds the lock."""
    await session.execute(
        sa.update(GenerationRow)
        .where(GenerationRow.type == kind)
        .values(generation=generation, changed_at=now)
    )

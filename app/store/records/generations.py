"""Outbox: for each type of snapshot, the number of its newest committed state.

A generation that is ahead of what a node has observed is a push that is due, whichever process committed it and
whichever process has failed since.
"""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base.declarative import Base, Name, Seconds, Whole
from dataplane.protocol.control.snapshots import SnapshotType


class GenerationRow(Base):
    __tablename__ = "generations"

    type: Mapped[Name] = mapped_column(primary_key=True)
    generation: Mapped[Whole]
    changed_at: Mapped[Seconds]


async def heads(session: AsyncSession) -> dict[str, int]:
    """Return the newest generation of every type; 0 if the type was never changed."""
    rows = await session.execute(sa.select(GenerationRow.type, GenerationRow.generation))
    return {row.type: row.generation for row in rows}


async def lock(session: AsyncSession, kind: SnapshotType) -> int:
    """Return the newest generation, locked until the transaction ends: this serialises writers of one type."""
    query = sa.select(GenerationRow.generation).where(GenerationRow.type == kind).with_for_update()
    return (await session.scalars(query)).one()


async def advance(session: AsyncSession, kind: SnapshotType, generation: int, now: float) -> None:
    """Set the newest generation. The caller holds the lock."""
    await session.execute(
        sa.update(GenerationRow)
        .where(GenerationRow.type == kind)
        .values(generation=generation, changed_at=now)
    )

"""Outbox: for each type of snapshot, the number of its newest committed state.

A generation that is ahead of what a node has observed is a push that is due, whichever process committed it and
whichever process has failed since.
"""

from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base.declarative import EMPTY, Base, Name, Seconds, Whole
from dataplane.protocol.control.snapshots import SnapshotType


class GenerationRow(Base):
    __tablename__ = "generations"

    type: Mapped[Name] = mapped_column(primary_key=True)
    generation: Mapped[Whole]
    changed_at: Mapped[Seconds]
    traceparent: Mapped[Name] = mapped_column(server_default=EMPTY)
    """Span of the change that made it, as a W3C traceparent; empty if it was not traced."""


class TracedGeneration(NamedTuple):
    """The newest generation of a type, and the span of the change that made it."""

    generation: int
    traceparent: str


async def traced_heads(session: AsyncSession) -> Mapping[str, TracedGeneration]:
    """Return the newest generation of every type; 0 if the type was never changed."""
    query = sa.select(GenerationRow.type, GenerationRow.generation, GenerationRow.traceparent)
    return {row.type: TracedGeneration(row.generation, row.traceparent) for row in await session.execute(query)}


async def heads(session: AsyncSession) -> dict[str, int]:
    """Return the number of the newest generation of every type."""
    return {kind: head.generation for kind, head in (await traced_heads(session)).items()}


async def lock(session: AsyncSession, kind: SnapshotType) -> int:
    """Return the newest generation, locked until the transaction ends: this serialises writers of one type."""
    query = sa.select(GenerationRow.generation).where(GenerationRow.type == kind).with_for_update()
    return (await session.scalars(query)).one()


async def advance(
    session: AsyncSession, kind: SnapshotType, generation: int, now: float, traceparent: str = ""
) -> None:
    """Set the newest generation. The caller holds the lock."""
    await session.execute(
        sa.update(GenerationRow)
        .where(GenerationRow.type == kind)
        .values(generation=generation, changed_at=now, traceparent=traceparent)
    )

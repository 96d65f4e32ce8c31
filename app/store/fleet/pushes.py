"""Snapshots sent to nodes, and their answers. `app.push.node_journal` deletes old ones."""

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import listing
from app.store.base.declarative import Base, Digest, Name, RowNumber, Seconds, Whole


class PushRow(Base):
    __tablename__ = "pushes"
    __table_args__ = (sa.Index("ix_pushes_node_type", "node", "type"),)

    id: Mapped[int] = mapped_column(RowNumber, primary_key=True, autoincrement=True)
    type: Mapped[Name]
    node: Mapped[Name]
    generation: Mapped[Whole]
    digest: Mapped[Digest]
    state: Mapped[Name]
    """Value of a `push.states.PushState`."""
    reason: Mapped[Name]
    """Reason for the push: `change`, `joined`, `drift` or `retry`."""
    attempt: Mapped[Whole]
    size_bytes: Mapped[Whole]
    bodies: Mapped[Whole]
    """Number of pin bodies that the node requested."""
    sent_at: Mapped[Seconds]
    answered_at: Mapped[float | None] = mapped_column(sa.Double())
    applied_s: Mapped[float | None] = mapped_column(sa.Double())
    faults: Mapped[list[dict[str, Any]]] = mapped_column(sa.JSON())


COLUMNS = tuple(column.key for column in sa.inspect(PushRow).column_attrs if column.key != "id")
"""Columns with which a push is recorded."""


async def exists(session: AsyncSession, *, node: str, type: str, sent_at: float, **_: Any) -> bool:  # noqa: A002
    """Return whether the push to this node with this type and time is already recorded."""
    query = sa.select(PushRow.id).where(PushRow.node == node, PushRow.type == type, PushRow.sent_at == sent_at)
    return (await session.scalars(query.limit(1))).first() is not None


async def acknowledged(session: AsyncSession, generations: Collection[int]) -> dict[tuple[str, int], float]:
    """Return when these generations were last acknowledged, by type and generation."""
    query = (
        sa.select(PushRow.type, PushRow.generation, sa.func.max(PushRow.answered_at))
        .where(PushRow.generation.in_(generations), PushRow.state == "acked", PushRow.reason == "change")
        .group_by(PushRow.type, PushRow.generation)
    )
    return {(kind, number): at for kind, number, at in (await session.execute(query)).all() if at}


async def newest(
    session: AsyncSession, *, kind: str | None, node: str | None, state: str | None, limit: int
) -> tuple[Sequence[PushRow], int]:
    """Return the matching pushes, newest first, and the total number of matches."""
    conditions = listing.matching(PushRow, {"type": kind, "node": node, "state": state})
    query = sa.select(PushRow).where(*conditions).order_by(PushRow.id.desc()).limit(limit)
    total = await session.scalar(sa.select(sa.func.count()).select_from(PushRow).where(*conditions))
    return (await session.scalars(query)).all(), total or 0

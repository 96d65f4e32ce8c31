"""Who changed what: one entry for each change of a record, in the transaction of the change."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import Base, LongName, Name, RowNumber, Seconds, Whole


class AuditRow(Base):
    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(RowNumber, primary_key=True, autoincrement=True)
    at: Mapped[Seconds]
    actor: Mapped[Name]
    action: Mapped[Name]
    """`create`, `update` or `delete` of a record; `invalidate`, `demote` or `resize`."""
    kind: Mapped[Name]
    """`quota`, `pin`, `policy`, `blocks` or `node`."""
    name: Mapped[LongName]
    """The record's name as people see it."""
    type: Mapped[Name]
    generation: Mapped[Whole]
    """The generation of `type` that this change made; 0 (and no type) for what changes no record."""
    before: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    after: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    request_id: Mapped[Name]


async def newest(session: AsyncSession, limit: int, offset: int) -> tuple[Sequence[AuditRow], int]:
    """Newest first, and how many there are."""
    query = sa.select(AuditRow).order_by(AuditRow.id.desc()).limit(limit).offset(offset)
    total = await session.scalar(sa.select(sa.func.count()).select_from(AuditRow))
    return (await session.scalars(query)).all(), total or 0

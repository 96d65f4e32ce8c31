"""Join tokens, with which new nodes are admitted to the fleet. Secrets are stored only as hashes."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base.declarative import Base, Digest, Name, Seconds


class JoinTokenRow(Base):
    __tablename__ = "join_tokens"

    id: Mapped[Name] = mapped_column(primary_key=True)
    name: Mapped[Name]
    hash: Mapped[Digest]
    labels: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    """Labels that a node gets by joining with this token."""
    uses_left: Mapped[int | None] = mapped_column(sa.BigInteger())
    """Remaining number of uses; None: unlimited."""
    created_by: Mapped[Name]
    created_at: Mapped[Seconds]
    expires_at: Mapped[float | None] = mapped_column(sa.Double())
    last_used_at: Mapped[float | None] = mapped_column(sa.Double())


async def claim(session: AsyncSession, ident: str) -> JoinTokenRow | None:
    """Return a token, locked until the transaction ends, so that concurrent managers use it one by one."""
    return await session.get(JoinTokenRow, ident, with_for_update=True)


async def all_tokens(session: AsyncSession) -> Sequence[JoinTokenRow]:
    """Return all tokens, newest first."""
    query = sa.select(JoinTokenRow).order_by(JoinTokenRow.created_at.desc(), JoinTokenRow.id)
    return (await session.scalars(query)).all()

"""Join tokens: what a new node shows to be let into the fleet. The secret is kept as a hash only."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import Base, Digest, Name, Seconds


class JoinTokenRow(Base):
    __tablename__ = "join_tokens"

    id: Mapped[Name] = mapped_column(primary_key=True)
    name: Mapped[Name]
    hash: Mapped[Digest]
    labels: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    """Labels that a node gets by joining with it."""
    uses_left: Mapped[int | None] = mapped_column(sa.BigInteger())
    """None: any number."""
    created_by: Mapped[Name]
    created_at: Mapped[Seconds]
    expires_at: Mapped[float | None] = mapped_column(sa.Double())
    last_used_at: Mapped[float | None] = mapped_column(sa.Double())


async def get(session: AsyncSession, ident: str) -> JoinTokenRow | None:
    return await session.get(JoinTokenRow, ident)


async def claim(session: AsyncSession, ident: str) -> JoinTokenRow | None:
    """To be used up in this transaction: another replica that would use it waits, and then sees what is left."""
    return await session.get(JoinTokenRow, ident, with_for_update=True)


async def all_tokens(session: AsyncSession) -> Sequence[JoinTokenRow]:
    """Newest first."""
    query = sa.select(JoinTokenRow).order_by(JoinTokenRow.created_at.desc(), JoinTokenRow.id)
    return (await session.scalars(query)).all()

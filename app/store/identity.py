"""Who this database is: generations of two databases cannot be compared, so snapshots carry its name."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base import EMPTY, Base, Seconds


class StoreRow(Base):
    """The only row is written by the first migration."""

    __tablename__ = "store"

    id: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    created_at: Mapped[Seconds]
    secret: Mapped[str] = mapped_column(sa.String(64), server_default=EMPTY)
    """Random; told to nobody. Hashes of callers' secrets are keyed with it."""


async def store_id(session: AsyncSession) -> str:
    """32 hex digits."""
    return (await session.scalars(sa.select(StoreRow.id))).one()


async def secret(session: AsyncSession) -> str:
    """64 hex digits."""
    return (await session.scalars(sa.select(StoreRow.secret))).one()

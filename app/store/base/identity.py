"""Identity of a database: snapshots carry it, because generations of two databases cannot be compared."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base.declarative import EMPTY, Base, Seconds


class StoreRow(Base):
    """The only row, written by the first migration."""

    __tablename__ = "store"

    id: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    created_at: Mapped[Seconds]
    secret: Mapped[str] = mapped_column(sa.String(64), server_default=EMPTY)
    """Random key for hashes of callers' secrets. Never disclosed."""


async def store_id(session: AsyncSession) -> str:
    """Return the identity, 32 hex digits."""
    return (await session.scalars(sa.select(StoreRow.id))).one()


async def secret(session: AsyncSession) -> str:
    """Return the secret, 64 hex digits."""
    return (await session.scalars(sa.select(StoreRow.secret))).one()

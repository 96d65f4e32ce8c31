"""Guaranteed and permanent pins that hold blocks on a node, according to the node's last stats."""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base.declarative import Base, Digest, Name


class HeldPinRow(Base):
    __tablename__ = "held_pins"

    node: Mapped[Name] = mapped_column(primary_key=True)
    pin: Mapped[Name] = mapped_column(primary_key=True)
    keys_digest: Mapped[Digest]
    """Digest of the keys that the pin had. A pin whose keys have changed since has not lost these blocks."""


async def all_pins(session: AsyncSession) -> Sequence[HeldPinRow]:
    return (await session.scalars(sa.select(HeldPinRow))).all()


async def save(session: AsyncSession, changed: Mapping[tuple[str, str], str | None]) -> None:
    """Save digests by node and pin; None deletes a row."""
    for (node, pin), digest in changed.items():
        if digest is not None:
            await session.merge(HeldPinRow(node=node, pin=pin, keys_digest=digest))
            continue
        where = (HeldPinRow.node == node, HeldPinRow.pin == pin)
        await session.execute(sa.delete(HeldPinRow).where(*where))


async def forget(session: AsyncSession, node: str) -> None:
    """Delete all rows of a node."""
    await session.execute(sa.delete(HeldPinRow).where(HeldPinRow.node == node))

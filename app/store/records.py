"""Records as plain values: there may be very many, and nobody changes them."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.base import Base
from app.store.pins import PinRow
from app.store.policies import PolicyRow
from app.store.quotas import QuotaRow
from dataplane.protocol.control import SnapshotType

_KEYED: dict[SnapshotType, tuple[type[Base], str]] = {
    "quotas": (QuotaRow, "tenant"),
    "pins": (PinRow, "name"),
    "policies": (PolicyRow, "name"),
}


async def columns(
    session: AsyncSession, kind: SnapshotType, names: Sequence[str]
) -> Sequence[sa.Row[tuple[Any, ...]]]:
    """These columns of all records of a type, by key."""
    entity, key = _KEYED[kind]
    query = sa.select(*(getattr(entity, name) for name in names)).order_by(getattr(entity, key))
    return (await session.execute(query)).all()

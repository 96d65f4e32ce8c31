"""Records as plain values, for reading: there may be very many."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.base.declarative import Base
from app.store.records.pins import PinRow
from app.store.records.policies import PolicyRow
from app.store.records.quotas import QuotaRow
from app.store.records.tiers import TierRow
from dataplane.protocol.control.snapshots import SnapshotType

_KEYED: dict[SnapshotType, tuple[type[Base], str]] = {
    "quotas": (QuotaRow, "tenant"),
    "pins": (PinRow, "name"),
    "policies": (PolicyRow, "name"),
    "tiers": (TierRow, "name"),
}


async def columns(session: AsyncSession, kind: SnapshotType, names: Sequence[str]) -> Sequence[sa.Row[tuple[Any, ...]]]:
    """Return these columns of all records of a type, sorted by key."""
    entity, key = _KEYED[kind]
    query = sa.select(*(getattr(entity, name) for name in names)).order_by(getattr(entity, key))
    return (await session.execute(query)).all()

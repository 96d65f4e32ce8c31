"""Size of the records of a type in a snapshot, computed by the database. An upper bound of what is sent."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.records.pins import PinRow
from app.store.records.policies import PolicyRow
from app.store.records.quotas import QuotaRow
from app.store.records.tiers import TierRow
from dataplane.protocol.control.snapshots import SnapshotType

RECORD_BYTES = 200
"""Maximum bytes of a quota or a policy besides its name and its tiers: field names, numbers and words."""
PIN_BYTES = 192
"""Maximum bytes of a pin besides its name, model and tenant."""
TIER_BYTES = 208 + 128 + 16_384
"""Maximum bytes of a tier besides its name: field names, numbers and words, its type, and its parameters."""
FIXED_BYTES: dict[SnapshotType, int] = {
    "quotas": RECORD_BYTES,
    "pins": PIN_BYTES,
    "policies": RECORD_BYTES,
    "tiers": TIER_BYTES,
}


@dataclass(frozen=True)
class SnapshotSize:
    """Size of records of a type, or the difference of two sizes."""

    records: int = 0
    bytes: int = 0
    keys: int = 0
    """Number of keys of pins. Keys shared by several pins are counted for each."""

    def __add__(self, other: "SnapshotSize") -> "SnapshotSize":
        return SnapshotSize(self.records + other.records, self.bytes + other.bytes, self.keys + other.keys)

    def __sub__(self, other: "SnapshotSize") -> "SnapshotSize":
        return SnapshotSize(self.records - other.records, self.bytes - other.bytes, self.keys - other.keys)


async def pins_of(session: AsyncSession, salt: str) -> SnapshotSize:
    """Return the size of one tenant's pins."""
    return await weight(session, "pins", PinRow.tenant == salt)


async def weight(
    session: AsyncSession, kind: SnapshotType, *where: sa.ColumnElement[bool], since: int = -1
) -> SnapshotSize:
    """Return the size of the matching records that changed after the generation `since`, as seen by the transaction."""
    texts = {
        "quotas": (QuotaRow.tenant, QuotaRow.tiers),  # as JSON, tiers are longer than as MessagePack
        "pins": (PinRow.name, PinRow.model, PinRow.tenant),
        "policies": (PolicyRow.name,),
        "tiers": (TierRow.name,),
    }[kind]
    dialect = session.get_bind().dialect.name
    columns: list[Any] = [sa.func.count(), *(sa.func.sum(_bytes(text, dialect)) for text in texts)]
    if kind == "pins":
        columns.append(sa.func.sum(PinRow.key_count))
    changed = texts[0].class_.generation > since
    count, *sums = (await session.execute(sa.select(*columns).where(changed, *where))).one()
    numbers = [int(total or 0) for total in sums]
    keys = numbers.pop() if kind == "pins" else 0
    return SnapshotSize(count, sum(numbers) + count * FIXED_BYTES[kind], keys)


async def distinct_keys(session: AsyncSession) -> int:
    """Return the number of keys of all pins. Keys shared by several pins count once, as on nodes."""
    chains = sa.select(PinRow.model, PinRow.tenant, PinRow.keys_digest, PinRow.key_count).distinct().subquery()
    return int((await session.scalar(sa.select(sa.func.sum(chains.c.key_count)))) or 0)


def _bytes(text: Any, dialect: str) -> sa.ColumnElement[int]:
    """Return the length of a text in UTF-8 bytes."""
    if dialect == "sqlite":
        return sa.func.length(sa.cast(text, sa.LargeBinary))
    return sa.func.octet_length(sa.cast(text, sa.Text))

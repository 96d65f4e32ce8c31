"""How much the records of a type are in a snapshot, summed up by the database: never less than what is sent."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.pins import PinRow
from app.store.policies import PolicyRow
from app.store.quotas import QuotaRow
from dataplane.protocol.control import SnapshotType

RECORD_BYTES = 192
"""Of a quota or a policy besides its name: field names, numbers and words at their longest."""
PIN_BYTES = 192
"""Of a pin besides its name, model and tenant."""


@dataclass(frozen=True)
class Weight:
    """Of all records of a type."""

    records: int
    bytes: int
    keys: int = 0
    """Of pins; pins of the same keys count each."""


async def pins_of(session: AsyncSession, salt: str) -> Weight:
    """Of one tenant's pins."""
    return await weight(session, "pins", PinRow.tenant == salt)


async def weight(session: AsyncSession, kind: SnapshotType, *where: sa.ColumnElement[bool]) -> Weight:
    """As the transaction sees it."""
    texts = {
        "quotas": (QuotaRow.tenant,),
        "pins": (PinRow.name, PinRow.model, PinRow.tenant),
        "policies": (PolicyRow.name,),
    }[kind]
    dialect = session.get_bind().dialect.name
    wanted: list[Any] = [sa.func.count(), *(sa.func.sum(_bytes(text, dialect)) for text in texts)]
    if kind == "pins":
        wanted.append(sa.func.sum(PinRow.key_count))
    count, *sums = (await session.execute(sa.select(*wanted).where(*where))).one()
    numbers = [int(each or 0) for each in sums]
    keys = numbers.pop() if kind == "pins" else 0
    return Weight(count, sum(numbers) + count * (PIN_BYTES if kind == "pins" else RECORD_BYTES), keys)


async def distinct_keys(session: AsyncSession) -> int:
    """Keys of all pins, of pins of the same keys once, as nodes count them."""
    chains = (
        sa.select(PinRow.model, PinRow.tenant, PinRow.keys_digest, PinRow.key_count).distinct().subquery()
    )
    return int((await session.scalar(sa.select(sa.func.sum(chains.c.key_count)))) or 0)


def _bytes(text: Any, dialect: str) -> sa.ColumnElement[int]:
    """Of UTF-8."""
    if dialect == "sqlite":
        return sa.func.length(sa.cast(text, sa.LargeBinary))
    return sa.func.octet_length(text)

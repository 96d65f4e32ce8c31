"""Bulk access to records of one type: plain rows, in batches, so that other tasks run in between."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.base.declarative import Base
from app.store.records.pins import PinBodyRow, PinRow
from app.store.records.policies import PolicyRow
from app.store.records.quotas import QuotaRow
from app.store.records.tiers import TierRow
from dataplane.protocol.control.snapshots import SnapshotType

BATCH = 250
"""Rows per statement, which take a few milliseconds of this process."""
KEYED: dict[SnapshotType, tuple[type[Any], str]] = {
    "quotas": (QuotaRow, "tenant"),
    "pins": (PinRow, "name"),
    "policies": (PolicyRow, "name"),
    "tiers": (TierRow, "name"),
}
"""Table and key of each type."""
T = TypeVar("T")


def batches(items: Sequence[T], size: int = BATCH) -> Iterator[Sequence[T]]:
    """Split items into batches, in order."""
    return (items[at : at + size] for at in range(0, len(items), size))


async def rows(
    session: AsyncSession, entity: type[Base], key: str, columns: Iterable[str]
) -> dict[str, Mapping[str, Any]]:
    """Return these columns of all rows of a table, by key."""
    table = entity.__table__
    statement = sa.select(*(table.c[name] for name in columns))
    rows_by_key: dict[str, Mapping[str, Any]] = {}
    last: str | None = None
    while True:
        query = statement.order_by(table.c[key]).limit(BATCH * 8)
        part = (await session.execute(query if last is None else query.where(table.c[key] > last))).mappings().all()
        for row in part:
            rows_by_key[row[key]] = dict(row)
        if len(part) < BATCH * 8:
            return rows_by_key
        last = part[-1][key]


async def columns(
    session: AsyncSession, kind: SnapshotType, column_names: Sequence[str], since: int = -1
) -> Sequence[sa.Row[tuple[Any, ...]]]:
    """Return these columns of all records of a type, sorted by key, or of those that changed after the generation
    `since`, in any order: the index on the generation finds them."""
    entity, key = KEYED[kind]
    query = sa.select(*(getattr(entity, name) for name in column_names))
    query = query.order_by(getattr(entity, key)) if since < 0 else query.where(entity.generation > since)
    return (await session.execute(query)).all()


async def count(session: AsyncSession, kind: SnapshotType) -> int:
    """Return the number of records of a type."""
    return await session.scalar(sa.select(sa.func.count()).select_from(KEYED[kind][0])) or 0


async def insert(session: AsyncSession, entity: type[Base], values: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, all with the same columns."""
    for batch in batches(values):
        await session.execute(sa.insert(entity), [dict(row) for row in batch])


async def update(session: AsyncSession, entity: type[Base], values: Sequence[Mapping[str, Any]]) -> None:
    """Update existing rows by their primary keys. All have the same columns."""
    for batch in batches(values):
        await session.execute(sa.update(entity), [dict(row) for row in batch])


async def delete(session: AsyncSession, entity: type[Base], key: str, keys: Sequence[str]) -> None:
    """Delete rows by key."""
    for batch in batches(keys):
        where = entity.__table__.c[key].in_(batch)
        options = {"synchronize_session": False}
        await session.execute(sa.delete(entity).where(where).execution_options(**options))


async def put_bodies(session: AsyncSession, bodies: Mapping[str, bytes], now: float) -> None:
    """Store the bodies that do not exist yet. The caller holds the lock of `pins`."""
    for batch in batches(list(bodies)):
        query = sa.select(PinBodyRow.digest).where(PinBodyRow.digest.in_(batch))
        stored = set(await session.scalars(query))
        missing = [digest for digest in batch if digest not in stored]
        if missing:
            values = [{"digest": digest, "body": bodies[digest], "created_at": now} for digest in missing]
            await session.execute(sa.insert(PinBodyRow), values)


async def drop_unused_bodies(session: AsyncSession, digests: Sequence[str]) -> None:
    """Delete those of these bodies that no pin uses."""
    await session.flush()
    used = sa.select(PinRow.name).where(PinRow.keys_digest == PinBodyRow.digest).exists()
    for batch in batches(digests):
        await session.execute(
            sa.delete(PinBodyRow)
            .where(PinBodyRow.digest.in_(batch), ~used)
            .execution_options(synchronize_session=False)
        )

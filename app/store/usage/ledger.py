"""Usage ledger: each tenant's usage of each node and model by the hour, and how far it has been counted.

Rows of accounts count the bytes in memory, and the tokens and bytes that memory and tiers served. Rows of tiers count
the bytes that one tier held, and the tokens and bytes that it served. An older node reports no tiers, so everything
that it serves counts as served by memory.

Nodes report counters that start at 0 with an account. A mark records how far an account has been counted. It is written
in the same transaction as the rows. The same numbers may therefore arrive again after a crash, from another manager, or
out of order, without being counted twice.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from app.store.base.declarative import LARGEST_WHOLE, Base, LongName, Name, Seconds, Whole, upsert

COUNTERS = (
    "held_kib_s",
    "requested_tokens",
    "served_tokens",
    "stored_blocks",
    "stored_bytes",
    "evicted_blocks",
    "evicted_bytes",
    "refused_blocks",
    "served_bytes",
)
"""Columns of an account that are summed."""
TIER_COUNTERS = ("held_kib_s", "served_tokens", "served_bytes")
"""Columns of a tier that are summed."""
Counts = tuple[int, ...]
"""One number for each name in `COUNTERS`, or in `TIER_COUNTERS`."""
_LOCK = 0x6C617264_75736167
_AT_ONCE = 200
"""Number of accounts whose marks are read together."""


class UsageRow(Base):
    __tablename__ = "usage"

    hour: Mapped[Whole] = mapped_column(primary_key=True)
    """Start of the hour in Unix seconds."""
    node: Mapped[Name] = mapped_column(primary_key=True)
    tenant: Mapped[Name] = mapped_column(primary_key=True)
    """The salt; empty for the default tenant, `/other` for tenants without an account of their own on the node."""
    model: Mapped[LongName] = mapped_column(primary_key=True)
    space: Mapped[Name] = mapped_column(primary_key=True)
    """Identity of the model's leading space, 32 hex digits."""
    held_kib_s: Mapped[Whole] = mapped_column(server_default="0")
    requested_tokens: Mapped[Whole] = mapped_column(server_default="0")
    served_tokens: Mapped[Whole] = mapped_column(server_default="0")
    """Tokens that engines loaded from the cache."""
    stored_blocks: Mapped[Whole] = mapped_column(server_default="0")
    stored_bytes: Mapped[Whole] = mapped_column(server_default="0")
    evicted_blocks: Mapped[Whole] = mapped_column(server_default="0")
    evicted_bytes: Mapped[Whole] = mapped_column(server_default="0")
    refused_blocks: Mapped[Whole] = mapped_column(server_default="0")
    served_bytes: Mapped[Whole] = mapped_column(server_default="0")


class TierUsageRow(Base):
    """Usage of one tier of a node in one hour."""

    __tablename__ = "tier_usage"

    hour: Mapped[Whole] = mapped_column(primary_key=True)
    node: Mapped[Name] = mapped_column(primary_key=True)
    tenant: Mapped[Name] = mapped_column(primary_key=True)
    model: Mapped[LongName] = mapped_column(primary_key=True)
    space: Mapped[Name] = mapped_column(primary_key=True)
    tier: Mapped[Name] = mapped_column(primary_key=True)
    """Name of the tier."""
    held_kib_s: Mapped[Whole]
    served_tokens: Mapped[Whole]
    served_bytes: Mapped[Whole]


class UsageMarkRow(Base):
    """How far an account has been counted: the counters in the node's last counted report."""

    __tablename__ = "usage_marks"

    node: Mapped[Name] = mapped_column(primary_key=True)
    tenant: Mapped[Name] = mapped_column(primary_key=True)
    model: Mapped[LongName] = mapped_column(primary_key=True)
    space: Mapped[Name] = mapped_column(primary_key=True)
    epoch: Mapped[Name]
    """Epoch of the node's process. With another epoch, counters start at 0 again."""
    number: Mapped[Whole]
    """Number of the account in that process. With a higher number, counters start at 0 again."""
    at: Mapped[Seconds]
    """Time in Unix seconds at which the report arrived."""
    held_kib_s: Mapped[Whole]
    requested_tokens: Mapped[Whole]
    served_tokens: Mapped[Whole]
    stored_blocks: Mapped[Whole]
    stored_bytes: Mapped[Whole]
    evicted_blocks: Mapped[Whole]
    evicted_bytes: Mapped[Whole]
    refused_blocks: Mapped[Whole]
    served_bytes: Mapped[Whole] = mapped_column(server_default="0")


class TierUsageMarkRow(Base):
    """How far a tier of an account has been counted."""

    __tablename__ = "tier_usage_marks"

    node: Mapped[Name] = mapped_column(primary_key=True)
    tenant: Mapped[Name] = mapped_column(primary_key=True)
    model: Mapped[LongName] = mapped_column(primary_key=True)
    space: Mapped[Name] = mapped_column(primary_key=True)
    tier: Mapped[Name] = mapped_column(primary_key=True)
    epoch: Mapped[Name]
    number: Mapped[Whole]
    at: Mapped[Seconds]
    held_kib_s: Mapped[Whole]
    served_tokens: Mapped[Whole]
    served_bytes: Mapped[Whole]


@dataclass(frozen=True)
class CountedTables:
    """The tables of one kind of counters."""

    row: type[UsageRow | TierUsageRow]
    mark: type[UsageMarkRow | TierUsageMarkRow]
    keys: tuple[str, ...]
    counters: tuple[str, ...]


_ACCOUNT_KEYS = ("node", "tenant", "model", "space")
ACCOUNTS = CountedTables(UsageRow, UsageMarkRow, _ACCOUNT_KEYS, COUNTERS)
TIERS = CountedTables(TierUsageRow, TierUsageMarkRow, (*_ACCOUNT_KEYS, "tier"), TIER_COUNTERS)
Key = tuple[str, ...]
"""Node, tenant (salt), model, space, and the name of a tier."""


@dataclass(frozen=True)
class ReportedUsage:
    """An account's counters as reported by a node."""

    node: str
    epoch: str
    number: int
    tenant: str
    """Salt of the tenant."""
    model: str
    space: str
    at: float
    counts: Counts
    """Counters since the account began."""
    tier: str = ""
    """Name of the tier that the counters are about; empty for the account as a whole."""

    @property
    def key(self) -> Key:
        return self.node, self.tenant, self.model, self.space, self.tier


@dataclass(frozen=True)
class UsageMark:
    """How far an account has been counted."""

    epoch: str
    number: int
    at: float
    counts: Counts


def counted(reported: ReportedUsage, mark: UsageMark | None) -> Counts | None:
    """Return the increase since the mark, or None if later numbers of the account have already been counted."""
    if mark is None:
        return reported.counts
    if reported.epoch != mark.epoch:
        return reported.counts if reported.at > mark.at else None
    if reported.number != mark.number:
        return reported.counts if reported.number > mark.number else None
    if reported.at < mark.at:
        return None
    # An engine can make a counter wrap around; the usage that is lost then is unknown.
    return tuple(max(0, now - before) for now, before in zip(reported.counts, mark.counts, strict=True))


async def add(session: AsyncSession, reported: Sequence[tuple[int, ReportedUsage]]) -> None:
    """Count reports, oldest first, each for an hour (Unix seconds of its start)."""
    if session.get_bind().dialect.name == "postgresql":  # two managers may add at once; SQLite has one writer
        await session.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    await _add(session, ACCOUNTS, [pair for pair in reported if not pair[1].tier])
    await _add(session, TIERS, [pair for pair in reported if pair[1].tier])


async def _add(session: AsyncSession, tables: CountedTables, reported: Sequence[tuple[int, ReportedUsage]]) -> None:
    marks = await _marks(session, tables, {report.key for _, report in reported})
    sums: dict[tuple[int, Key], list[int]] = {}
    changed: dict[Key, UsageMark] = {}
    for hour, report in reported:
        new = counted(report, marks.get(report.key))
        if new is None:
            continue
        marks[report.key] = changed[report.key] = UsageMark(report.epoch, report.number, report.at, report.counts)
        row = sums.setdefault((hour, report.key), [0] * len(tables.counters))
        for at, value in enumerate(new):
            row[at] = min(row[at] + value, LARGEST_WHOLE)  # engines choose some counters
    await upsert(
        session,
        tables.row,
        [{"hour": hour, **_named(tables, key, values)} for (hour, key), values in sums.items() if any(values)],
        added=tables.counters,
    )
    await upsert(
        session,
        tables.mark,
        [
            {"epoch": mark.epoch, "number": mark.number, "at": mark.at, **_named(tables, key, mark.counts)}
            for key, mark in changed.items()
        ],
    )


def _named(tables: CountedTables, key: Key, values: Iterable[int]) -> dict[str, str | int]:
    keys = zip(tables.keys, key, strict=False)  # the key of an account ends with an empty tier
    return {**dict(keys), **dict(zip(tables.counters, values, strict=True))}


async def _marks(session: AsyncSession, tables: CountedTables, keys: set[Key]) -> dict[Key, UsageMark]:
    columns = [getattr(tables.mark, name) for name in tables.keys]
    key_of = {key[: len(tables.keys)]: key for key in sorted(keys)}
    marks: dict[Key, UsageMark] = {}
    ordered = list(key_of)
    for first in range(0, len(ordered), _AT_ONCE):
        part = ordered[first : first + _AT_ONCE]
        query: Any = sa.select(tables.mark).where(sa.tuple_(*columns).in_(part))
        for row in await session.scalars(query):
            counts = tuple(getattr(row, name) for name in tables.counters)
            key = key_of[tuple(getattr(row, name) for name in tables.keys)]
            marks[key] = UsageMark(row.epoch, row.number, row.at, counts)
    return marks


async def forget_epochs(session: AsyncSession, node: str, epoch: str, before: float) -> None:
    """Delete old marks of a node's earlier processes: they are no longer needed."""
    for mark in (UsageMarkRow, TierUsageMarkRow):
        await session.execute(sa.delete(mark).where(mark.node == node, mark.epoch != epoch, mark.at < before))


@dataclass(frozen=True)
class UsageSum:
    """Usage of one model and space in one time step, for one group."""

    start: int
    group: str
    model: str
    space: str
    counts: tuple[float, ...]
    tier: str = ""
    """Name of the tier; empty for the account as a whole."""


async def sums(
    session: AsyncSession,
    tables: CountedTables,
    group_by: str,
    step_s: int,
    start: int,
    end: int,
    tenants: Iterable[str] | None,
    max_rows: int,
) -> list[UsageSum]:
    """Return the sums of [start, end), by time and group (`tenant`, `model` or `node`), and by tier in the tables of
    tiers. Return `max_rows` + 1 rows if there are more than `max_rows`."""
    row = tables.row
    step = row.hour - row.hour % step_s
    # Floating point, because a sum may exceed 63 bits.
    columns: list[Any] = [sa.func.sum(sa.cast(getattr(row, name), sa.Double())) for name in tables.counters]
    where = [row.hour >= start, row.hour < end]
    if tenants is not None:
        where.append(row.tenant.in_(list(tenants)))
    keys: list[Any] = [step, getattr(row, group_by), row.model, row.space]
    keys += [getattr(row, name) for name in tables.keys[len(_ACCOUNT_KEYS) :]]
    query = sa.select(*(key.label(f"key_{at}") for at, key in enumerate(keys)), *columns).where(*where)
    key_labels = [sa.text(f"key_{at}") for at in range(len(keys))]
    result = await session.execute(query.group_by(*key_labels).order_by(*key_labels).limit(max_rows + 1))
    width = len(keys)
    return [UsageSum(row[0], row[1], row[2], row[3], tuple(row[width:]), "".join(row[4:width])) for row in result.all()]

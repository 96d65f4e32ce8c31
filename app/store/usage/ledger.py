"""Usage ledger: each tenant's usage of each node and model by the hour, and how far it has been counted.

Nodes report counters that start at 0 with an account. A mark records how far an account has been counted. It is written
in the same transaction as the rows. The same numbers may therefore arrive again after a crash, from another manager, or
out of order, without being counted twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, Mapped, mapped_column

from app.store.base.declarative import Base, LongName, Name, Seconds, Whole

COUNTERS = (
    "held_kib_s",
    "requested_tokens",
    "served_tokens",
    "stored_blocks",
    "stored_bytes",
    "evicted_blocks",
    "evicted_bytes",
    "refused_blocks",
)
"""Columns that are summed."""
Counts = tuple[int, ...]
"""One number for each name in `COUNTERS`."""
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


Key = tuple[str, str, str, str]
"""Node, tenant (salt), model, space."""


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

    @property
    def key(self) -> Key:
        return self.node, self.tenant, self.model, self.space


@dataclass(frozen=True)
class UsageMark:
    """How far an account has been counted."""

    epoch: str
    number: int
    at: float
    counts: Counts


def counted(told: ReportedUsage, mark: UsageMark | None) -> Counts | None:
    """Return the increase since the mark, or None if later numbers of the account have already been counted."""
    if mark is None:
        return told.counts
    if told.epoch != mark.epoch:
        return told.counts if told.at > mark.at else None
    if told.number != mark.number:
        return told.counts if told.number > mark.number else None
    if told.at < mark.at:
        return None
    # An engine can make a counter wrap around; the usage that is lost then is unknown.
    return tuple(max(0, now - before) for now, before in zip(told.counts, mark.counts, strict=True))


async def add(session: AsyncSession, told: Sequence[tuple[int, ReportedUsage]]) -> None:
    """Count reports, oldest first, each for an hour (Unix seconds of its start)."""
    if session.get_bind().dialect.name == "postgresql":  # two managers may add at once; SQLite has one writer
        await session.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    marks = await _marks(session, {each.key for _, each in told})
    sums: dict[tuple[int, Key], list[int]] = {}
    changed: dict[Key, UsageMark] = {}
    for hour, each in told:
        new = counted(each, marks.get(each.key))
        if new is None:
            continue
        marks[each.key] = changed[each.key] = UsageMark(each.epoch, each.number, each.at, each.counts)
        row = sums.setdefault((hour, each.key), [0] * len(COUNTERS))
        for at, value in enumerate(new):
            row[at] += value
    names = ("node", "tenant", "model", "space")
    await _upsert(
        session,
        UsageRow,
        [
            {"hour": hour, **dict(zip(names, key, strict=True)), **_named(values)}
            for (hour, key), values in sums.items()
            if any(values)
        ],
        adding=True,
    )
    await _upsert(
        session,
        UsageMarkRow,
        [
            {
                **dict(zip(names, key, strict=True)),
                "epoch": mark.epoch,
                "number": mark.number,
                "at": mark.at,
                **_named(mark.counts),
            }
            for key, mark in changed.items()
        ],
        adding=False,
    )


def _named(values: Iterable[int]) -> dict[str, int]:
    return dict(zip(COUNTERS, values, strict=True))


async def _marks(session: AsyncSession, keys: set[Key]) -> dict[Key, UsageMark]:
    columns = (UsageMarkRow.node, UsageMarkRow.tenant, UsageMarkRow.model, UsageMarkRow.space)
    wanted = sorted(keys)
    found: dict[Key, UsageMark] = {}
    for first in range(0, len(wanted), _AT_ONCE):
        part = wanted[first : first + _AT_ONCE]
        for row in await session.scalars(sa.select(UsageMarkRow).where(sa.tuple_(*columns).in_(part))):
            counts = tuple(getattr(row, name) for name in COUNTERS)
            found[row.node, row.tenant, row.model, row.space] = UsageMark(
                row.epoch, row.number, row.at, counts
            )
    return found


async def _upsert(
    session: AsyncSession, entity: type[UsageRow | UsageMarkRow], rows: list[dict[str, Any]], *, adding: bool
) -> None:
    """Insert rows. For existing keys, add to the counters (`adding`) or replace the values."""
    if not rows:
        return
    table = entity.__table__
    assert isinstance(table, sa.Table)
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    keys = [column.name for column in table.primary_key]
    names = COUNTERS if adding else [name for name in rows[0] if name not in keys]
    new = statement.excluded
    await session.execute(
        statement.on_conflict_do_update(
            index_elements=keys,
            set_={name: table.c[name] + new[name] if adding else new[name] for name in names},
        ),
        rows,
    )


async def forget_epochs(session: AsyncSession, node: str, epoch: str, before: float) -> None:
    """Delete old marks of a node's earlier processes: they are no longer needed."""
    await session.execute(
        sa.delete(UsageMarkRow).where(
            UsageMarkRow.node == node, UsageMarkRow.epoch != epoch, UsageMarkRow.at < before
        )
    )


@dataclass(frozen=True)
class UsageSum:
    """Usage of one model and space in one time step, for one group."""

    start: int
    group: str
    model: str
    space: str
    counts: tuple[float, ...]


GROUPS: Mapping[str, InstrumentedAttribute[str]] = {
    "tenant": UsageRow.tenant,
    "model": UsageRow.model,
    "node": UsageRow.node,
}


async def sums(
    session: AsyncSession,
    group_by: str,
    step_s: int,
    start: int,
    end: int,
    tenants: Iterable[str] | None,
    most: int,
) -> list[UsageSum]:
    """Return the sums of [start, end), by time and group. Return `most` + 1 rows if there are more than `most`."""
    group = GROUPS[group_by]
    step = UsageRow.hour - UsageRow.hour % step_s
    # Floating point, because a sum may exceed 63 bits.
    columns: list[Any] = [sa.func.sum(sa.cast(getattr(UsageRow, name), sa.Double())) for name in COUNTERS]
    where = [UsageRow.hour >= start, UsageRow.hour < end]
    if tenants is not None:
        where.append(UsageRow.tenant.in_(list(tenants)))
    keys: list[Any] = [step, group, UsageRow.model, UsageRow.space]
    query = sa.select(*(key.label(f"key_{at}") for at, key in enumerate(keys)), *columns).where(*where)
    names = [sa.text(f"key_{at}") for at in range(len(keys))]
    found = await session.execute(query.group_by(*names).order_by(*names).limit(most + 1))
    return [UsageSum(row[0], row[1], row[2], row[3], tuple(row[4:])) for row in found.all()]

"""The history of series: a row for each scope and step, with a column for each figure.

Rows of the shortest step are written; those of the longer ones are made from them in the same transaction, so that each
step is complete up to the newest row, and writing a time twice changes nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from app.observe.series import COLUMNS, COUNTERS, FLEET, is_tenant
from app.store.base.declarative import Base, insert, upsert

HOUR_S, DAY_S = 3600, 86_400
RETENTION_S: Mapping[int, int] = {10: 2 * HOUR_S, 120: 25 * HOUR_S, 1800: 30 * DAY_S}
"""Seconds for which rows are kept, by their step; each step is a multiple of the one before."""
STEP_S = min(RETENTION_S)
SCOPES = 50
"""Scopes whose old rows are deleted in a transaction."""


class SeriesRow(Base):
    """Figures of one scope for the step that ends at `at` (Unix seconds). A gauge is the mean of the step, a counter
    its increase in `measured_s` seconds; null if there is none."""

    __table__ = sa.Table(
        "series",
        Base.metadata,
        sa.Column("step_s", sa.BigInteger(), primary_key=True),
        sa.Column("scope", sa.String(256), primary_key=True),
        sa.Column("at", sa.BigInteger(), primary_key=True),
        sa.Column("measured_s", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.BigInteger()) for name in COLUMNS),
        sqlite_with_rowid=False,  # the key is long: a second copy of it, in an index, would be a third of the file
    )


_ROWS = SeriesRow.__table__.c


def _end(step_s: int) -> sa.ColumnElement[int]:
    """The end of the step that a row is in. Text: Postgres does not see that two parameters are equal."""
    return sa.literal_column(f"(at + {step_s - 1}) / {step_s} * {step_s}", sa.BigInteger())


async def newest(session: AsyncSession) -> int:
    """Return the time up to which rows are stored; 0 without any. If the rows of the shortest step are deleted, it is
    the end of a longer one."""
    newest_ends = [
        sa.select(sa.func.max(_ROWS.at)).where(_ROWS.step_s == step_s, _ROWS.scope == FLEET) for step_s in RETENTION_S
    ]
    return await session.scalar(sa.select(sa.func.coalesce(*(end.scalar_subquery() for end in newest_ends), 0))) or 0


async def add(session: AsyncSession, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows of the shortest step, or replace them, and make those of longer steps around them again."""
    for of_tenants in (False, True):  # they have different columns
        await upsert(session, SeriesRow, [row for row in rows if is_tenant(row["scope"]) is of_tenants])
    scopes, oldest = {row["scope"] for row in rows}, min(row["at"] for row in rows)
    for finer, step_s in pairwise(RETENTION_S):
        figures = [
            sa.cast(sa.func.sum(column) if name in COUNTERS else sa.func.round(sa.func.avg(column)), sa.BigInteger())
            for name, column in _ROWS.items()
            if name in COLUMNS
        ]
        measured_s = sa.cast(sa.func.sum(_ROWS.measured_s), sa.BigInteger())
        query = sa.select(sa.literal_column(str(step_s)), _ROWS.scope, _end(step_s), measured_s, *figures).where(
            _ROWS.step_s == finer, _ROWS.scope.in_(scopes), _ROWS.at > (oldest - 1) // step_s * step_s
        )
        statement = insert(session, SeriesRow).from_select(_ROWS.keys(), query.group_by(_ROWS.scope, _end(step_s)))
        changed = {name: statement.excluded[name] for name in ("measured_s", *COLUMNS)}
        keys = ("step_s", "scope", "at")
        await session.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed))


async def merged(
    session: AsyncSession,
    scopes: Collection[str],
    columns: Sequence[str],
    row_s: int,
    step_s: int,
    after: int,
    until: int,
) -> Sequence[Sequence[Any]]:
    """Return rows of the step `row_s` with times in (after, until], merged into those of `step_s`: the scope, the end
    of the step, the measured seconds and the value of each column."""
    values = [(sa.func.sum if name in COUNTERS else sa.func.avg)(sa.cast(_ROWS[name], sa.Double())) for name in columns]
    measured_s = sa.cast(sa.func.sum(_ROWS.measured_s), sa.BigInteger())
    query = sa.select(_ROWS.scope, _end(step_s), measured_s, *values).where(
        _ROWS.step_s == row_s, _ROWS.scope.in_(scopes), _ROWS.at > after, _ROWS.at <= until
    )
    return (await session.execute(query.group_by(_ROWS.scope, _end(step_s)))).all()


async def delete_old(session: AsyncSession, step_s: int, now: float, after: str | None) -> str | None:
    """Delete the rows of a step that need not be kept, of the scopes that follow `after` (None: of the first ones).
    Return the last of these scopes; None if there are no more. Each scope is a range of the key: nothing else is
    read."""
    old = _ROWS.at <= int(now) - RETENTION_S[step_s] - step_s
    for _ in range(SCOPES):
        first = sa.select(sa.func.min(_ROWS.scope)).where(_ROWS.step_s == step_s)
        after = await session.scalar(first if after is None else first.where(_ROWS.scope > after))
        if after is None:
            return None
        await session.execute(sa.delete(SeriesRow).where(_ROWS.step_s == step_s, _ROWS.scope == after, old))
    return after

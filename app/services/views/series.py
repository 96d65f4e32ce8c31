"""Series for charts, from the rows in the database and, for the newest points, in memory."""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from app.errors import Invalid, StoreUnavailable
from app.ingest.sampler import STEP_S, Point, Sampler
from app.observe.series import COUNTERS, FLEET, OTHER_TENANTS, SERIES, SeriesDeclaration, node_scope, tenant_scope
from app.schemas.views.series import SeriesAnswer, SeriesDescription, SeriesNames, SeriesValues
from app.services.base.checks import Faults
from app.services.base.fields import answer
from app.services.base.principals import Principal
from app.services.views.marks import Marks
from app.services.views.series_writer import SeriesWriter
from app.store.base.database import Database
from app.store.views import series
from app.store.views.series import DAY_S, HOUR_S, RETENTION_S
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.salts import salt_of, shown

MAX_NAMES = 50
MAX_SCOPES = 256
MAX_RANGE_S = 30 * DAY_S
MAX_POINTS = 720
"""Points of an answer for which the step is chosen."""
MAX_VALUES = 200_000
"""Values in one answer."""
STEPS_S = (10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600)
"""Steps that are chosen from: the last one is enough for MAX_RANGE_S."""
OLD_S, OLD_STEP_S = 25 * HOUR_S, 300
"""Age of times from which on steps are multiples of OLD_STEP_S, and that step."""


class SeriesQuery(NamedTuple):
    """A query, as it was sent."""

    names: Sequence[str]
    nodes: Sequence[str]
    tenants: Sequence[str]
    range_s: int
    step_s: int | None = None
    end: float | None = None


class _Grid(NamedTuple):
    """The time axis: the steps that end at first, first + step_s and so on."""

    first: int
    step_s: int
    points: int
    row_s: int
    """Step of the stored rows that are read."""

    @property
    def at(self) -> range:
        return range(self.first, self.first + self.points * self.step_s, self.step_s)

    @property
    def start(self) -> int:
        return self.first - self.step_s

    @property
    def merged_s(self) -> int:
        """Step to which rows are merged; if rows have a longer step than the answer, their values are repeated."""
        return max(self.step_s, self.row_s)

    def end(self, at: int) -> int:
        """Return the end of the merged step that a time is in."""
        return -(-at // self.merged_s) * self.merged_s


class _Subject(NamedTuple):
    """The subject of a series of the answer."""

    node: str | None
    tenant: str | None
    scopes: Sequence[str]
    """Scopes that are added up."""


_Row = Sequence[float | None]
"""The measured seconds of a step, and the value of each column."""


class SeriesService:
    def __init__(
        self,
        database: Database,
        sampler: Sampler,
        writer: SeriesWriter,
        marks: Marks,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._sampler = sampler
        self._writer = writer
        self._marks = marks
        self._clock = clock

    def names(self, by: Principal) -> SeriesNames:
        """Return the series that the caller can query."""
        items = [
            answer(SeriesDescription, declaration, scopes=declaration.scopes if by.salts is None else ["tenant"])
            for declaration in SERIES.values()
            if by.salts is None or "tenant" in declaration.scopes
        ]
        return SeriesNames(items, len(items))

    async def answer(self, query: SeriesQuery, by: Principal) -> SeriesAnswer:
        """Return series and marks. While the database is unavailable, the points in memory are returned. Raises
        Invalid, Forbidden."""
        declarations, subjects = self._checked(query, by)
        now = self._clock()
        end = now if query.end is None else min(query.end, now)
        grid = _grid(query, len(declarations) * len(subjects), end, now)
        scopes = sorted({scope for subject in subjects for scope in subject.scopes})
        columns = sorted({name for declaration in declarations for name in declaration.columns})
        rows, newest, problem = await self._read(scopes, columns, grid)
        points = [point for point in self._sampler.points if point.at > newest]
        values = await asyncio.to_thread(_answer, grid, declarations, subjects, rows, points, columns)
        marks = await self._marks.between(grid.start, end, query.nodes, query.tenants, by)
        return SeriesAnswer(grid.step_s, list(grid.at), values, marks, problem or self._writer.problem)

    def _checked(self, query: SeriesQuery, by: Principal) -> tuple[list[SeriesDeclaration], list[_Subject]]:
        """Raises Invalid, Forbidden."""
        faults = Faults()
        declarations: list[SeriesDeclaration] = []
        needs_tenant, needs_node = bool(query.tenants), bool(query.nodes)
        for name in dict.fromkeys(query.names):
            declaration = SERIES.get(name)
            if declaration is None:
                faults.add("name", f"expected one of {', '.join(SERIES)}; got {name[:64]!r}")
            elif needs_tenant and "tenant" not in declaration.scopes:
                tenant_series = ", ".join(series.name for series in SERIES.values() if "tenant" in series.scopes)
                faults.add("name", f"expected a series that is kept for tenants ({tenant_series}), got {name!r}")
            elif needs_node and "node" not in declaration.scopes:
                faults.add("name", f"expected a series that is kept for nodes, got {name!r}")
            else:
                declarations.append(declaration)
        faults.stop()
        return declarations, self._subjects(query, by)

    def _subjects(self, query: SeriesQuery, by: Principal) -> list[_Subject]:
        if query.nodes:
            by.check_whole("a series of a node")
        subjects = [_Subject(node, None, [node_scope(node)]) for node in dict.fromkeys(query.nodes)]
        for tenant in dict.fromkeys(query.tenants):
            if tenant == OTHER_TENANTS:
                by.check_whole("a series of other tenants")
            else:
                try:
                    by.check_salt(salt_of(tenant))
                except ProtocolError as error:
                    raise Invalid.at("tenant", error.message) from None
            subjects.append(_Subject(None, tenant, [tenant_scope(tenant)]))
        if subjects:
            return subjects
        if by.salts is None:
            return [_Subject(None, None, [FLEET])]
        return [_Subject(None, None, [tenant_scope(shown(salt)) for salt in sorted(by.salts)])]

    async def _read(
        self, scopes: Sequence[str], columns: Sequence[str], grid: _Grid
    ) -> tuple[Sequence[Sequence[Any]], int, str]:
        """Return the stored rows, the time of the newest one of all, and why they are missing."""
        end = grid.end(grid.at[-1])
        try:
            async with self._database.read() as session:
                rows = await series.merged(session, scopes, columns, grid.row_s, grid.merged_s, grid.start, end)
                return rows, await series.newest(session), ""
        except StoreUnavailable as error:
            return [], 0, f"stored points are missing: {error.message}"


def _grid(query: SeriesQuery, series_count: int, end: float, now: float) -> _Grid:
    """Return the time axis. Raises Invalid."""
    kept_steps = [step for step, retention_s in RETENTION_S.items() if end - query.range_s >= now - retention_s]
    finest = kept_steps[0] if kept_steps else max(RETENTION_S)
    step_s, least_s = query.step_s, OLD_STEP_S if end - query.range_s < now - OLD_S else STEP_S
    if step_s is None:
        step_s = next(step for step in STEPS_S if step % finest == 0 and query.range_s <= step * MAX_POINTS)
    elif step_s % least_s:
        note = "" if least_s == STEP_S else " for times more than a day ago"
        raise Invalid.at("step_s", f"expected a multiple of {least_s}{note}, got {step_s}")
    count = max(1, math.ceil(query.range_s / step_s))
    if count * series_count > MAX_VALUES:
        raise Invalid.at(
            "step_s",
            f"expected a step with which {series_count} series have at most {MAX_VALUES:,} values, got {step_s}, with "
            f"which they have {count * series_count:,}",
        )
    last = int(end // step_s) * step_s
    row_s = max((step for step in kept_steps if step_s % step == 0), default=finest)
    return _Grid(last - (count - 1) * step_s, step_s, count, row_s)


def _answer(
    grid: _Grid,
    declarations: Sequence[SeriesDeclaration],
    subjects: Sequence[_Subject],
    stored: Iterable[Sequence[Any]],
    points: Iterable[Point],
    columns: Sequence[str],
) -> list[SeriesValues]:
    parts: defaultdict[tuple[str, int], list[_Row]] = defaultdict(list)
    for scope, end, *row in stored:
        parts[scope, end].append(row)
    for point in points:
        for scope in {scope for subject in subjects for scope in subject.scopes}:
            if point.at > grid.start and (values := point.by_column(scope)):
                row = [point.measured_s(scope), *map(values.get, columns)]
                parts[scope, grid.end(point.at)].append(row)
    rows = {key: _merged(columns, part) if len(part) > 1 else part[0] for key, part in parts.items()}
    step_ends = [grid.end(at) for at in grid.at]
    return [
        SeriesValues(
            declaration.name,
            declaration.unit,
            subject.node,
            subject.tenant,
            _values(declaration, columns, [[rows.get((scope, end)) for end in step_ends] for scope in subject.scopes]),
        )
        for declaration in declarations
        for subject in subjects
    ]


def _merged(columns: Sequence[str], parts: Sequence[_Row]) -> _Row:
    """Return rows of one step as one: the sum of counters, the mean of gauges."""
    row: list[float | None] = [sum(part[0] or 0 for part in parts)]
    for index, name in enumerate(columns, 1):
        weighted = [(value, part[0] or STEP_S) for part in parts if (value := part[index]) is not None]
        if not weighted:
            row.append(None)
        elif name in COUNTERS:
            row.append(sum(value for value, _ in weighted))
        else:
            row.append(sum(value * weight for value, weight in weighted) / sum(weight for _, weight in weighted))
    return row


def _values(
    declaration: SeriesDeclaration, columns: Sequence[str], scopes: Sequence[Sequence[_Row | None]]
) -> list[float | None]:
    """Return the values of a series from the rows of its scopes."""
    first, *second = (columns.index(name) + 1 for name in declaration.columns)
    values: list[float | None] = []
    for rows in zip(*scopes, strict=True):
        total, divisor = 0.0, 0.0
        for row in rows:
            if row is None or (value := row[first]) is None:
                continue
            if declaration.form == "ratio":
                total, divisor = total + value, divisor + (row[second[0]] or 0)
            elif declaration.form == "gauge":
                total, divisor = total + value, 1
            elif row[0]:
                total, divisor = total + value / row[0], 1
        values.append(_rounded(total / divisor * declaration.factor) if divisor else None)
    return values


def _rounded(value: float) -> float:
    """Return a value with 6 significant digits after a point at most: charts show no more, and answers stay small."""
    return float(round(value)) if abs(value) >= 1e6 else float(f"{value:.6g}")

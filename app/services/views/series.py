"""Series for charts, from the points in the database and, for the newest ones, in memory."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from app.errors import Invalid, StoreUnavailable
from app.ingest.sampler import STEP_S, Point, Sampler, columns_of
from app.observe.series import COUNTERS, FLEET, OTHER_TENANTS, SERIES, SeriesDeclaration, node_scope, tenant_scope
from app.schemas.views.series import SeriesAnswer, SeriesDescription, SeriesNames, SeriesValues
from app.services.base.checks import Faults
from app.services.base.principals import Principal
from app.services.views.marks import Marks
from app.services.views.packed_points import MEASURED_S, Column, PackedScopes, unpack
from app.services.views.prometheus_series import PrometheusSeries, Selection
from app.services.views.series_writer import DAY_S, HOUR_S, RETENTION_S, ROLLED_STEP_S, SPANS, SeriesWriter
from app.store.base.database import Database
from app.store.views import series
from app.store.views.series import PackedSeries
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.salts import salt_of, shown

MAX_NAMES = 50
MAX_SCOPES = 256
MAX_RANGE_S = 400 * DAY_S
"""Longest range, with Prometheus."""
MAX_POINTS = 720
"""Points of an answer for which the step is chosen."""
MAX_VALUES = 200_000
"""Values in one answer."""
STEPS_S = (10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)
"""Steps that are chosen from: the last one is enough for MAX_RANGE_S."""


class SeriesQuery(NamedTuple):
    """A query, as it was sent."""

    names: Sequence[str]
    nodes: Sequence[str]
    tenants: Sequence[str]
    range_s: int
    step_s: int | None = None
    end: float | None = None


class _Grid(NamedTuple):
    """The time axis: bucket i is for the step that ends at first + i * step_s."""

    first: int
    step_s: int
    points: int
    stored_step_s: int
    """Step of the stored points that are read."""

    @property
    def start(self) -> int:
        return self.first - self.step_s

    @property
    def last(self) -> int:
        return self.first + (self.points - 1) * self.step_s


class _Subject(NamedTuple):
    """What a series of the answer is about."""

    node: str | None
    tenant: str | None
    scopes: Sequence[str]
    """Scopes that are added up."""

    @property
    def selection(self) -> Selection:
        """The same for Prometheus."""
        tenants = [scope[1:] for scope in self.scopes if scope.startswith("t")]
        return Selection(self.node, tenants or None)


@dataclass
class _Sums:
    """Values of one column of one scope, by bucket."""

    total: list[float]
    seconds: list[float]
    """Measured seconds of the bucket."""


@dataclass
class _Stored:
    """What the database has of the scopes and the time of a query."""

    blocks: Sequence[PackedSeries] = ()
    recent: Sequence[tuple[int, bytes]] = ()
    problem: str = ""
    newest: int = field(default=0)
    """Time of the newest stored point."""


class SeriesService:
    def __init__(
        self,
        database: Database,
        sampler: Sampler,
        writer: SeriesWriter,
        marks: Marks,
        clock: Callable[[], float] = time.time,
        prometheus: PrometheusSeries | None = None,
    ) -> None:
        """`prometheus` has the times before those that are kept."""
        self._prometheus = prometheus
        self._database = database
        self._sampler = sampler
        self._writer = writer
        self._marks = marks
        self._clock = clock

    def names(self, by: Principal) -> SeriesNames:
        """Return the series that the caller can query."""
        items = [
            SeriesDescription(each.name, each.unit, each.meaning, each.scopes)
            for each in SERIES.values()
            if by.salts is None or "tenant" in each.scopes
        ]
        if by.salts is not None:
            items = [SeriesDescription(each.name, each.unit, each.meaning, ["tenant"]) for each in items]
        return SeriesNames(items, len(items))

    async def answer(self, query: SeriesQuery, by: Principal) -> SeriesAnswer:
        """Return series and marks. While the database is unavailable, the points in memory are returned. Raises
        Invalid, Forbidden."""
        declarations, subjects = self._checked(query, by)
        now = self._clock()
        if query.range_s > RETENTION_S[ROLLED_STEP_S] and self._prometheus is None:
            raise Invalid.at(
                "range_s",
                f"expected at most {RETENTION_S[ROLLED_STEP_S]} without a Prometheus (app.prometheus_url), got "
                f"{query.range_s}",
            )
        end = now if query.end is None else min(query.end, now)
        grid = _grid(query, len(declarations) * len(subjects), end, now)
        if self._prometheus is not None and end - query.range_s < now - RETENTION_S[ROLLED_STEP_S] - HOUR_S:
            found, problem = await self._from_prometheus(self._prometheus, grid, declarations, subjects)
        else:
            scopes = sorted({scope for subject in subjects for scope in subject.scopes})
            stored = await self._read(scopes, grid)
            points = list(self._sampler.points)
            found = await asyncio.to_thread(_series, grid, declarations, subjects, stored, points)
            problem = stored.problem or self._writer.problem
        at = [grid.first + index * grid.step_s for index in range(grid.points)]
        marks = await self._marks.between(grid.start, end, query.nodes, query.tenants, by)
        return SeriesAnswer(grid.step_s, at, found, marks, problem)

    async def _from_prometheus(
        self,
        prometheus: PrometheusSeries,
        grid: _Grid,
        declarations: Sequence[SeriesDeclaration],
        subjects: Sequence[_Subject],
    ) -> tuple[list[SeriesValues], str]:
        pairs = [(each, subject) for each in declarations for subject in subjects]
        selections = [(each, subject.selection) for each, subject in pairs]
        values, problem = await prometheus.values(selections, grid.first, grid.last, grid.step_s)
        return [
            SeriesValues(
                each.name,
                each.unit,
                subject.node,
                subject.tenant,
                [None if value is None else _rounded(value) for value in found],
            )
            for (each, subject), found in zip(pairs, values, strict=True)
        ], problem

    def _checked(self, query: SeriesQuery, by: Principal) -> tuple[list[SeriesDeclaration], list[_Subject]]:
        """Raises Invalid, Forbidden."""
        faults = Faults()
        found: list[SeriesDeclaration] = []
        needs_tenant, needs_node = bool(query.tenants), bool(query.nodes)
        for name in dict.fromkeys(query.names):
            each = SERIES.get(name)
            if each is None:
                faults.add("name", f"expected one of {', '.join(SERIES)}; got {name[:64]!r}")
            elif needs_tenant and "tenant" not in each.scopes:
                known = ", ".join(other.name for other in SERIES.values() if "tenant" in other.scopes)
                faults.add("name", f"expected a series that is kept for tenants ({known}), got {name!r}")
            elif needs_node and "node" not in each.scopes:
                faults.add("name", f"expected a series that is kept for nodes, got {name!r}")
            else:
                found.append(each)
        faults.stop()
        return found, self._subjects(query, by)

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

    async def _read(self, scopes: Sequence[str], grid: _Grid) -> _Stored:
        hour = grid.start // HOUR_S * HOUR_S
        try:
            async with self._database.read() as session:
                found = list(await series.blocks(session, scopes, STEP_S, hour, grid.last))
                if grid.stored_step_s == ROLLED_STEP_S:
                    day = grid.start // DAY_S * DAY_S
                    found += await series.blocks(session, scopes, ROLLED_STEP_S, day, grid.last)
                recent = await series.recent(session, grid.start, (grid.last // HOUR_S + 1) * HOUR_S)
                newest = await series.newest(session, SPANS)
        except StoreUnavailable as error:
            return _Stored(problem=f"stored points are missing: {error.message}")
        return _Stored(found, recent, newest=newest)


def _grid(query: SeriesQuery, series_count: int, end: float, now: float) -> _Grid:
    """Return the time axis. Raises Invalid."""
    stored_step_s = STEP_S if end - query.range_s >= now - RETENTION_S[STEP_S] else ROLLED_STEP_S
    step_s = query.step_s
    if step_s is None:
        fits = [step for step in STEPS_S if step % stored_step_s == 0 and query.range_s <= step * MAX_POINTS]
        step_s = fits[0] if fits else STEPS_S[-1]
    elif step_s % stored_step_s:
        note = "" if stored_step_s == STEP_S else " for times more than a day ago"
        raise Invalid.at("step_s", f"expected a multiple of {stored_step_s}{note}, got {step_s}")
    count = max(1, math.ceil(query.range_s / step_s))
    if count * series_count > MAX_VALUES:
        raise Invalid.at(
            "step_s",
            f"expected a step with which {series_count} series have at most {MAX_VALUES:,} values, got {step_s}, with "
            f"which they have {count * series_count:,}",
        )
    last = int(end // step_s) * step_s
    return _Grid(last - (count - 1) * step_s, step_s, count, stored_step_s)


def _series(
    grid: _Grid,
    declarations: Sequence[SeriesDeclaration],
    subjects: Sequence[_Subject],
    stored: _Stored,
    points: Sequence[Point],
) -> list[SeriesValues]:
    scopes = sorted({scope for subject in subjects for scope in subject.scopes})
    columns = {name for each in declarations for name in each.columns}
    sums = _collect(grid, scopes, columns, stored, points)
    return [
        SeriesValues(
            each.name, each.unit, subject.node, subject.tenant, _values(each, subject.scopes, sums, grid.points)
        )
        for each in declarations
        for subject in subjects
    ]


def _collect(
    grid: _Grid, scopes: Sequence[str], columns: set[str], stored: _Stored, points: Sequence[Point]
) -> dict[tuple[str, str], _Sums]:
    """Return the sums of each scope and column. Each time is counted once: from the rows of a day, of an hour, from
    recent points or from memory, in this order."""
    sums: dict[tuple[str, str], _Sums] = {}
    names = columns | {MEASURED_S}
    covered: dict[str, set[tuple[int, int]]] = {scope: set() for scope in scopes}
    """Step and start of the rows of each scope."""
    for block in sorted(stored.blocks, key=lambda each: -each.step_s):
        day = (ROLLED_STEP_S, block.start // DAY_S * DAY_S)
        if block.step_s == STEP_S and day in covered[block.scope]:
            continue
        covered[block.scope].add((block.step_s, block.start))
        found = unpack(block.points, names)
        measured = found.pop(MEASURED_S, None)
        for name, values in found.items():
            _add(sums, (block.scope, name), grid, block.start, block.step_s, values, measured)
    seen: dict[str, set[int]] = {scope: set() for scope in scopes}
    for row in (PackedScopes(packed) for _, packed in stored.recent):
        for scope in scopes:
            _add_recent(sums, scope, grid, row.start, row.columns(scope, columns), covered, seen)
    for point in points:
        if point.at <= stored.newest:
            continue
        for scope in scopes:
            sampled = point.values(scope)
            if sampled is not None:
                named = zip(columns_of(scope), sampled, strict=True)
                found = {name: [value] for name, value in named if name in columns}
                _add_recent(sums, scope, grid, point.at - STEP_S, found, covered, seen)
    return sums


def _add_recent(
    sums: dict[tuple[str, str], _Sums],
    scope: str,
    grid: _Grid,
    start: int,
    columns: dict[str, Column],
    covered: dict[str, set[tuple[int, int]]],
    seen: dict[str, set[int]],
) -> None:
    """Add points that no row of their hour or day has, and that were not added before."""
    if not columns:
        return
    if (STEP_S, start // HOUR_S * HOUR_S) in covered[scope]:
        return
    count = len(next(iter(columns.values())))
    times = range(start + STEP_S, start + (count + 1) * STEP_S, STEP_S)
    if not seen[scope].isdisjoint(times):
        columns = {
            name: [None if at in seen[scope] else value for at, value in zip(times, values, strict=True)]
            for name, values in columns.items()
        }
    seen[scope].update(times)
    for name, values in columns.items():
        _add(sums, (scope, name), grid, start, STEP_S, values, None)


def _add(
    sums: dict[tuple[str, str], _Sums],
    key: tuple[str, str],
    grid: _Grid,
    start: int,
    step_s: int,
    values: Column,
    measured: Column | None,
) -> None:
    """Add a column's points, the first of which is for the step that begins at `start`."""
    found = sums.get(key)
    if found is None:
        found = sums[key] = _Sums([0.0] * grid.points, [0.0] * grid.points)
    per_bucket = grid.step_s // step_s
    offset = (grid.start - start) // step_s
    begin, end = max(0, offset), min(len(values), offset + grid.points * per_bucket)
    has_nulls, counts = None in values, key[1] in COUNTERS
    for bucket in range((begin - offset) // per_bucket, -((offset - end) // per_bucket)):
        first = offset + bucket * per_bucket
        part = slice(max(begin, first), min(end, first + per_bucket))
        known = values[part]
        if has_nulls:
            known = [value for value in known if value is not None]
        if not known:
            continue
        total = sum(known)  # type: ignore[arg-type]
        seconds = len(known) * step_s
        if counts and measured is not None:
            pairs = zip(values[part], measured[part], strict=True)
            seconds = sum(each or step_s for value, each in pairs if value is not None)
        found.total[bucket] += total if counts else total * step_s
        found.seconds[bucket] += seconds


def _values(
    each: SeriesDeclaration, scopes: Iterable[str], sums: dict[tuple[str, str], _Sums], count: int
) -> list[float | None]:
    """Return the values of a series, over all of its scopes."""
    parts = [[sums.get((scope, name)) for name in each.columns] for scope in scopes]
    return [_value(each, parts, index) for index in range(count)]


def _value(each: SeriesDeclaration, parts: Sequence[Sequence[_Sums | None]], index: int) -> float | None:
    if each.form == "ratio":
        part = sum(one[0].total[index] for one in parts if one[0] is not None)
        whole = sum(one[1].total[index] for one in parts if one[1] is not None)
        return _rounded(part / whole * each.factor) if whole else None
    known = [
        one[0].total[index] / one[0].seconds[index] for one in parts if one[0] is not None and one[0].seconds[index]
    ]
    return _rounded(sum(known) * each.factor) if known else None


def _rounded(value: float) -> float:
    """Return a value with 6 significant digits after a point at most: charts show no more, and answers stay small."""
    return float(round(value)) if abs(value) >= 1e6 else float(f"{value:.6g}")

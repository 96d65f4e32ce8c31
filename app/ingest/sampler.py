"""Samples the reports of nodes every `STEP_S` seconds: the newest points of all series, in memory.

Every manager samples; the leader also writes its points to the database. Another manager that becomes the leader
therefore has the points since the last write.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from app.observe.series import (
    FLEET,
    NODE_COLUMNS,
    OTHER_TENANTS,
    TENANT_COLUMNS,
    SeriesColumn,
    is_tenant,
    node_scope,
    tenant_scope,
)
from dataplane.protocol.stats.node import NodeStats

STEP_S = 10
MAX_POINTS = 180
"""Points that are kept in memory: half an hour, for a database that is away."""
MAX_TENANTS = 200
"""Tenants with series of their own; the others are summed."""
CHOICE_S = 3600
"""Seconds after which these tenants are chosen again."""
MAX_GAP_S = 60
"""Longest time between two samples of a node whose difference counts as the increase of one point."""
MAX_REMEMBERED = 10_000
"""Tenants of one node whose last counters are remembered."""
Values = tuple[int | None, ...]
"""A value for each column."""


class Point(NamedTuple):
    """The values of all scopes at one time."""

    at: int
    """Unix seconds, a multiple of STEP_S. Counters are increases of the step that ends here."""
    packed: Mapping[str, bytes]
    """Values by scope, in MessagePack."""

    def values(self, scope: str) -> Values | None:
        """Return the values of a scope, in the order of `columns_of`; None if it was not sampled."""
        packed = self.packed.get(scope)
        return None if packed is None else _decoder.decode(packed)

    def by_column(self, scope: str) -> dict[str, int | None]:
        """Return the values of a scope by column; empty if it was not sampled."""
        values = self.values(scope)
        return {} if values is None else dict(zip(columns_of(scope), values, strict=True))

    def measured_s(self, scope: str) -> int:
        """Return the seconds in which the counters of a scope increased: those of one scope are measured together."""
        return 0 if self.by_column(scope).get("requested_blocks") is None else STEP_S


def columns_of(scope: str) -> Mapping[str, SeriesColumn]:
    return TENANT_COLUMNS if is_tenant(scope) else NODE_COLUMNS


_decoder = msgspec.msgpack.Decoder(Values)
_encoder = msgspec.msgpack.Encoder()
_NODE = list(NODE_COLUMNS.values())
_TENANT = list(TENANT_COLUMNS.values())
_OF_NODE = [column.of_node for column in _NODE if column.of_node]
_OF_TENANT = [column.of_tenant for column in _TENANT if column.of_tenant]


@dataclass
class _Counted:
    """Last values of one process of a node."""

    epoch: str
    at: int
    values: Sequence[int | None]
    tenants: dict[str, Sequence[int | None]] = field(default_factory=dict)
    forgot: bool = False
    """Whether counters of tenants were forgotten, so that a tenant without any is not known to be new."""


class Sampler:
    """Takes samples, and has the newest points. `sample` may run in a thread while others read."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=MAX_POINTS)
        """Oldest first."""
        self._counted: dict[str, _Counted] = {}
        self._chosen: set[str] = set()
        self._choice = -1
        self._requested: dict[str, int] = {}
        """Requested blocks of tenants since the last choice."""

    def is_due(self, now: float) -> bool:
        return not self.points or int(now // STEP_S) * STEP_S > self.points[-1].at

    def sample(self, now: float, stats: Iterable[NodeStats]) -> None:
        """Add a point for the step that ended last. Without reports, or for a time that has a point, there is none."""
        at = int(now // STEP_S) * STEP_S
        reports = list(stats)
        if not reports or (self.points and at <= self.points[-1].at):
            return
        nodes: dict[str, Values] = {}
        tenants: dict[str, list[Values]] = {}
        for node in reports:
            nodes[node.node] = self._count(node, at, tenants)
        self._counted = {
            name: counted for name, counted in self._counted.items() if name in nodes or at - counted.at <= MAX_GAP_S
        }
        values_by_scope = {node_scope(name): values for name, values in nodes.items()}
        values_by_scope[FLEET] = _sum(_NODE, list(nodes.values()))
        sums = {name: _sum(_TENANT, parts) for name, parts in tenants.items()}
        self._choose(at, sums)
        folded: list[Values] = []
        for name, values in sums.items():
            if name in self._chosen:
                values_by_scope[tenant_scope(name)] = values
            else:
                folded.append(values)
        folded += [unlisted for node in reports if (unlisted := self._unlisted_values(node)) is not None]
        if folded:
            values_by_scope[tenant_scope(OTHER_TENANTS)] = _sum(_TENANT, folded)
        self.points.append(Point(at, {scope: _encoder.encode(values) for scope, values in values_by_scope.items()}))

    def _count(self, node: NodeStats, at: int, tenants: dict[str, list[Values]]) -> Values:
        """Return the values of a node, and add those of its tenants."""
        values = [read(node) for read in _OF_NODE]
        before = self._counted.get(node.node)
        if before is not None and at - before.at > MAX_GAP_S:
            before = None
        counted = _Counted(node.epoch, at, values)
        restarted = before is not None and before.epoch != node.epoch
        if before is not None and not restarted:
            counted.tenants, counted.forgot = before.tenants, before.forgot
        # A process that replaced a sampled one counts from 0; what another process did before its first sample is
        # not known.
        last: Sequence[int | None] | None = None
        if before is not None:
            last = [0] * len(values) if restarted else before.values
        for tenant in node.tenants:
            now = [read(tenant) for read in _OF_TENANT]
            base = counted.tenants.get(tenant.tenant)
            if base is None and before is not None and not counted.forgot:
                base = [0] * len(now)
            tenants.setdefault(tenant.tenant, []).append(_increases(_TENANT, now, base))
            counted.tenants[tenant.tenant] = now
        self._forget(counted, node)
        self._counted[node.node] = counted
        return _increases(_NODE, values, last)

    def _unlisted_values(self, node: NodeStats) -> Values | None:
        """Return the values of the tenants that a node does not list."""
        if node.other_tenants is None:
            return None
        counted = self._counted[node.node]
        now = [read(node.other_tenants) for read in _OF_TENANT]
        base = counted.tenants.get(OTHER_TENANTS)
        counted.tenants[OTHER_TENANTS] = now
        return _increases(_TENANT, now, base)

    def _forget(self, counted: _Counted, node: NodeStats) -> None:
        if len(counted.tenants) <= MAX_REMEMBERED:
            return
        listed = {tenant.tenant for tenant in node.tenants} | {OTHER_TENANTS}
        counted.tenants = {name: values for name, values in counted.tenants.items() if name in listed}
        counted.forgot = True

    def _choose(self, at: int, sums: Mapping[str, Values]) -> None:
        """Choose the tenants with series of their own: those with the largest share of the bytes or of the requested
        blocks. They change once an hour; until then, new tenants get the places that are free."""
        for name, values in sums.items():
            self._requested[name] = self._requested.get(name, 0) + (values[_REQUESTED] or 0)
        turn = (at - 1) // CHOICE_S
        if turn == self._choice and (len(self._chosen) >= MAX_TENANTS or self._chosen.issuperset(sums)):
            return
        used = {name: values[_USED] or 0 for name, values in sums.items()}
        all_used, all_requested = sum(used.values()) or 1, sum(self._requested.values()) or 1

        def rank(name: str) -> tuple[float, str]:
            return -max(used[name] / all_used, self._requested.get(name, 0) / all_requested), name

        chosen = self._chosen if turn == self._choice else set()
        ranked = sorted((name for name in used if name not in chosen), key=rank)
        self._chosen = chosen | set(ranked[: MAX_TENANTS - len(chosen)])
        if turn != self._choice:
            self._choice, self._requested = turn, {}


_LARGEST = 2**50
"""Largest value of a tenant or node."""
_LARGEST_SUM = 2**55
"""Largest sum over nodes or tenants: those of half an hour fit into 64 bits."""
_USED = list(TENANT_COLUMNS).index("used_bytes")
_REQUESTED = list(TENANT_COLUMNS).index("requested_blocks")


def _increases(
    columns: Sequence[SeriesColumn], now: Sequence[int | None], before: Sequence[int | None] | None
) -> Values:
    """Return gauges as they are, and the increase of counters: None without values from before. A counter that fell
    did not increase: an engine can make it wrap around. Values are bounded, so that sums can be stored."""
    increases: list[int | None] = []
    for column, value, was in zip(columns, now, before or [None] * len(now), strict=True):
        if value is None or (column.is_counter and before is None):
            increases.append(None)
        else:
            increases.append(min(max(0, value - (was or 0) if column.is_counter else value), _LARGEST))
    return tuple(increases)


def _sum(columns: Sequence[SeriesColumn], parts: Sequence[Values]) -> Values:
    """Return the sum of each column over its parts, or the largest where values do not add up."""
    totals: list[int | None] = []
    for column, values in zip(columns, zip(*parts, strict=True), strict=True):
        present = [value for value in values if value is not None]
        totals.append(min(sum(present) if column.adds else max(present), _LARGEST_SUM) if present else None)
    return tuple(totals)

"""Rates of the last seconds, from a sample of the nodes' totals each second. The sampler keeps longer times."""

from collections import deque
from collections.abc import Iterable

import msgspec

from app.schemas.views.overview import RecentRates
from dataplane.protocol.stats.node import NodeStats

RATE_S = 5.0
HIT_RATIO_S = 60.0
SAMPLES = 75
"""Samples that are kept: those of HIT_RATIO_S, and some more, because a sample may be late."""


class FleetTotals(msgspec.Struct, frozen=True):
    """Counters of the fleet at one moment. They only grow, even when nodes restart."""

    at: float
    requested_blocks: int = 0
    hit_blocks: int = 0
    stored_bytes: int = 0
    read_bytes: int = 0
    evicted_blocks: int = 0


_COUNTERS = ("requested_blocks", "hit_blocks", "stored_bytes", "read_bytes", "evicted_blocks")


class RateMeter:
    """Takes a sample per second; returns rates."""

    def __init__(self) -> None:
        self._points: deque[FleetTotals] = deque(maxlen=SAMPLES)
        self._last: dict[tuple[str, str], dict[str, int]] = {}
        self._sums = dict.fromkeys(_COUNTERS, 0)

    def sample(self, at: float, stats: Iterable[NodeStats]) -> None:
        """Add a sample of the nodes' latest stats. Without stats there is none."""
        stats = list(stats)
        if not stats:
            return
        for node in stats:
            self._count(node)
        self._points.append(FleetTotals(at, **self._sums))

    def _count(self, node: NodeStats) -> None:
        now = {name: getattr(node.totals, name) for name in _COUNTERS}
        before = self._last.get((node.node, node.epoch))
        if before is None:
            # First sample of a process: ignore its earlier activity, unless its predecessor was sampled.
            earlier_keys = [key for key in self._last if key[0] == node.node]
            before = dict.fromkeys(_COUNTERS, 0) if earlier_keys else now
            for key in earlier_keys:
                del self._last[key]
        for name in _COUNTERS:
            self._sums[name] += max(now[name] - before[name], 0)
        self._last[node.node, node.epoch] = now

    def rates(self, stats: Iterable[NodeStats]) -> RecentRates:
        """Return the rates of the most recent seconds. Totals come from the nodes' own counters."""
        stats = list(stats)
        requested = sum(node.totals.requested_blocks for node in stats)
        hit = sum(node.totals.hit_blocks for node in stats)
        if not self._points:
            return RecentRates(None, _ratio(hit, requested), 0.0, 0.0, 0.0)
        newest = self._points[-1]
        recent = self._before(newest.at - RATE_S)
        minute = self._before(newest.at - HIT_RATIO_S)
        span = newest.at - recent.at
        return RecentRates(
            hit_ratio=_ratio(newest.hit_blocks - minute.hit_blocks, newest.requested_blocks - minute.requested_blocks),
            hit_ratio_total=_ratio(hit, requested),
            stored_bytes_per_s=_per_s(newest.stored_bytes - recent.stored_bytes, span),
            read_bytes_per_s=_per_s(newest.read_bytes - recent.read_bytes, span),
            evicted_blocks_per_s=_per_s(newest.evicted_blocks - recent.evicted_blocks, span),
        )

    def _before(self, at: float) -> FleetTotals:
        for point in reversed(self._points):
            if point.at <= at:
                return point
        return self._points[0]


def _ratio(part: int, total: int) -> float | None:
    return part / total if total > 0 else None


def _per_s(amount: int, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0

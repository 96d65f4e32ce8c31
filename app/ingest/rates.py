"""Rates of the last seconds, from a sample of the nodes' totals each second. The sampler keeps longer times."""

from collections import deque
from collections.abc import Iterable

from app.schemas.views.overview import RecentRates
from dataplane.protocol.stats.node import NodeStats

RATE_S = 5.0
HIT_RATIO_S = 60.0
SAMPLES = 75
"""Samples that are kept: those of HIT_RATIO_S, and some more, because a sample may be late."""


_COUNTERS = ("requested_blocks", "hit_blocks", "stored_bytes", "read_bytes", "evicted_blocks")
_Point = tuple[float, dict[str, int]]
"""Unix seconds, and counters of the fleet. They only grow, even when nodes restart."""


class RateMeter:
    """Takes a sample per second; returns rates."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque(maxlen=SAMPLES)
        self._last: dict[tuple[str, str], dict[str, int]] = {}
        self._sums = dict.fromkeys(_COUNTERS, 0)

    def sample(self, at: float, stats: Iterable[NodeStats]) -> None:
        """Add a sample of the nodes' latest stats. Without stats there is none."""
        stats = list(stats)
        if not stats:
            return
        for node in stats:
            self._count(node)
        self._points.append((at, dict(self._sums)))

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
        now, newest = self._points[-1]
        then, recent = self._before(now - RATE_S)
        _, minute = self._before(now - HIT_RATIO_S)

        def per_s(name: str) -> float:
            return (newest[name] - recent[name]) / (now - then) if now > then else 0.0

        return RecentRates(
            hit_ratio=_ratio(*(newest[name] - minute[name] for name in ("hit_blocks", "requested_blocks"))),
            hit_ratio_total=_ratio(hit, requested),
            stored_bytes_per_s=per_s("stored_bytes"),
            read_bytes_per_s=per_s("read_bytes"),
            evicted_blocks_per_s=per_s("evicted_blocks"),
        )

    def _before(self, at: float) -> _Point:
        return next((point for point in reversed(self._points) if point[0] <= at), self._points[0])


def _ratio(part: int, total: int) -> float | None:
    return part / total if total > 0 else None

"""Distributions of ages of blocks, in seconds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dataplane.protocol.layout import I64
from dataplane.protocol.stats.histogram import Histogram

AGE_BOUNDS_S = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0, 259200.0, 604800.0)
MAX_WAITING = 16_384


class AgeHistogram:
    """Histogram of ages. Buffers start times and bins many at once, because a numpy call per batch would cost more than
    the batch."""

    def __init__(self, per_second: float = 1.0) -> None:
        """`per_second` is the number of time units per second: 1e9 for nanoseconds."""
        self._per_second = per_second
        self._counts: I64 = np.zeros(len(AGE_BOUNDS_S) + 1, np.int64)
        self._total = 0.0
        self._since: list[float] = []
        self._now: list[float] = []
        self._batches: list[int] = []
        """Size of each batch in `_since`, whose time is in `_now`."""

    def add(self, since: Iterable[float], now: float) -> None:
        """Add the ages at `now` (Unix seconds). A negative one, after a clock was set back, counts as 0."""
        before = len(self._since)
        self._since += since
        self._now.append(now)
        self._batches.append(len(self._since) - before)
        if len(self._since) >= MAX_WAITING:
            self._settle()

    def _settle(self) -> None:
        since = np.array(self._since) / self._per_second
        ages = np.maximum(np.repeat(self._now, self._batches) - since, 0.0)
        for waiting in (self._since, self._now, self._batches):
            waiting.clear()
        buckets = np.searchsorted(AGE_BOUNDS_S, ages)
        self._counts += np.bincount(buckets, minlength=len(self._counts))
        self._total += float(ages.sum())

    def stats(self) -> Histogram:
        """Return the counts since the process started."""
        if self._since:
            self._settle()
        return Histogram(list(AGE_BOUNDS_S), self._counts.tolist(), self._total)

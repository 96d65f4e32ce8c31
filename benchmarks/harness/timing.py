"""Clocks and medians."""

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns

import numpy as np
from numpy.typing import ArrayLike

RESAMPLES = 2_000


def time_ns(action: Callable[[], object], times: int) -> list[int]:
    """How long each of `times` calls took."""
    taken = []
    for _ in range(times):
        start = perf_counter_ns()
        action()
        taken.append(perf_counter_ns() - start)
    return taken


def once_ns(action: Callable[[], object]) -> int:
    """How long one call took."""
    start = perf_counter_ns()
    action()
    return perf_counter_ns() - start


def interval(samples: ArrayLike) -> tuple[float, float]:
    """95 % of the medians of samples that are drawn from these with replacement."""
    every = np.asarray(samples)
    drawn = np.random.default_rng(1).choice(every, (RESAMPLES, len(every)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return float(low), float(high)


class Latency:
    """Samples of two actions that take turns, a run of each at a time."""

    def __init__(
        self, action: Callable[[], object], baseline: Callable[[], object], *, runs: int, samples: int
    ) -> None:
        measured = []
        beside = []
        action()
        baseline()
        for _ in range(runs):
            measured.append(time_ns(action, samples))
            beside.append(time_ns(baseline, samples))
        self._measured = measured
        self._beside = beside

    def us(self, percentile: float) -> float:
        """Median over the runs of a percentile, in microseconds."""
        return _percentile_us(self._measured, percentile)

    def baseline_us(self, percentile: float) -> float:
        """The same of the baseline."""
        return _percentile_us(self._beside, percentile)


class Throughput:
    """Two actions that move the same bytes and take turns."""

    def __init__(
        self, action: Callable[[], object], baseline: Callable[[], object], nbytes: int, *, rounds: int
    ) -> None:
        pairs = [(once_ns(action), once_ns(baseline)) for _ in range(rounds)]
        self.gbps = median(nbytes / taken for taken, _ in pairs)
        """GB/s of the action, 10^9 bytes a second."""
        self.baseline_gbps = median(nbytes / taken for _, taken in pairs)
        self.ratio = median(beside / taken for taken, beside in pairs)
        """Speed of the action over speed of the baseline, pair by pair."""


def _percentile_us(runs: list[list[int]], percentile: float) -> float:
    return median(float(np.percentile(run, percentile)) for run in runs) / 1e3

"""Clocks and medians."""

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns

import numpy as np
from numpy.typing import ArrayLike

RESAMPLES = 2_000


def time_ns(action: Callable[[], object], times: int) -> list[int]:
    """How long each of `times` calls took."""
    times_ns = []
    for _ in range(times):
        start = perf_counter_ns()
        action()
        times_ns.append(perf_counter_ns() - start)
    return times_ns


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
        action_times = []
        baseline_times = []
        action()
        baseline()
        for _ in range(runs):
            action_times.append(time_ns(action, samples))
            baseline_times.append(time_ns(baseline, samples))
        self._action_times = action_times
        self._baseline_times = baseline_times

    def us(self, percentile: float) -> float:
        """Median over the runs of a percentile, in microseconds."""
        return _percentile_us(self._action_times, percentile)

    def baseline_us(self, percentile: float) -> float:
        """The same of the baseline."""
        return _percentile_us(self._baseline_times, percentile)


class Throughput:
    """Two actions that move the same bytes and take turns."""

    def __init__(
        self, action: Callable[[], object], baseline: Callable[[], object], nbytes: int, *, rounds: int
    ) -> None:
        pairs = [(once_ns(action), once_ns(baseline)) for _ in range(rounds)]
        self.gbps = median(nbytes / action_ns for action_ns, _ in pairs)
        """GB/s of the action, 10^9 bytes a second."""
        self.baseline_gbps = median(nbytes / baseline_ns for _, baseline_ns in pairs)
        self.ratio = median(baseline_ns / action_ns for action_ns, baseline_ns in pairs)
        """Speed of the action over speed of the baseline, pair by pair."""


def _percentile_us(runs: list[list[int]], percentile: float) -> float:
    return median(float(np.percentile(run, percentile)) for run in runs) / 1e3

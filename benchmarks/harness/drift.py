"""Measures whether a figure that is sampled over time still grows after a warm-up."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WARM_UP = 1 / 3
"""Leading part of a run that is left out: a new process has to grow."""
WINDOWS = 12
"""Number of windows into which the rest is divided. The smallest sample of each counts, because use varies."""
STUDENT_T = 2.228
"""Of 95 %, for WINDOWS - 2 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Growth per hour of a sampled figure, in the figure's unit, with a 95 % interval."""

    low: float
    per_hour: float
    high: float

    def __str__(self) -> str:
        return f"{self.per_hour:,.0f} per hour (95 %: {self.low:,.0f} to {self.high:,.0f})"


def drift(samples: Sequence[tuple[float, float]]) -> Drift | None:
    """Return the slope, by least squares, of samples (time in seconds, value) after the warm-up; None if there are
    fewer than two for each window."""
    if not samples:
        return None
    every = np.array(sorted(samples), float)
    begin, end = every[0, 0], every[-1, 0]
    begin += (end - begin) * WARM_UP
    warm = every[every[:, 0] >= begin]
    if len(warm) < 2 * WINDOWS:
        return None
    at = np.minimum(((warm[:, 0] - begin) / (end - begin) * WINDOWS).astype(int), WINDOWS - 1)
    used = np.unique(at)
    if len(used) < WINDOWS:
        return None
    hours = np.array([warm[at == window, 0].mean() for window in used]) / 3600
    minima = np.array([warm[at == window, 1].min() for window in used])
    centred = hours - hours.mean()
    spread = float((centred**2).sum())
    slope = float((centred * minima).sum()) / spread
    residuals = minima - minima.mean() - slope * centred
    error = float(np.sqrt((residuals**2).sum() / (WINDOWS - 2) / spread)) * STUDENT_T
    return Drift(slope - error, slope, slope + error)

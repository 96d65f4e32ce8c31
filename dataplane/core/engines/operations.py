"""Accumulate the durations of operations, which clients count in their areas. Counts of clients are untrusted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dataplane.protocol.layout import I64, OPERATION_BOUNDS_NS, OPERATIONS, U64, AreaMemory
from dataplane.protocol.stats.histogram import Histogram

MAX_PER_S = 200_000
"""Operations that one process can complete in a second; the fastest takes more than 5 microseconds."""
MAX_AT_ONCE = 10_000
MAX_ELAPSED_S = 3600.0
LONGEST_S = 3600.0
"""Maximum number of seconds that an operation beyond the last bound counts as."""
_BOUNDS_S = [bound / 1e9 for bound in OPERATION_BOUNDS_NS]
_SHORTEST = np.array([0.0, *_BOUNDS_S])
_LONGEST = np.array([*_BOUNDS_S, LONGEST_S])


class OperationTotals:
    """Durations of the operations of all engines since the process started. Never decreases."""

    def __init__(self) -> None:
        self.counts: I64 = np.zeros((len(OPERATIONS), len(_LONGEST)), np.int64)
        self.seconds: npt.NDArray[np.float64] = np.zeros(len(OPERATIONS))

    def add(self, counts: I64, nanoseconds: U64) -> None:
        """Add durations of one engine. Sums that the counts make impossible are clamped."""
        self.counts += counts
        self.seconds += np.clip(nanoseconds / 1e9, counts @ _SHORTEST, counts @ _LONGEST)

    def stats(self) -> dict[str, Histogram]:
        """Return a histogram for each operation."""
        return {
            name: Histogram(_BOUNDS_S, counts, seconds)
            for name, counts, seconds in zip(OPERATIONS, self.counts.tolist(), self.seconds.tolist(), strict=True)
        }


@dataclass(slots=True)
class OperationReader:
    """Reads the counts of one area. Counts that the area holds initially were added before."""

    area: AreaMemory
    at: float
    """Unix seconds of the last reading."""
    _before: U64 = field(init=False)

    def __post_init__(self) -> None:
        self._before = self.area.operations.copy()

    def drain(self, totals: OperationTotals, now: float) -> bool:
        """Add the counts since the last reading to `totals`. Return False and discard them if no process can do that
        much in this time."""
        words = self.area.operations.copy()
        added = words - self._before  # unsigned, so a count that fell is a large increase
        most = int(MAX_AT_ONCE + MAX_PER_S * min(max(now - self.at, 0.0), MAX_ELAPSED_S))
        self._before, self.at = words, now
        counts = added[:, :-1]
        if int(counts.max()) > most or int(counts.sum()) > most:
            return False
        totals.add(counts.astype(np.int64), added[:, -1])
        return True

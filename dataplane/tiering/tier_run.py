"""One tier in use."""

from __future__ import annotations

from bisect import bisect_left

from dataplane.base.process_figures import LATENCY_BOUNDS_S
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.stats.histogram import Histogram
from dataplane.tiering.breaker import Breaker
from dataplane.tiering.worker import TierWorker

_DECAY = 0.8
"""Share of the older loads after each load."""
_ASSUMED_BYTES_PER_S = 100e6
"""What is assumed before the first load."""


class Rates:
    """How fast a tier loads, as measured: an exponential average over the last loads, and a histogram of their
    durations.

    Time that loads wait for their turn does not count, because the caller adds what waits; in the average, time in
    which several loads run counts once.
    """

    def __init__(self) -> None:
        self.bytes_per_s = _ASSUMED_BYTES_PER_S
        self._bytes = self._seconds = 0.0
        self._counted_until = 0.0
        self._durations = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self._total_s = 0.0

    def histogram(self) -> Histogram:
        """Return the durations of all loads."""
        return Histogram(list(LATENCY_BOUNDS_S), list(self._durations), self._total_s)

    def add(self, nbytes: int, began: float, ended: float) -> None:
        """Add a load of so many bytes that ran from `began` to `ended`, seconds of one clock. A load without bytes,
        which failed, does not change the bandwidth."""
        self._durations[bisect_left(LATENCY_BOUNDS_S, ended - began)] += 1
        self._total_s += ended - began
        if not nbytes:
            return
        busy_s = max(0.0, ended - max(began, self._counted_until))
        self._counted_until = max(self._counted_until, ended)
        self._bytes = _DECAY * self._bytes + nbytes
        self._seconds = _DECAY * self._seconds + busy_s
        self.bytes_per_s = self._bytes / max(self._seconds, 1e-6)


class TierRun:
    """One tier in use: its state, its threads and its calls under way."""

    def __init__(self, state: TierState, worker: TierWorker) -> None:
        self.state = state
        self.worker = worker
        self.opened = False
        """Whether its contents are known. Until then, the tier does not serve."""
        self.breaker = Breaker()
        self.rates = Rates()
        self.copying = 0
        """Calls under way that copy to the tier."""
        self.deleting = False
        self.delete_at = 0.0
        """When the next call that deletes blocks may begin, by the clock of the mover."""
        self.syncing = False
        """Whether deletions are being synced, or could not be: tombstones then stay until the tier is opened again."""
        self.shrinking = False
        self.looking = 0
        """Calls under way that ask a shared tier for blocks."""
        self.listing_fault = ""
        """Why the last attempt to list a shared tier failed; empty if none did."""

    @property
    def serves(self) -> bool:
        """Whether blocks are copied to the tier and loaded from it."""
        return self.opened and self.breaker.serves and not self.state.closing

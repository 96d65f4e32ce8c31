"""What the gateway was asked and how it went, operation by operation."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

import structlog

from dataplane.transport.lmcache.failures import Reason

LOG_INTERVAL_S = 10.0
"""Between two lines of the log about the same kind of failure."""
UNKNOWN = "unknown"
"""Stands for every operation that this node does not know: their names are the peers' to choose."""
BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)

log = structlog.stdlib.get_logger()


@dataclass(slots=True)
class Tally:
    """One operation since the process started."""

    requests: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """By reason."""
    seconds: float = 0.0
    """In which the loop worked on it, or a copy ran."""
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    """Requests by how long they took: each up to its bound in `BUCKETS_S`, the last one beyond."""

    def took(self, seconds: float) -> None:
        self.seconds += seconds
        self.buckets[bisect_left(BUCKETS_S, seconds)] += 1


@dataclass(slots=True)
class Moved:
    """Chunks that clients asked for, stored and read."""

    chunks_in: int = 0
    bytes_in: int = 0
    chunks_out: int = 0
    bytes_out: int = 0
    requested_chunks: int = 0
    hit_chunks: int = 0

    def looked_up(self, requested: int, hits: int) -> None:
        self.requested_chunks += requested
        self.hit_chunks += hits

    def stored(self, chunks: int, chunk_bytes: int) -> None:
        self.chunks_in += chunks
        self.bytes_in += chunks * chunk_bytes

    def read(self, chunks: int, chunk_bytes: int) -> None:
        self.chunks_out += chunks
        self.bytes_out += chunks * chunk_bytes


class Counters:
    """Tallies by operation, and log lines that cannot flood."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.moved = Moved()
        self.unanswered = 0
        """Answers that their peer was not there to take, or did not take."""
        self._told: dict[tuple[str, str], tuple[float, int]] = {}
        """When a kind of failure was last told of, and how many came since."""

    def of(self, operation: str) -> Tally:
        tally = self.tallies.get(operation)
        if tally is None:
            tally = self.tallies[operation] = Tally()
        return tally

    def failed(self, operation: str, reason: Reason, message: str, now: float) -> None:
        """Count a failure, and tell of it now and then."""
        self.of(operation).failures[reason.value] += 1
        at, untold = self._told.get((operation, reason), (float("-inf"), 0))
        if now - at < LOG_INTERVAL_S:
            self._told[operation, reason] = at, untold + 1
            return
        self._told[operation, reason] = now, 0
        log.warning(
            "lmcache.failed",
            operation=operation,
            reason=reason.value,
            message=message[:300],
            untold_before=untold,
        )

"""Counters of the gateway's requests, failures and durations by operation."""

from __future__ import annotations

from bisect import bisect_left

import msgspec
import structlog

from dataplane.gateways.lmcache.failures import Reason
from dataplane.protocol.stats.gateways import GatewayOperation

LOG_INTERVAL_S = 10.0
"""Minimum time between two log lines about the same kind of failure."""
UNKNOWN = "unknown"
"""Name under which all unknown operations are counted, because peers choose their names freely."""
BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)

log = structlog.stdlib.get_logger()


class BytesMoved(msgspec.Struct):
    """Chunks that clients looked up, stored and read, as in `GatewayStats`."""

    chunks_in: int = 0
    stored_bytes: int = 0
    chunks_out: int = 0
    read_bytes: int = 0
    requested_chunks: int = 0
    hit_chunks: int = 0
    tier_hit_chunks: int = 0

    def looked_up(self, requested: int, hits: int, tier_hits: int) -> None:
        self.requested_chunks += requested
        self.hit_chunks += hits
        self.tier_hit_chunks += tier_hits

    def stored(self, chunks: int, chunk_bytes: int) -> None:
        self.chunks_in += chunks
        self.stored_bytes += chunks * chunk_bytes

    def read(self, chunks: int, chunk_bytes: int) -> None:
        self.chunks_out += chunks
        self.read_bytes += chunks * chunk_bytes


class Counters:
    """Tallies by operation, with rate-limited log lines for failures."""

    def __init__(self) -> None:
        self.operations: dict[str, GatewayOperation] = {}
        self.moved = BytesMoved()
        self.unanswered = 0
        """Number of answers that could not be delivered because the peer was gone."""
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}
        """Time of the last log line about a kind of failure, and the number of such failures since."""

    def of(self, operation: str) -> GatewayOperation:
        tally = self.operations.get(operation)
        if tally is None:
            buckets = [0] * (len(BUCKETS_S) + 1)
            tally = self.operations[operation] = GatewayOperation(operation, 0, {}, 0.0, buckets)
        return tally

    def took(self, operation: str, seconds: float) -> None:
        """Count the duration of an answered request."""
        tally = self.of(operation)
        tally.seconds += seconds
        tally.buckets[bisect_left(BUCKETS_S, seconds)] += 1

    def failed(self, operation: str, reason: Reason, message: str, now: float) -> None:
        """Count a failure, and log it at most once per LOG_INTERVAL_S."""
        failures = self.of(operation).failures
        failures[reason.value] = failures.get(reason.value, 0) + 1
        at, suppressed = self._logged.get((operation, reason), (float("-inf"), 0))
        if now - at < LOG_INTERVAL_S:
            self._logged[operation, reason] = at, suppressed + 1
            return
        self._logged[operation, reason] = now, 0
        log.warning(
            "lmcache.failed",
            operation=operation,
            reason=reason.value,
            message=message[:300],
            suppressed_before=suppressed,
        )

"""Counts of an engine during a replay, and their sum over several engines."""

from collections.abc import Iterable

import msgspec
import numpy as np


class ReplayTally(msgspec.Struct):
    """Counts of one engine or of all. Each requested block is also counted as hit, stored, present, busy or refused."""

    requests: int = 0
    blocks_requested: int = 0
    blocks_hit: int = 0
    """Blocks of the contiguous prefix that was leased and read."""
    blocks_loaded: int = 0
    """Those of them that a tier behind memory held when they were asked for."""
    blocks_stored: int = 0
    blocks_present: int = 0
    """Blocks that the reservation found present although they were no hits: another engine had just stored them."""
    blocks_busy: int = 0
    """Blocks that another engine was writing."""
    blocks_refused: dict[str, int] = {}
    """Refused blocks by the name of the reason, in lower case."""
    blocks_verified: int = 0
    verify_errors: int = 0
    """Blocks whose bytes or size did not match their key."""
    reconnects: int = 0
    """Number of times that an engine attached again after it had lost the data plane."""
    stored_bytes: int = 0
    read_bytes: int = 0
    store_ns: int = 0
    """Time spent in reserve, copy and commit, excluding the generation of content."""
    read_ns: int = 0
    """Time spent in acquire and copy, excluding the check."""
    lookup_ns: list[int] = []
    """Duration of each look-up."""

    def refuse(self, reason: str, blocks: int) -> None:
        """Count refused blocks."""
        if blocks:
            self.blocks_refused[reason] = self.blocks_refused.get(reason, 0) + blocks

    def lookup_us(self, percentile: float) -> float:
        """Return a percentile of the look-up durations in microseconds; 0 if there were none."""
        return float(np.percentile(self.lookup_ns, percentile)) / 1e3 if self.lookup_ns else 0.0


def total(tallies: list[ReplayTally]) -> ReplayTally:
    """Return the sum of several engines' counts."""
    result = ReplayTally()
    for tally in tallies:
        for name in ReplayTally.__struct_fields__:
            if name == "blocks_refused":
                for reason, blocks in tally.blocks_refused.items():
                    result.refuse(reason, blocks)
            else:
                setattr(result, name, getattr(result, name) + getattr(tally, name))
    return result


def rate_gbps(nbytes: int, busy_ns: Iterable[int]) -> float:
    """Return the GB/s (10^9 bytes) of concurrent engines: bytes over the time of the one that was busy longest; 0 for
    none."""
    longest_ns = max(busy_ns, default=0)
    return nbytes / longest_ns if longest_ns else 0.0

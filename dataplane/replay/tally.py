"""What an engine counts while it replays, and how the counts of several engines add up."""

import msgspec
import numpy as np


class Tally(msgspec.Struct):
    """Counts of one engine, or of all. A requested block is also one of hit, stored, present, busy or refused."""

    requests: int = 0
    blocks_requested: int = 0
    blocks_hit: int = 0
    """Blocks of the contiguous prefix that was held and read."""
    blocks_stored: int = 0
    blocks_present: int = 0
    """Found present by the reservation although they were no hit: another engine stored them just then."""
    blocks_busy: int = 0
    """Being written by another engine."""
    blocks_refused: dict[str, int] = {}
    """By the reason's name, in lower case."""
    blocks_verified: int = 0
    verify_errors: int = 0
    """Blocks whose bytes or size were not those of their key."""
    reconnects: int = 0
    """Times that an engine attached again after it had lost the data plane."""
    bytes_in: int = 0
    bytes_out: int = 0
    store_ns: int = 0
    """Time spent in reserve, copying and commit; making the content is not included."""
    read_ns: int = 0
    """Time spent in acquire, copying and release; checking is not included."""
    lookup_ns: list[int] = []
    """How long each lookup took."""

    def refuse(self, reason: str, blocks: int) -> None:
        """Count refused blocks."""
        if blocks:
            self.blocks_refused[reason] = self.blocks_refused.get(reason, 0) + blocks

    def lookup_us(self, percentile: float) -> float:
        """A percentile of the lookups in microseconds; 0 when there was none."""
        return float(np.percentile(self.lookup_ns, percentile)) / 1e3 if self.lookup_ns else 0.0


def total(tallies: list[Tally]) -> Tally:
    """The sum of several engines' counts."""
    result = Tally()
    for tally in tallies:
        for name in Tally.__struct_fields__:
            if name == "blocks_refused":
                for reason, blocks in tally.blocks_refused.items():
                    result.refuse(reason, blocks)
            else:
                setattr(result, name, getattr(result, name) + getattr(tally, name))
    return result


def rate_gbps(nbytes: int, busy_ns: int, engines: int) -> float:
    """GB/s (10^9 bytes) of engines that work side by side: bytes over the mean time that one was busy; 0 for none."""
    return nbytes * engines / busy_ns if busy_ns else 0.0

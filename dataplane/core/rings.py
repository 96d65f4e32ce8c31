"""What engines touched: draining their access rings. Everything in a ring is untrusted."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dataplane.core.blocks import BlockTable
from dataplane.core.quotas import Tenants
from dataplane.protocol.layout import (
    A_RING_DROPPED,
    A_RING_HEAD,
    A_RING_TAIL,
    RING_COUNT_BITS,
    RING_COUNT_MASK,
    RING_KIND_SHIFT,
    RING_LOOKUP,
    RING_TOUCH,
    AreaMemory,
)
from dataplane.protocol.states import State


@dataclass(slots=True)
class RingReader:
    """The data plane's end of one access ring. The tail that counts is private; the shared one is for the client."""

    area: AreaMemory
    tail: int = 0
    dropped: int = 0
    """Entries that the client could not write because the ring was full."""
    invalid: int = 0
    """Entries that named no descriptor, no known kind, or another incarnation."""

    def drain(self) -> list[list[int]]:
        """New entries as [first word, second word], oldest first; at most one ring full."""
        header = self.area.header
        entries = self.area.ring_entries
        head = int(header[A_RING_HEAD])
        self.dropped = int(header[A_RING_DROPPED]) & 0xFFFFFFFFFFFF
        count = head - self.tail
        if count == 0:
            return []
        if not 0 < count <= entries:  # scribbled over: start again where it points
            self.invalid += 1
            self.tail = head
            header[A_RING_TAIL] = head
            return []
        first = self.tail % entries  # the head may be any 64 bits: no arithmetic on it in numpy
        at = np.arange(first, first + count) % entries
        words: list[list[int]] = self.area.ring[at].tolist()
        self.tail = head
        header[A_RING_TAIL] = head
        return words


@dataclass(slots=True)
class Accesses:
    """Sums of one drain."""

    touched: int = 0
    bytes_out: int = 0
    requested: int = 0
    hits: int = 0


def replay(reader: RingReader, table: BlockTable, tenants: Tenants, touch: Callable[[int], None]) -> Accesses:
    """Apply what a ring says: `touch(descriptor)` for each access that is still true, counters for each look-up."""
    sums = Accesses()
    for first, second in reader.drain():
        kind = first >> RING_KIND_SHIFT
        if kind == RING_TOUCH:
            block = table.blocks.get(first & 0xFFFFFFFF)
            if block is None or block.control != second or block.state is not State.READY:
                reader.invalid += 1
                continue
            touch(block.number)
            sums.touched += 1
            sums.bytes_out += block.nbytes
        elif kind == RING_LOOKUP:
            requested = first >> RING_COUNT_BITS & RING_COUNT_MASK
            hits = min(first & RING_COUNT_MASK, requested)
            tenants.looked_up(second, requested, hits)
            sums.requested += requested
            sums.hits += hits
        else:
            reader.invalid += 1
    return sums

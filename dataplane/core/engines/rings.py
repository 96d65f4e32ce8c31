"""Drain the access rings, in which engines report touched blocks and look-ups. All ring contents are untrusted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from dataplane.core.tenants.quotas import TenantTable
from dataplane.protocol.layout import (
    A_RING_DROPPED,
    A_RING_HEAD,
    A_RING_TAIL,
    HOT_NBYTES,
    HOT_SPACE_SEGMENT,
    I64,
    RING_COUNT_BITS,
    RING_COUNT_MASK,
    RING_KIND_SHIFT,
    RING_LOOKUP,
    RING_POSITION_MASK,
    RING_POSITION_SHIFT,
    RING_TOUCH,
    U64,
    AreaMemory,
    IndexMemory,
    is_ready,
)

_KIND = np.uint64(RING_KIND_SHIFT)
_POSITION = np.uint64(RING_POSITION_SHIFT)
_LOW32 = np.uint64(0xFFFFFFFF)
MAX_DROPPED = 1 << 32
"""Largest number of dropped entries that a client is believed between two readings."""


@dataclass(slots=True)
class DrainBudget:
    """Remaining cost of the drains that share this budget. A drain that has begun may overdraw it."""

    entries: int
    runs: int
    """Acquired chains to count for hot prefixes and the access trace."""


@dataclass(slots=True)
class RingReader:
    """The data plane's end of one access ring.

    The authoritative tail is private; the shared tail only informs the client.
    """

    area: AreaMemory
    tail: int = 0
    dropped: int = 0
    """Entries that the client could not write because the ring was full."""
    invalid: int = 0
    """Entries with an unknown descriptor or kind, another incarnation, or a space that is not attached."""
    _claimed: int = field(init=False)
    """The client's own count of dropped entries when it was last read."""

    def __post_init__(self) -> None:
        self._claimed = int(self.area.header[A_RING_DROPPED])

    def drain(self, limit: int) -> U64 | None:
        """Return new entries [n, 2], oldest first, at most `limit` and at most one full ring; None if there are none.

        When `limit` cuts the entries off, the rest begins with a whole chain, unless a single chain is longer than
        `limit`.
        """
        header = self.area.header
        entries = self.area.ring_entries
        head = int(header[A_RING_HEAD])
        count = head - self.tail
        claimed = int(header[A_RING_DROPPED])
        self.dropped += min(max(claimed - self._claimed, 0), MAX_DROPPED)
        self._claimed = claimed
        if count == 0:
            return None
        if not 0 < count <= entries:  # the head was overwritten: start again where it points
            self.invalid += 1
            self.tail = head
            header[A_RING_TAIL] = head
            return None
        cut = count > limit
        count = min(count, limit)
        first = self.tail % entries  # the head may be any 64 bits: no arithmetic on it in numpy
        if first + count <= entries:
            words = self.area.ring[first : first + count].copy()
        else:
            words = self.area.ring.take(np.arange(first, first + count) % entries, axis=0)
        if cut:
            count = _count_whole_chains(words)
            words = words[:count]
        self.tail += count
        header[A_RING_TAIL] = self.tail
        return words


def _count_whole_chains(words: U64) -> int:
    """Return the number of leading entries up to the last one that ends a chain; all entries if none does."""
    is_inside = (words[:, 0] >> _POSITION) & np.uint64(RING_POSITION_MASK) != 0
    is_inside &= words[:, 0] >> _KIND == RING_TOUCH
    chain_ends = np.flatnonzero(~is_inside)
    return int(chain_ends[-1]) + 1 if len(chain_ends) else len(words)


@dataclass(slots=True)
class DrainResult:
    """Result of one drain of a ring."""

    entries: int
    read_bytes: int = 0
    requested: int = 0
    hits: int = 0
    touched: Sequence[int] = ()
    """Descriptors that were used, each once, in order of last use."""
    runs: list[list[int]] = field(default_factory=list)
    """Descriptors of acquired chains, each last block first."""
    run_bytes: list[int] = field(default_factory=list)
    """Bytes of each of these chains."""


def drain(
    reader: RingReader, index: IndexMemory, tenants: TenantTable, spaces: Collection[int], limit: int, leading: int = 0
) -> DrainResult | None:
    """Take at most `limit` new entries out of a ring and count look-ups for their tenants; None if there are none.

    Touches count only for blocks that are still valid and belong to one of `spaces`. `leading` is the leading space
    among these, or 0.
    """
    words = reader.drain(limit)
    if words is None:
        return None
    result = DrainResult(len(words))
    kinds = words[:, 0] >> _KIND
    touches = kinds == RING_TOUCH
    number = int(np.count_nonzero(touches))
    if number < len(words):
        _look_ups(words[~touches], result, reader, tenants, leading)
        words = words[touches]
    if number:
        _touches(words, result, reader, index, spaces)
    return result


def _look_ups(words: U64, result: DrainResult, reader: RingReader, tenants: TenantTable, leading: int) -> None:
    for first, second in words.tolist():
        if first >> RING_KIND_SHIFT != RING_LOOKUP:
            reader.invalid += 1
            continue
        requested = first >> RING_COUNT_BITS & RING_COUNT_MASK
        hits = min(first & RING_COUNT_MASK, requested)
        tenants.looked_up(second, requested, hits, leading)
        result.requested += requested
        result.hits += hits


def _touches(words: U64, result: DrainResult, reader: RingReader, index: IndexMemory, spaces: Collection[int]) -> None:
    numbers = (words[:, 0] & _LOW32).astype(np.int64)
    rows = index.hot.take(numbers, axis=0, mode="clip")
    is_valid = (numbers < index.max_blocks) & (rows[:, 0] == words[:, 1]) & is_ready(words[:, 1])
    row_spaces = rows[:, HOT_SPACE_SEGMENT] & _LOW32
    if len(spaces) == 1:  # true of most engines, and several times cheaper
        is_valid &= row_spaces == np.uint64(next(iter(spaces)))
    else:
        is_valid &= np.isin(row_spaces, np.fromiter(spaces, np.uint64, len(spaces)))
    positions = (words[:, 0] >> _POSITION).astype(np.int64) & RING_POSITION_MASK
    valid = int(np.count_nonzero(is_valid))
    if valid < len(is_valid):
        reader.invalid += len(is_valid) - valid
        numbers, rows, positions = numbers[is_valid], rows[is_valid], positions[is_valid]
    if not valid:
        return
    result.read_bytes = int(rows[:, HOT_NBYTES].sum())
    result.runs, result.run_bytes = _runs(numbers, positions, rows[:, HOT_NBYTES], result.read_bytes)
    result.touched = _by_last_use(numbers)


def _runs(numbers: I64, positions: I64, nbytes: U64, total: int) -> tuple[list[list[int]], list[int]]:
    """Split entries wherever the position does not fall by one: each acquire wrote its chain from the end. Return the
    chains and their bytes, given the bytes of each entry and their sum."""
    cuts = (np.flatnonzero(np.diff(positions) != -1) + 1).tolist()
    sums = np.add.reduceat(nbytes, [0, *cuts]).tolist() if cuts else [total]
    descriptors: list[int] = numbers.tolist()
    offsets = positions.tolist()
    runs, sizes = [], []
    for first, last, size in zip([0, *cuts], [*cuts, len(descriptors)], sums, strict=True):
        if offsets[last - 1] == 0:  # otherwise the entries of the chain's first blocks are missing
            runs.append(descriptors[first:last])
            sizes.append(size)
    return runs, sizes


def _by_last_use(numbers: I64) -> list[int]:
    backwards = numbers[::-1]
    _, first = np.unique(backwards, return_index=True)
    if len(first) == len(numbers):
        descriptors: list[int] = numbers.tolist()
        return descriptors
    last: list[int] = backwards[np.sort(first)[::-1]].tolist()
    return last

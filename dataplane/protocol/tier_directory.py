"""The tier directory: a table in shared memory that tells engines which blocks lie in a tier behind memory.

The data plane writes it and engines map it read-only, so that a look-up needs no message. A key hashes to two buckets
of four entries; an entry is two words of 64 bits:

    0   bits 16-63 fingerprint of key and space, bits 0-7 mask of tiers; 0 for a free entry
    1   size of the block in bytes

Readers need no lock: they decide by the first word, which is written last and cleared first. A fingerprint may be that
of another key, and an entry may be gone by the time of the load: in both cases the load finds nothing, which is a miss.
A block for which both buckets are full is not listed, which is a miss, too; the header counts these blocks.

The header has one row for each tier: bytes that wait to be loaded, bytes per second that it loads, microseconds that
its loads take at least, whether it is in service, and where it is. `estimate_s` computes from it how long a load would
take. One word has the masks of the tiers that are in service, and of those among them that are shared with other nodes.

A shared tier may hold blocks that the table does not list, because other nodes wrote them; the data plane asks it when
an engine asks for the block. Behind the header are words for blocks that were just found to be missing in all shared
tiers: the fingerprint of the block, at a place that depends on it, until the data plane clears it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dataplane.protocol.layout import I64, U64, LayoutError
from dataplane.protocol.misses import SOURCES

MAX_TIERS = 8
HEADER_WORDS = 512
WORDS_PER_BUCKET = 8
MAX_BUCKETS = 1 << 24
_MAGIC = int.from_bytes(b"LARDERT2", "little")
H_MAGIC, H_BUCKETS, H_ENTRIES, H_UNLISTED, H_SERVING = 0, 1, 2, 3, 4
MISSING_WORDS = 1 << 14
"""Number of blocks that are remembered as missing in shared tiers: about so many, as places collide."""
H_TIERS, TIER_WORDS = 8, 8
T_WAITING_BYTES, T_BYTES_PER_S, T_LATENCY_US, T_SERVES, T_SOURCE = 0, 1, 2, 3, 4
_REMOTE = SOURCES.index("remote")
CLEARED_BUCKETS = 1 << 15
"""Buckets of one part of `clear_part`: 2 MiB."""
_MASK = np.uint64(0xFF)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT16, _SHIFT32 = np.uint64(16), np.uint64(32)

U8 = npt.NDArray[np.uint8]


class DirectoryEntries(NamedTuple):
    """What the directory says of the keys of a chain."""

    tiers: U8
    """Mask of the tiers that hold each block; 0 for a block that no tier holds."""
    nbytes: U64
    """Size of each block; 0 for a block that no tier holds."""

    def at(self, positions: I64 | slice) -> DirectoryEntries:
        """Return the entries at some positions."""
        return DirectoryEntries(self.tiers[positions], self.nbytes[positions])


def buckets_for(blocks: int) -> int:
    """Return the number of buckets, a power of two, for that many blocks: at most half of the entries are used."""
    return min(MAX_BUCKETS, max(64, 1 << (max(1, blocks) // 2 - 1).bit_length()))


def directory_bytes(buckets: int) -> int:
    """Return the size of a directory in bytes."""
    return 8 * (HEADER_WORDS + MISSING_WORDS + WORDS_PER_BUCKET * buckets)


def _missing_at(print_: np.uint64) -> int:
    return int(print_) % MISSING_WORDS


def space_word(identity: str) -> int:
    """Return the word that stands for a space in fingerprints, from `Space.identity()`."""
    return int(identity[:16], 16)


class TierDirectory:
    """The table over memory of `directory_bytes`: a buffer of the data plane, or a mapping of an engine."""

    def __init__(self, memory: memoryview) -> None:
        """Open a table that `make` wrote. Raises LayoutError if the memory is none."""
        cells: U64 = np.frombuffer(memory, np.uint64, len(memory) // 8)
        if len(cells) < HEADER_WORDS or int(cells[H_MAGIC]) != _MAGIC:
            raise LayoutError("a tier directory that does not begin with its magic number")
        buckets = int(cells[H_BUCKETS])
        if not 1 <= buckets <= MAX_BUCKETS or buckets & buckets - 1 or 8 * len(cells) < directory_bytes(buckets):
            raise LayoutError(f"a tier directory of {buckets} buckets in {8 * len(cells)} bytes")
        self.header: U64 = cells[:HEADER_WORDS]
        first = HEADER_WORDS + MISSING_WORDS
        self._missing: U64 = cells[HEADER_WORDS:first]
        end = first + WORDS_PER_BUCKET * buckets
        self._buckets: U64 = cells[first:end].reshape(buckets, 4, 2)
        self._last = np.uint64(buckets - 1)

    @classmethod
    def make(cls, memory: memoryview, buckets: int) -> TierDirectory:
        """Write an empty table into zeroed memory, and open it."""
        cells: U64 = np.frombuffer(memory, np.uint64)
        cells[H_BUCKETS] = buckets
        cells[H_MAGIC] = _MAGIC
        return cls(memory)

    # ---- reading

    def find(self, words: U64, space: int) -> DirectoryEntries:
        """Return which tiers hold the blocks of packed keys [n, 4] in a space (`space_word`)."""
        prints, first, second = self._slots_of(words, space)
        entries = np.concatenate((self._buckets[first], self._buckets[second]), axis=1)
        heads = entries[:, :, 0]
        has_print = (heads >> _SHIFT16 == prints[:, None]) & (heads & _MASK != 0)
        at = has_print.argmax(axis=1)
        rows = np.arange(len(words))
        is_listed = has_print[rows, at]
        tiers = np.where(is_listed, heads[rows, at] & _MASK, 0).astype(np.uint8)
        return DirectoryEntries(tiers, np.where(is_listed, entries[rows, at, 1], 0))

    def in_service(self, words: U64, space: int) -> DirectoryEntries:
        """Return which tiers in service hold the blocks, as `find` does."""
        blocks = self.find(words, space)
        return DirectoryEntries(blocks.tiers & np.uint8(self.serving()), blocks.nbytes)

    def leading(self, words: U64, space: int) -> DirectoryEntries:
        """Return the leading part of `in_service` in which a tier holds each block."""
        blocks = self.in_service(words, space)
        missing = np.flatnonzero(blocks.tiers == 0)
        return blocks.at(slice(int(missing[0]) if len(missing) else None))

    def listed(self) -> int:
        """Return the number of blocks that are listed."""
        return int(self.header[H_ENTRIES])

    def unlisted(self) -> int:
        """Return how many times a block was not listed, because its buckets were full."""
        return int(self.header[H_UNLISTED])

    def serving(self) -> int:
        """Return the mask of the tiers that are in service."""
        return int(self.header[H_SERVING]) & 0xFF

    def shared(self) -> int:
        """Return the mask of the tiers in service that may hold blocks that are not listed."""
        return int(self.header[H_SERVING]) >> 8 & 0xFF

    def is_missing(self, words: U64, space: int) -> bool:
        """Return whether the shared tiers were just found not to hold the first of these blocks."""
        print_ = self._slots_of(words[:1], space)[0][0]
        return bool(self._missing[_missing_at(print_)] == print_)

    def estimate_s(self, blocks: DirectoryEntries) -> float:
        """Return how many seconds it takes to load these blocks, each from the first tier that holds it; infinity if
        a tier is not in service or its bandwidth is not known."""
        rows = self._tier_rows()
        longest = 0.0
        lowest = blocks.tiers & (~blocks.tiers + np.uint8(1))
        for tier in range(MAX_TIERS):
            in_tier = lowest == 1 << tier
            if not in_tier.any():
                continue
            waiting, per_s, latency_us, serves = (int(word) for word in rows[tier, :4])
            if not serves or not per_s:
                return float("inf")
            nbytes = int(blocks.nbytes[in_tier].sum())
            longest = max(longest, latency_us / 1e6 + (waiting + nbytes) / per_s)
        return longest

    def sources(self, tiers: U8) -> U8:
        """Return where the blocks with these masks of tiers are loaded from, each from the first tier that holds it, as
        positions in `SOURCES`. A tier of which that is not known counts as remote."""
        by_mask = np.full(256, _REMOTE, np.uint8)
        for tier, row in enumerate(self._tier_rows().tolist()):
            if 0 < row[T_SOURCE] < len(SOURCES):
                by_mask[1 << tier] = row[T_SOURCE]
        sources: U8 = by_mask[tiers & (~tiers + np.uint8(1))]
        return sources

    def _tier_rows(self) -> U64:
        return self.header[H_TIERS : H_TIERS + MAX_TIERS * TIER_WORDS].reshape(MAX_TIERS, TIER_WORDS)

    def _slots_of(self, words: U64, space: int) -> tuple[U64, U64, U64]:
        with np.errstate(over="ignore"):
            salt = np.uint64(space) * _MIX
            prints = (words[:, 1] ^ salt) >> _SHIFT16
            prints = np.where(prints == 0, np.uint64(1), prints)
            first = (words[:, 0] ^ salt) & self._last
            # The distance depends on the fingerprint alone, so that either bucket leads to the other.
            second = first ^ ((prints * _MIX >> _SHIFT32 | np.uint64(1)) & self._last)
        return prints, first, second

    # ---- writing

    def add(self, words: U64, space: int, tier: int, sizes: U64) -> None:
        """List blocks of a space as held by a tier."""
        prints, first, second = self._slots_of(words, space)
        bit = np.uint64(1 << tier)
        flat = self._buckets.reshape(-1, 2)
        slots = self._slots(first, second)
        pending = np.arange(len(words))
        while len(pending):
            rows = np.arange(len(pending))
            heads = flat[slots[pending], 0]
            has_print = (heads >> _SHIFT16 == prints[pending][:, None]) & (heads & _MASK != 0)
            listed = has_print.any(axis=1)
            free = heads == 0
            emptier = np.where(
                free[:, :4].sum(axis=1) >= free[:, 4:].sum(axis=1),
                free[:, :4].argmax(axis=1),
                4 + free[:, 4:].argmax(axis=1),
            )
            flat_slot = slots[pending[rows], np.where(listed, has_print.argmax(axis=1), emptier)]
            fits = listed | free.any(axis=1)
            self.header[H_UNLISTED] += np.uint64(np.count_nonzero(~fits))
            pending, flat_slot, listed = pending[fits], flat_slot[fits], listed[fits]
            # Two blocks may have chosen the same entry: the second one chooses again.
            flat_slots, chosen = np.unique(flat_slot, return_index=True)
            heads = np.where(listed[chosen], flat[flat_slots, 0], prints[pending[chosen]] << _SHIFT16)
            flat[flat_slots, 1] = sizes[pending[chosen]]
            flat[flat_slots, 0] = heads | bit
            self.header[H_ENTRIES] += np.uint64(np.count_nonzero(~listed[chosen]))
            pending = np.delete(pending, chosen)

    def remove(self, words: U64, space: int, tier: int) -> None:
        """Stop listing blocks of a space as held by a tier. Blocks that are not listed are skipped."""
        prints, first, second = self._slots_of(words, space)
        entries = self._slots(first, second)
        flat = self._buckets.reshape(-1, 2)
        heads = flat[entries, 0]
        has_print = (heads >> _SHIFT16 == prints[:, None]) & (heads & _MASK != 0)
        listed = has_print.any(axis=1)
        flat_slots = np.unique(entries[listed, has_print.argmax(axis=1)[listed]])
        remaining_heads = flat[flat_slots, 0] & ~np.uint64(1 << tier)
        gone = remaining_heads & _MASK == 0
        self.header[H_ENTRIES] -= np.uint64(np.count_nonzero(gone))
        flat[flat_slots, 0] = np.where(gone, np.uint64(0), remaining_heads)

    def clear_part(self, tier: int, part: int) -> bool:
        """Stop listing the blocks of a tier in one part of the table. Return whether there is another part."""
        heads = self._buckets[part * CLEARED_BUCKETS : (part + 1) * CLEARED_BUCKETS, :, 0]
        bit = np.uint64(1 << tier)
        with_tier = heads & bit != 0
        remaining_heads = heads & ~bit
        heads[with_tier] = np.where(remaining_heads & _MASK != 0, remaining_heads, 0)[with_tier]
        self.header[H_ENTRIES] -= np.uint64(np.count_nonzero(with_tier & (remaining_heads & _MASK == 0)))
        return (part + 1) * CLEARED_BUCKETS < len(self._buckets)

    def note_missing(self, key: bytes, space: int, *, missing: bool) -> None:
        """Remember a block as missing in all shared tiers, or stop to."""
        print_ = self._slots_of(np.frombuffer(key, np.uint64).reshape(1, 4), space)[0][0]
        at = _missing_at(print_)
        if missing:
            self._missing[at] = print_
        elif self._missing[at] == print_:
            self._missing[at] = 0

    def publish(
        self,
        tier: int,
        *,
        waiting_bytes: int,
        bytes_per_s: int,
        latency_us: int,
        serves: bool,
        shared: bool = False,
        source: str = "remote",
    ) -> None:
        """Publish the state of a tier, for `estimate_s`, and where it is, one of `SOURCES`."""
        bits = (serves << tier) | ((serves and shared) << tier + 8)
        other_bits = int(self.header[H_SERVING]) & ~(0x101 << tier)
        self.header[H_SERVING] = np.uint64(other_bits | bits)
        row = self._tier_rows()[tier]
        row[T_WAITING_BYTES], row[T_BYTES_PER_S] = waiting_bytes, bytes_per_s
        row[T_LATENCY_US], row[T_SERVES], row[T_SOURCE] = latency_us, serves, SOURCES.index(source)

    def _slots(self, first: U64, second: U64) -> npt.NDArray[np.intp]:
        """Return the places of the eight entries of two buckets each."""
        four = np.arange(4, dtype=np.uint64)
        bucket_slots = (first[:, None] * np.uint64(4) + four, second[:, None] * np.uint64(4) + four)
        return np.concatenate(bucket_slots, axis=1).astype(np.intp)

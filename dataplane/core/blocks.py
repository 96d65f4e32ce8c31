"""The block table: descriptors, their rows in shared memory, and the index over them.

The only writer of index memory. Every change of a state passes through `protocol.states.advance`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dataplane.core.books import B_SEGMENT, B_TENANT, Books
from dataplane.core.names import Names, SegmentName, TenantName
from dataplane.core.shelves import Rank
from dataplane.core.slabs import Segment, Slot
from dataplane.protocol.layout import (
    BUCKET_ENTRIES,
    COLD_STORED_AT,
    COLD_TENANT,
    COLD_WORDS,
    HOT_KEY,
    HOT_NBYTES,
    HOT_OFFSET,
    HOT_SPACE_SEGMENT,
    HOT_WORDS,
    I64,
    U64,
    IndexMemory,
)
from dataplane.protocol.states import CONTROL_MASK, MOVES, STATE_MASK, State, Step, advance

if TYPE_CHECKING:
    from dataplane.core.pins import Bundle
    from dataplane.core.quotas import Tenant
    from dataplane.core.shelves import Shelf


@dataclass(eq=False, slots=True)
class Block:
    """What the core knows of one block that is not FREE."""

    number: int
    """Its descriptor."""
    control: int
    """Copy of its control word."""
    space: int
    key: bytes
    tenant: Tenant
    slot: Slot
    nbytes: int
    charge: int
    """Bytes that its tenant is charged: the slot, not only the block."""
    entry: tuple[int, int] | None
    """Bucket and position in the index; None once it left the index (quarantined)."""
    mark: int = 0
    """64 bits that stay with its key in its space; eviction policies know it by them."""
    pins: Sequence[Bundle] = ()
    guaranteed: bool = False
    """Inside the pin budgets: on no shelf."""
    shelf: Shelf | None = None
    """Where it waits for its turn to go; None while it may not go."""
    rank: Rank = Rank.NORMAL
    hits: int = 0
    """Times it was used since it was stored."""
    used_at: float = 0.0
    """When it was stored or last used."""
    stamp: int = 0
    """When it was reserved, in ns; invalidations go by it."""
    parent: bytes = b""
    """The key before its own in the chain; empty at the start of one, or when the engine did not say."""
    before: Block | None = field(default=None, repr=False)
    """The block of that key when last seen; it left the index when it has no `entry`."""
    children: int = 0
    """Times something was stored behind it: from the second on it is where prefixes part."""
    doomed: bool = False
    """Invalid and out of the index; goes when no lease holds it."""
    passed_over: int = 0
    """Number of the search for room that found it leased or asked to spare it."""

    @property
    def state(self) -> State:
        return State(self.control & STATE_MASK)


def name_of_segment(segment: Segment) -> SegmentName:
    """The record of a segment, in memory that no engine can write."""
    return SegmentName(segment.number, segment.space, segment.nbytes, segment.small, segment.base)


_FREE_COUNT = [number.bit_count() for number in range(256)]


class Places(NamedTuple):
    """Where keys could be listed, as of one look."""

    buckets: list[list[int]]
    """Two for each key."""
    tags: list[int]
    entries: U64
    """What stands in both buckets of each key [n, 16]."""


class BlockTable:
    """Descriptors by number, and the index by (space, key)."""

    def __init__(self, memory: IndexMemory, books: Books | None = None, names: Names | None = None) -> None:
        self.memory = memory
        self.books = Books.private(memory.max_blocks) if books is None else books
        self.names = Names.private() if names is None else names
        self._cells = memory.cells
        self._first_hot = memory.first_hot
        self._first_cold = memory.first_hot + memory.max_blocks * HOT_WORDS
        self.blocks: dict[int, Block] = {}
        self._recycled: list[int] = []
        self._fresh = 0

    @property
    def max_blocks(self) -> int:
        return self.memory.max_blocks

    def free_descriptors(self) -> int:
        return self.max_blocks - len(self.blocks)

    def find(self, words: U64, space: int) -> list[Block | None]:
        """The block under each packed key [n, 4] of a space, in any state."""
        return self._known(self.memory.find(words, space)[0])

    def look(self, words: U64, space: int) -> tuple[list[Block | None], Places]:
        """As `find`, with the places where the keys could be listed."""
        buckets, tags, entries = self.memory.buckets_of(words, space)
        found: list[Block | None]
        if self.memory.tagged(tags, entries).any():
            found = self._known(self.memory.match(words, space, tags, entries)[0])
        else:
            found = [None] * len(words)
        return found, Places(buckets.tolist(), tags.tolist(), entries)

    def _known(self, numbers: I64) -> list[Block | None]:
        get = self.blocks.get
        return [get(number) for number in numbers.tolist()]  # -1 is nobody's

    def free_entries(self, places: Places, wanted: Sequence[int]) -> list[tuple[int, int] | None]:
        """For each wanted position: a free (bucket, position) of its own; None where both buckets are full."""
        entries: list[tuple[int, int] | None] = []
        taken: set[tuple[int, int]] = set()
        # One byte a bucket, its first entry in the highest bit; set where the entry is free.
        free = np.packbits(places.entries[wanted] == 0, axis=1).tolist()
        for at, (one, two) in zip(wanted, free, strict=True):
            pair = places.buckets[at]
            side = _FREE_COUNT[two] > _FREE_COUNT[one]
            own: tuple[int, int] | None = (pair[side], BUCKET_ENTRIES - (two if side else one).bit_length())
            if not (one or two) or own in taken:
                own = self.free_entry(pair, taken)
            if own is not None:
                taken.add(own)
            entries.append(own)
        return entries

    def free_entry(self, buckets: Sequence[int], taken: Container[tuple[int, int]]) -> tuple[int, int] | None:
        """A free (bucket, position) in one of two buckets that no other key was promised, if there is one."""
        for bucket in buckets:
            for position, entry in enumerate(self.memory.entries[bucket].tolist()):
                if entry == 0 and (bucket, position) not in taken:
                    return bucket, position
        return None

    def neighbours(self, buckets: Sequence[int]) -> list[Block]:
        """The blocks whose entries fill the two buckets."""
        numbers = [
            (int(entry) & 0xFFFFFFFF) - 1 for bucket in set(buckets) for entry in self.memory.entries[bucket]
        ]
        return [self.blocks[number] for number in numbers if number in self.blocks]

    def add(
        self,
        key: bytes,
        space: int,
        tenant: Tenant,
        slot: Slot,
        nbytes: int,
        entry: tuple[int, int],
        tag: int,
        mark: int,
    ) -> Block:
        """A block on a free descriptor, listed under its key. It stays FREE to readers until `reserve`."""
        if self._recycled:
            number = self._recycled.pop()
        elif self._fresh < self.max_blocks:
            number = self._fresh
            self._fresh += 1
        else:
            raise IndexError("no free descriptor: the caller did not ask `free_descriptors`")
        slab = slot.slab
        cells, row = self._cells, self._first_hot + HOT_WORDS * number
        block = Block(number, cells[row], space, key, tenant, slot, nbytes, slab.slot_bytes, entry, mark)
        self.blocks[number] = block
        slab.blocks.add(block)
        cells[row + HOT_SPACE_SEGMENT] = space | slab.segment.number << 32
        cells[row + HOT_OFFSET] = slot.offset
        cells[row + HOT_NBYTES] = nbytes
        cells[self.memory.first_entry + BUCKET_ENTRIES * entry[0] + entry[1]] = tag << 32 | (number + 1)
        return block

    def reserve(self, blocks: Sequence[Block], words: U64, owner: int, reservation: int) -> None:
        """FREE to RESERVED: complete the rows of added blocks, whose keys as words are [n, 4], then the control words.

        The blocks are of one tenant; `owner` is the client that writes them.
        """
        self._name(blocks)
        numbers = np.array([block.number for block in blocks], np.int64)
        self.memory.hot[numbers, HOT_KEY : HOT_KEY + 4] = words
        self.books.reserved(
            numbers,
            blocks[0].tenant.number,
            owner,
            reservation,
        )
        self.step(blocks, Step.RESERVE)

    def _name(self, blocks: Sequence[Block]) -> None:
        """What the rows of blocks refer to is written down before them."""
        names, tenant = self.names, blocks[0].tenant
        if (TenantName, tenant.number) not in names.known:
            self.books.gave(B_TENANT, tenant.number)
            names.append(TenantName(tenant.number, tenant.salt))
        for segment in {block.slot.slab.segment for block in blocks}:
            if (SegmentName, segment.number) not in names.known:
                self.books.gave(B_SEGMENT, segment.number)
                names.append(name_of_segment(segment))

    def used(self, blocks: Sequence[Block], now: float) -> None:
        """Blocks were used, one after the other: nothing was used later. For the books only."""
        self.books.used([block.number for block in blocks], [block.hits for block in blocks], now)

    def publish(self, blocks: Sequence[Block], checksums: U64 | None, now: float) -> None:
        """RESERVED to READY: whatever readers may trust is written before the control words."""
        cells, first = self._cells, self._first_cold
        sums: list[list[int]] | None = None if checksums is None else checksums.tolist()
        for at, block in enumerate(blocks):
            row = first + COLD_WORDS * block.number
            cells[row], cells[row + 1] = (0, 0) if sums is None else sums[at]
            cells[row + COLD_TENANT] = block.tenant.number
            cells[row + COLD_STORED_AT] = block.stamp
            self.books.published(block.number, block.parent)
        self.step(blocks, Step.COMMIT)

    def step(self, blocks: Sequence[Block], step: Step) -> None:
        """Move blocks along the table and store their control words, one aligned 8-byte store each."""
        cells, first = self._cells, self._first_hot
        before, added = MOVES[step]
        for block in blocks:
            control = block.control
            if control & STATE_MASK != before:
                advance(control, step)  # raises
            block.control = control = (control + added) & CONTROL_MASK
            cells[first + HOT_WORDS * block.number] = control

    def _list(self, entry: tuple[int, int], word: int) -> None:
        self._cells[self.memory.first_entry + BUCKET_ENTRIES * entry[0] + entry[1]] = word

    def unlist(self, block: Block) -> None:
        """Remove a block from the index: its key may be stored anew elsewhere."""
        if block.entry is not None:
            self._list(block.entry, 0)
            block.entry = None

    def restore(self, blocks: Sequence[Block]) -> None:
        """Take over all blocks that are not FREE in the memory; the table is empty before."""
        self.blocks.update((block.number, block) for block in blocks)
        self._fresh = max(self.blocks, default=-1) + 1
        free = np.ones(self._fresh, np.bool_)
        free[list(self.blocks)] = False
        self._recycled = np.flatnonzero(free)[::-1].tolist()

    def free(self, block: Block, step: Step) -> None:
        """Give a block's descriptor up with `step`, one that ends in FREE. Its slot is the caller's to give back."""
        self.free_all((block,), step)

    def free_all(self, blocks: Sequence[Block], step: Step) -> None:
        """As `free`, of many blocks."""
        cells, first = self._cells, self.memory.first_entry
        for block in blocks:
            entry = block.entry
            if entry is not None:
                cells[first + BUCKET_ENTRIES * entry[0] + entry[1]] = 0
                block.entry = None
        self.step(blocks, step)
        known, recycled = self.blocks, self._recycled
        for block in blocks:
            block.slot.slab.blocks.discard(block)
            block.before = None  # what is gone must not keep what went before it
            del known[block.number]
            recycled.append(block.number)

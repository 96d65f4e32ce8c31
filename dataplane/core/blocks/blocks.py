"""The block table: descriptors, their rows in shared memory, and the index over them.

This module is the only writer of index memory. Every state change follows the table in `protocol.states`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dataplane.core.blocks.slabs import Segment, Slot
from dataplane.core.journal.id_journal import IdJournal, SegmentName
from dataplane.core.journal.recovery_table import B_SEGMENT, B_TENANT, RecoveryTable
from dataplane.core.tenants.eviction_queues import Evictable
from dataplane.core.tenants.tenant import Tenant
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
from dataplane.protocol.states import CONTROL_MASK, MOVES, STATE_MASK, BlockStep, State, advance


@dataclass(eq=False, slots=True)
class Block(Evictable):
    """A block that is not FREE."""

    control: int
    """Copy of its control word."""
    space: int
    key: bytes
    tenant: Tenant
    slot: Slot
    nbytes: int
    entry: tuple[int, int] | None
    """Bucket and position in the index; None after it left the index (for example, in quarantine)."""
    timestamp: int = 0
    """Unix nanoseconds when it was reserved; invalidations compare it."""
    parent: bytes = b""
    """Key of the preceding block in the chain; empty for the first block, or when the engine did not send it."""
    before: Block | None = field(default=None, repr=False)
    """Block of the parent key when last looked up. If it has no `entry`, it has left the index since."""
    children: int = 0
    """Number of times a block was stored behind it; from the second time on, prefixes branch here."""
    passed_over: int = 0
    """Number of the last search for room that found it leased."""

    @property
    def state(self) -> State:
        return State(self.control & STATE_MASK)


def name_of_segment(segment: Segment) -> SegmentName:
    """Return the record of a segment for the id journal, which no engine can write."""
    return SegmentName(segment.number, segment.space, segment.nbytes, segment.small, segment.base)


_FREE_COUNT = [number.bit_count() for number in range(256)]


class IndexSlots(NamedTuple):
    """Snapshot of the index positions at which keys could be listed."""

    buckets: list[list[int]]
    """Two buckets for each key."""
    tags: list[int]
    entries: U64
    """Entries in both buckets of each key [n, 16]."""


class BlockTable:
    """Descriptors by number, and the index by (space, key)."""

    def __init__(self, memory: IndexMemory, recovery_table: RecoveryTable, names: IdJournal) -> None:
        self.memory = memory
        self.recovery_table = recovery_table
        self.names = names
        self._cells = memory.cells
        self._first_hot = memory.first_hot
        self._first_cold = memory.first_hot + memory.max_blocks * HOT_WORDS
        self.blocks: dict[int, Block] = {}
        self.space_of: I64 = np.zeros(memory.max_blocks, np.int64)
        """Space of the block on each descriptor, 0 for FREE ones. It determines which lease counters count."""
        self._space_cells = self.space_of.data
        self._recycled: list[int] = []
        self._fresh = 0

    @property
    def max_blocks(self) -> int:
        return self.memory.max_blocks

    def free_descriptors(self) -> int:
        return self.max_blocks - len(self.blocks)

    def find(self, words: U64, space: int) -> list[Block | None]:
        """Return the block of each packed key [n, 4] in a space, in any state; None for a key without a block."""
        return self._blocks_of(self.memory.find(words, space)[0])

    def look(self, words: U64, space: int) -> tuple[list[Block | None], IndexSlots]:
        """Return the same as `find`, and the index positions at which the keys could be listed."""
        buckets, tags, entries = self.memory.buckets_of(words, space)
        blocks: list[Block | None]
        if self.memory.tagged(tags, entries).any():
            blocks = self._blocks_of(self.memory.match(words, space, tags, entries)[0])
        else:
            blocks = [None] * len(words)
        return blocks, IndexSlots(buckets.tolist(), tags.tolist(), entries)

    def _blocks_of(self, numbers: I64) -> list[Block | None]:
        get = self.blocks.get
        return [get(number) for number in numbers.tolist()]  # -1 belongs to no block

    def free_entries(self, index_slots: IndexSlots, missing: Sequence[int]) -> list[tuple[int, int] | None]:
        """Return a distinct free (bucket, position) for each wanted key; None where both buckets are full."""
        entries: list[tuple[int, int] | None] = []
        taken_entries: set[tuple[int, int]] = set()
        # One byte per bucket with its first entry in the highest bit; a bit is set where the entry is free.
        free = np.packbits(index_slots.entries[missing] == 0, axis=1).tolist()
        for at, (first_free, second_free) in zip(missing, free, strict=True):
            pair = index_slots.buckets[at]
            side = _FREE_COUNT[second_free] > _FREE_COUNT[first_free]
            entry: tuple[int, int] | None = (
                pair[side],
                BUCKET_ENTRIES - (second_free if side else first_free).bit_length(),
            )
            if not (first_free or second_free) or entry in taken_entries:
                entry = self.free_entry(pair, taken_entries)
            if entry is not None:
                taken_entries.add(entry)
            entries.append(entry)
        return entries

    def free_entry(self, buckets: Sequence[int], taken_entries: Container[tuple[int, int]]) -> tuple[int, int] | None:
        """Return a free (bucket, position) in one of two buckets that is not in `taken_entries`, or None."""
        for bucket in buckets:
            for position, entry in enumerate(self.memory.entries[bucket].tolist()):
                if entry == 0 and (bucket, position) not in taken_entries:
                    return bucket, position
        return None

    def neighbours(self, buckets: Sequence[int]) -> list[Block]:
        """Return the blocks whose entries fill the two buckets."""
        numbers = [(int(entry) & 0xFFFFFFFF) - 1 for bucket in set(buckets) for entry in self.memory.entries[bucket]]
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
        """Add a block on a free descriptor and list it under its key. Readers see it as FREE until `reserve`.

        Raise IndexError when no descriptor is free.
        """
        if self._recycled:
            number = self._recycled.pop()
        elif self._fresh < self.max_blocks:
            number = self._fresh
            self._fresh += 1
        else:
            raise IndexError("no free descriptor: call `free_descriptors` first")
        slab = slot.slab
        cells, row = self._cells, self._first_hot + HOT_WORDS * number
        block = Block(number, slab.slot_bytes, mark, cells[row], space, key, tenant, slot, nbytes, entry)
        self.blocks[number] = block
        self._space_cells[number] = space
        slab.blocks.add(number)
        cells[row + HOT_SPACE_SEGMENT] = space | slab.segment.number << 32
        cells[row + HOT_OFFSET] = slot.offset
        cells[row + HOT_NBYTES] = nbytes
        cells[self.memory.first_entry + BUCKET_ENTRIES * entry[0] + entry[1]] = tag << 32 | (number + 1)
        return block

    def reserve(self, blocks: Sequence[Block], words: U64, owner: int, reservation: int) -> None:
        """Move added blocks from FREE to RESERVED: complete their rows, then store their control words.

        All blocks belong to one tenant. `words` are their packed keys [n, 4]. `owner` is the client that writes them.
        """
        self._name(blocks)
        numbers = np.array([block.number for block in blocks], np.int64)
        self.memory.hot[numbers, HOT_KEY : HOT_KEY + 4] = words
        self.recovery_table.reserved(numbers, blocks[0].tenant.number, owner, reservation)
        self.step(blocks, BlockStep.RESERVE)

    def _name(self, blocks: Sequence[Block]) -> None:
        """Record the segments and the tenant that the rows of blocks refer to, before the rows are written."""
        journal, tenant = self.names, blocks[0].tenant
        for segment in {block.slot.slab.segment for block in blocks}:
            if not journal.has(SegmentName, segment.number):
                self.recovery_table.assigned(B_SEGMENT, segment.number)
                journal.append(name_of_segment(segment))
        if not tenant.blocks:  # after the segments: a compaction omits tenants without blocks
            self.recovery_table.assigned(B_TENANT, tenant.number)
            journal.name_tenant(tenant.number, tenant.salt)

    def used(self, blocks: Sequence[Block], now: float) -> None:
        """Record in the recovery table that these blocks, in this order, are the most recently used ones."""
        self.recovery_table.used([block.number for block in blocks], [block.hits for block in blocks], now)

    def publish(self, blocks: Sequence[Block], checksums: U64 | None, now: float) -> None:
        """Move blocks from RESERVED to READY. Write everything that readers trust before the control words."""
        cells, first = self._cells, self._first_cold
        sums: list[list[int]] | None = None if checksums is None else checksums.tolist()
        for at, block in enumerate(blocks):
            row = first + COLD_WORDS * block.number
            cells[row], cells[row + 1] = (0, 0) if sums is None else sums[at]
            cells[row + COLD_TENANT] = block.tenant.number
            cells[row + COLD_STORED_AT] = block.timestamp
            self.recovery_table.published(block.number, block.parent)
        self.step(blocks, BlockStep.COMMIT)

    def step(self, blocks: Sequence[Block], step: BlockStep) -> None:
        """Apply a state transition to blocks and store their control words, one aligned 8-byte store each."""
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
        """Remove a block from the index, so that its key may be stored again."""
        if block.entry is not None:
            self._list(block.entry, 0)
            block.entry = None

    def restore(self, blocks: Sequence[Block]) -> None:
        """Adopt all blocks that are not FREE in the memory. The table must be empty."""
        self.blocks.update((block.number, block) for block in blocks)
        self.space_of[[block.number for block in blocks]] = [block.space for block in blocks]
        self._fresh = max(self.blocks, default=-1) + 1
        free = np.ones(self._fresh, np.bool_)
        free[list(self.blocks)] = False
        self._recycled = np.flatnonzero(free)[::-1].tolist()

    def free(self, block: Block, step: BlockStep) -> None:
        """Free a block's descriptor with `step`, which must end in FREE. The caller gives the slot back."""
        self.free_all((block,), step)

    def free_all(self, blocks: Sequence[Block], step: BlockStep) -> None:
        """Free the descriptors of many blocks, as `free` does."""
        cells, first = self._cells, self.memory.first_entry
        for block in blocks:
            entry = block.entry
            if entry is not None:
                cells[first + BUCKET_ENTRIES * entry[0] + entry[1]] = 0
                block.entry = None
        self.step(blocks, step)
        by_number, recycled, spaces = self.blocks, self._recycled, self._space_cells
        for block in blocks:
            block.slot.slab.blocks.discard(block.number)
            block.before = None  # a freed block must not keep its ancestors alive
            del by_number[block.number]
            spaces[block.number] = 0
            recycled.append(block.number)

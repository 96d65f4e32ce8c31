"""The block table: descriptors, their rows in shared memory, and the index over them.

The only writer of index memory. Every change of a state passes through `protocol.states.advance`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataplane.core.slabs import Slot
from dataplane.protocol.layout import (
    BUCKET_ENTRIES,
    COLD_CHECKSUM,
    COLD_STORED_AT,
    COLD_TENANT,
    HOT_KEY,
    HOT_SPACE_SEGMENT,
    HOT_WORDS,
    U64,
    IndexMemory,
)
from dataplane.protocol.states import STATE_MASK, State, Step, advance

if TYPE_CHECKING:
    from dataplane.core.pins import Pin
    from dataplane.core.quotas import Tenant


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
    pins: Sequence[Pin] = ()
    guaranteed: bool = False
    """Inside the pin budget: not in any eviction order."""
    passed_over: int = 0
    """Number of the search for room that found it leased or asked to spare it."""

    @property
    def state(self) -> State:
        return State(self.control & STATE_MASK)


class BlockTable:
    """Descriptors by number, and the index by (space, key)."""

    def __init__(self, memory: IndexMemory) -> None:
        self.memory = memory
        self._cells = memory.cells
        self._first_hot = memory.first_hot
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
        numbers, _ = self.memory.find(words, space)
        return [self.blocks.get(number) if number >= 0 else None for number in numbers.tolist()]

    def free_entries(
        self, words: U64, space: int
    ) -> tuple[list[tuple[int, int] | None], list[int], list[list[int]]]:
        """For each packed key [n, 4]: a free (bucket, position) of its own, its tag, its two buckets.

        None where both buckets are full.
        """
        buckets, tags = self.memory.places(words, space)
        empty = self.memory.entries.take(buckets, axis=0) == 0
        room = empty.sum(axis=2)
        every = np.arange(len(words))
        side = room.argmax(axis=1)  # the emptier bucket
        chosen = buckets[every, side].tolist()
        position = empty[every, side].argmax(axis=1).tolist()
        free = room[every, side].tolist()
        pairs: list[list[int]] = buckets.tolist()
        entries: list[tuple[int, int] | None] = []
        taken: set[tuple[int, int]] = set()
        for pair, entry, count in zip(pairs, zip(chosen, position, strict=True), free, strict=True):
            own = entry if count > 0 and entry not in taken else self.free_entry(pair, taken)
            if own is not None:
                taken.add(own)
            entries.append(own)
        return entries, tags.tolist(), pairs

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
        control = self._cells[self._first_hot + HOT_WORDS * number]
        block = Block(number, control, space, key, tenant, slot, nbytes, slab.slot_bytes, entry)
        self.blocks[number] = block
        slab.blocks.add(block)
        self._list(entry, tag << 32 | (number + 1))
        return block

    def reserve(self, blocks: Sequence[Block], words: U64) -> None:
        """FREE to RESERVED: write the rows of added blocks, whose keys as words are [n, 4], then the control words."""
        rows = np.empty((len(blocks), HOT_WORDS), np.uint64)
        rows[:, HOT_KEY : HOT_KEY + 4] = words
        rows[:, HOT_SPACE_SEGMENT:] = [
            (block.space | block.slot.slab.segment.number << 32, block.slot.offset, block.nbytes)
            for block in blocks
        ]
        numbers = [block.number for block in blocks]
        self.memory.hot[numbers, HOT_KEY:] = rows[:, HOT_KEY:]
        self.step(blocks, Step.RESERVE)

    def publish(self, blocks: Sequence[Block], checksums: U64 | None, now: float) -> None:
        """RESERVED to READY: whatever readers may trust is written before the control words."""
        numbers = np.fromiter((block.number for block in blocks), np.int64, len(blocks))
        cold = self.memory.cold
        cold[numbers, COLD_CHECKSUM : COLD_CHECKSUM + 2] = 0 if checksums is None else checksums
        cold[numbers, COLD_TENANT] = np.fromiter(
            (block.tenant.number for block in blocks), np.uint64, len(blocks)
        )
        cold[numbers, COLD_STORED_AT] = int(now * 1e9)
        self.step(blocks, Step.COMMIT)

    def step(self, blocks: Sequence[Block], step: Step) -> None:
        """Move blocks along the table and store their control words, one aligned 8-byte store each."""
        cells, first = self._cells, self._first_hot
        for block in blocks:
            cells[first + HOT_WORDS * block.number] = block.control = advance(block.control, step)

    def _list(self, entry: tuple[int, int], word: int) -> None:
        self._cells[self.memory.first_entry + BUCKET_ENTRIES * entry[0] + entry[1]] = word

    def unlist(self, block: Block) -> None:
        """Remove a block from the index: its key may be stored anew elsewhere."""
        if block.entry is not None:
            self._list(block.entry, 0)
            block.entry = None

    def free(self, block: Block, step: Step) -> None:
        """Give a block's descriptor up with `step`, one that ends in FREE. Its slot is the caller's to give back."""
        self.unlist(block)
        self.step((block,), step)
        block.slot.slab.blocks.discard(block)
        del self.blocks[block.number]
        self._recycled.append(block.number)

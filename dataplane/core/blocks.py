"""The block table: descriptors, their rows in shared memory, and the index over them.

The only writer of index memory. Every change of a state passes through `protocol.states.advance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataplane.core.slabs import Slot
from dataplane.protocol.layout import (
    COLD_CHECKSUM,
    COLD_STORED_AT,
    COLD_TENANT,
    HOT_KEY,
    HOT_NBYTES,
    HOT_OFFSET,
    HOT_SPACE_SEGMENT,
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

    @property
    def charge(self) -> int:
        """Bytes that its tenant is charged: the slot, not only the block."""
        return self.slot.slab.slot_bytes


@dataclass(frozen=True, slots=True)
class NewBlock:
    """One block to reserve."""

    key: bytes
    words: U64
    """The key as four words."""
    slot: Slot
    tenant: Tenant
    nbytes: int


class BlockTable:
    """Descriptors by number, and the index by (space, key)."""

    def __init__(self, memory: IndexMemory) -> None:
        self.memory = memory
        self.blocks: dict[int, Block] = {}
        self._recycled: list[int] = []
        self._fresh = 0
        self._last_control: dict[int, int] = {}
        """Control words of recycled descriptors: the incarnation goes on where it was."""

    @property
    def max_blocks(self) -> int:
        return self.memory.max_blocks

    def free_descriptors(self) -> int:
        return self.max_blocks - len(self.blocks)

    def find(self, words: U64, space: int) -> list[Block | None]:
        """The block under each packed key [n, 4] of a space, in any state."""
        numbers, _ = self.memory.find(words, space)
        return [self.blocks.get(number) if number >= 0 else None for number in numbers.tolist()]

    def place(self, words: U64, space: int) -> list[tuple[tuple[int, int], int]]:
        """Candidate buckets and tag of each key, for `free_entry`."""
        buckets, tags = self.memory.places(words, space)
        return [
            ((first, second), tag)
            for (first, second), tag in zip(buckets.tolist(), tags.tolist(), strict=True)
        ]

    def free_entry(self, buckets: tuple[int, int]) -> tuple[int, int] | None:
        """A free (bucket, position), in the emptier of the two candidate buckets; None when both are full."""
        rows = [(self.memory.entries[bucket].tolist(), bucket) for bucket in buckets]
        row, bucket = max(rows, key=lambda item: item[0].count(0))
        return (bucket, row.index(0)) if 0 in row else None

    def neighbours(self, buckets: tuple[int, int]) -> list[Block]:
        """The blocks whose entries fill the two buckets."""
        numbers = [
            (int(entry) & 0xFFFFFFFF) - 1 for bucket in set(buckets) for entry in self.memory.entries[bucket]
        ]
        return [self.blocks[number] for number in numbers if number in self.blocks]

    def reserve(self, new: NewBlock, space: int, entry: tuple[int, int], tag: int) -> Block:
        """A RESERVED block on a free descriptor, found under its key from now on."""
        number, control = self._take_descriptor()
        after = advance(control, Step.RESERVE)
        row = self.memory.hot[number]
        row[HOT_KEY : HOT_KEY + 4] = new.words
        row[HOT_SPACE_SEGMENT] = space | new.slot.slab.segment.number << 32
        row[HOT_OFFSET] = new.slot.offset
        row[HOT_NBYTES] = new.nbytes
        self.memory.control[number] = after
        block = Block(number, after, space, new.key, new.tenant, new.slot, new.nbytes, entry)
        self.blocks[number] = block
        new.slot.slab.blocks.add(block)
        self.memory.entries[entry] = tag << 32 | (number + 1)
        return block

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
        control = self.memory.control
        for block in blocks:
            block.control = advance(block.control, step)
            control[block.number] = block.control

    def unlist(self, block: Block) -> None:
        """Remove a block from the index: its key may be stored anew elsewhere."""
        if block.entry is not None:
            self.memory.entries[block.entry] = 0
            block.entry = None

    def free(self, block: Block, step: Step) -> None:
        """Give a block's descriptor up with `step`, one that ends in FREE. Its slot is the caller's to give back."""
        self.unlist(block)
        self.step((block,), step)
        block.slot.slab.blocks.discard(block)
        del self.blocks[block.number]
        self._last_control[block.number] = block.control
        self._recycled.append(block.number)

    def _take_descriptor(self) -> tuple[int, int]:
        if self._recycled:
            number = self._recycled.pop()
            return number, self._last_control.pop(number)
        if self._fresh >= self.max_blocks:
            raise IndexError("no free descriptor: the caller did not ask `free_descriptors`")
        number = self._fresh
        self._fresh += 1
        return number, int(self.memory.control[number])

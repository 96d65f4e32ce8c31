"""Device memory of GPU copies: extents of one space, cut into slots of one size.

Engines open an extent as a whole and can also write to it, because devices do not enforce read-only access. Therefore
an extent holds blocks of one space, whose engines trust each other, and is never given to another space. Its memory
returns to the device when every engine that had it open has closed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from dataplane.protocol.gpu_copies import MAX_EXTENTS, UNIT_BYTES
from dataplane.protocol.states import STATE_MASK

if TYPE_CHECKING:
    from dataplane.core.blocks.blocks import Block

GRAIN_BYTES = 2 << 20
"""Granularity of allocations. Smaller ones share a device page with others, and a handle opens the whole page."""
MAX_BYTES = 256 << 20
MAX_GPU_COPIES = 32_768
"""Maximum number of GPU copies on one device. A plan visits all of them, in about 50 ms."""
PER_POOL = 32
"""An extent takes at most 1/PER_POOL of its pool if blocks are small enough, because each shape takes whole extents."""


class ExtentShape(NamedTuple):
    """The space and slot size of an extent."""

    space: int
    slot_bytes: int


def shape_of(block: Block) -> ExtentShape:
    return _shape(block.space, block.nbytes)


@lru_cache(maxsize=4096)
def _shape(space: int, nbytes: int) -> ExtentShape:
    return ExtentShape(space, -(-nbytes // UNIT_BYTES) * UNIT_BYTES)


def size_of(shape: ExtentShape, capacity_bytes: int) -> tuple[int, int]:
    """Return the slots and bytes of an extent in a pool of `capacity_bytes`."""
    target_bytes = max(GRAIN_BYTES, min(MAX_BYTES, capacity_bytes // PER_POOL))
    slots = max(1, target_bytes // shape.slot_bytes)
    return slots, -(-slots * shape.slot_bytes // GRAIN_BYTES) * GRAIN_BYTES


@dataclass(eq=False, slots=True)
class CopySlot:
    """A block's place in an extent."""

    block: Block
    control: int
    """The block's control word. The copy is valid as long as the word, apart from the state, stays the same."""
    extent: Extent
    slot: int
    shown: bool = False
    """Whether the copy is complete and in the table."""
    wanted: bool = True
    """False once withdrawn. The slot is then freed when no copy runs and no engine can be reading it."""

    @property
    def offset(self) -> int:
        return self.slot * self.extent.shape.slot_bytes

    @property
    def alive(self) -> bool:
        """Return whether the block still exists. True also while an invalidation waits for a lease to end."""
        return (self.block.control ^ self.control) & ~STATE_MASK == 0


@dataclass(eq=False, slots=True)
class Extent:
    """One allocation of device memory."""

    number: int
    shape: ExtentShape
    slots: int
    nbytes: int
    free: list[int] = field(default_factory=list)
    gpu_copies: dict[CopySlot, None] = field(default_factory=dict)
    readers: set[int] = field(default_factory=set)
    """Clients that may have it open."""
    made: bool = False
    """Whether the device has allocated the memory."""

    def take(self, block: Block) -> CopySlot:
        """Take a free slot for a block."""
        gpu_copy = CopySlot(block, block.control, self, self.free.pop())
        self.gpu_copies[gpu_copy] = None
        return gpu_copy

    def give(self, gpu_copy: CopySlot) -> None:
        """Free the slot of a copy that no process reads or writes."""
        del self.gpu_copies[gpu_copy]
        self.free.append(gpu_copy.slot)


class ExtentBudget:
    """Room for a plan. Extents are taken from it as slots are needed."""

    def __init__(self, capacity_bytes: int, left_bytes: int) -> None:
        """Create a budget: `capacity_bytes` determines the size of extents, `left_bytes` their number."""
        self._capacity = capacity_bytes
        self.left_bytes = max(0, left_bytes)
        self._extents = MAX_EXTENTS
        self._blocks = MAX_GPU_COPIES
        self._slots: dict[ExtentShape, int] = {}

    @property
    def free_bytes(self) -> int:
        """Return the free bytes of extents not yet taken and of partly filled ones."""
        return self.left_bytes + sum(slots * shape.slot_bytes for shape, slots in self._slots.items())

    @property
    def full(self) -> bool:
        """Return whether no further block fits, whatever its shape."""
        out_of_memory = self.left_bytes < GRAIN_BYTES or not self._extents
        return not self._blocks or (out_of_memory and not any(self._slots.values()))

    def never(self, shape: ExtentShape) -> bool:
        """Return whether an extent of a shape is larger than the pool."""
        return size_of(shape, self._capacity)[1] > self._capacity

    def take(self, shape: ExtentShape) -> bool:
        """Take room for one more block of a shape, and return whether it fits."""
        slots = self._slots.get(shape, 0)
        if not self._blocks:
            return False
        if not slots:
            slots, nbytes = size_of(shape, self._capacity)
            if nbytes > self.left_bytes or not self._extents:
                return False
            self.left_bytes -= nbytes
            self._extents -= 1
        self._slots[shape] = slots - 1
        self._blocks -= 1
        return True

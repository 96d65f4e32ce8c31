"""Device memory of replicas: extents of one space, cut into slots of one size.

Engines open an extent as a whole, to read and, as devices go, to write: so an extent has blocks of one space, whose
engines trust each other, and none is ever given to another space. Its memory goes back to the device when every engine
that had it open has closed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from dataplane.protocol.replicas import MAX_EXTENTS, UNIT_BYTES
from dataplane.protocol.states import STATE_MASK

if TYPE_CHECKING:
    from dataplane.core.blocks import Block

GRAIN_BYTES = 2 << 20
"""Smaller allocations share a page of the device with others, and a handle opens the whole page."""
MOST_BYTES = 256 << 20
MOST_REPLICAS = 32_768
"""On one device: a plan walks them all, in some 50 ms."""
PER_POOL = 8
"""Extents are at most an eighth of their pool, where blocks are small enough."""


class Shape(NamedTuple):
    """What the slots of an extent are for."""

    space: int
    slot_bytes: int


def shape_of(block: Block) -> Shape:
    return _shape(block.space, block.nbytes)


@lru_cache(maxsize=4096)
def _shape(space: int, nbytes: int) -> Shape:
    return Shape(space, -(-nbytes // UNIT_BYTES) * UNIT_BYTES)


def size_of(shape: Shape, capacity_bytes: int) -> tuple[int, int]:
    """Slots and bytes of an extent in a pool of so many bytes."""
    wanted = max(GRAIN_BYTES, min(MOST_BYTES, capacity_bytes // PER_POOL))
    slots = max(1, wanted // shape.slot_bytes)
    return slots, -(-slots * shape.slot_bytes // GRAIN_BYTES) * GRAIN_BYTES


@dataclass(eq=False, slots=True)
class Replica:
    """A block's place in an extent."""

    block: Block
    control: int
    """The block's control word: as long as it is the same, the block is."""
    extent: Extent
    slot: int
    shown: bool = False
    """Whole, and in the table."""
    wanted: bool = True
    """False: withdrawn. Its slot is given back when no copy runs and no engine can be reading."""

    @property
    def offset(self) -> int:
        return self.slot * self.extent.shape.slot_bytes

    @property
    def alive(self) -> bool:
        """Its block is still there: also while an invalidation waits for the end of a lease."""
        return (self.block.control ^ self.control) & ~STATE_MASK == 0


@dataclass(eq=False, slots=True)
class Extent:
    """One allocation."""

    number: int
    shape: Shape
    slots: int
    nbytes: int
    free: list[int] = field(default_factory=list)
    replicas: dict[Replica, None] = field(default_factory=dict)
    readers: set[int] = field(default_factory=set)
    """Clients that may have it open."""
    made: bool = False
    """The device has given the memory."""

    def take(self, block: Block) -> Replica:
        """A free slot for a block."""
        replica = Replica(block, block.control, self, self.free.pop())
        self.replicas[replica] = None
        return replica

    def give(self, replica: Replica) -> None:
        """Nobody reads or writes it any more."""
        del self.replicas[replica]
        self.free.append(replica.slot)


class Room:
    """How many extents fit, for a plan: extents are taken as slots are needed."""

    def __init__(self, capacity_bytes: int, left_bytes: int) -> None:
        """`capacity_bytes` decides how large extents are, `left_bytes` how many there may be."""
        self._capacity = capacity_bytes
        self.left_bytes = max(0, left_bytes)
        self._extents = MAX_EXTENTS
        self._blocks = MOST_REPLICAS
        self._slots: dict[Shape, int] = {}

    @property
    def full(self) -> bool:
        """Nothing more fits, of whatever shape."""
        out_of_memory = self.left_bytes < GRAIN_BYTES or not self._extents
        return not self._blocks or (out_of_memory and not any(self._slots.values()))

    def take(self, shape: Shape) -> bool:
        """Whether one more block of a shape fits; then it is reckoned in."""
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

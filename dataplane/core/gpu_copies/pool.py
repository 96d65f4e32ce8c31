"""State of the GPU copies on one device: present, pending and withdrawn copies. `gpu_copies` maintains it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dataplane.core.gpu_copies.extents import CopySlot, Extent
from dataplane.protocol.gpu_copies import GpuCopyIndex
from dataplane.protocol.stats.pins import GpuCopyPoolStats

if TYPE_CHECKING:
    from dataplane.core.blocks.blocks import Block
    from dataplane.core.pool.pins import PinBundle


@dataclass(frozen=True, slots=True)
class PendingCopy:
    """A block that is to be copied to its slot on the device."""

    gpu_copy: CopySlot
    segment: int
    offset: int
    """Byte offset of the block in the segment."""


@dataclass(frozen=True, slots=True)
class FreeExtent:
    """An extent whose memory is to be returned to the device."""

    extent: Extent


Work = PendingCopy | FreeExtent


@dataclass(eq=False, slots=True)
class GpuCopyPool:
    """The GPU copies on one device."""

    device: str
    name: str
    capacity_bytes: int
    table: GpuCopyIndex
    left_bytes: int
    """Bytes of the capacity that may be used: less than `capacity_bytes` after the device refused memory."""
    readers: dict[int, set[int]] = field(default_factory=dict)
    """Spaces whose GPU copies each client reads, by client number."""
    gpu_copies: dict[Block, CopySlot] = field(default_factory=dict)
    """Wanted copies by block."""
    extents: dict[int, Extent] = field(default_factory=dict)
    leaving: dict[int, Extent] = field(default_factory=dict)
    """Extents that are no longer listed but still open in some engine."""
    freeing: list[Extent] = field(default_factory=list)
    """Extents that every engine has closed."""
    missing: deque[Block] = field(default_factory=deque)
    """Blocks to be copied, most important first."""
    withdrawn: list[CopySlot] = field(default_factory=list)
    """Withdrawn copies whose slots wait for copying and reading to end."""
    copying: dict[CopySlot, None] = field(default_factory=dict)
    copying_bytes: int = 0
    planned_since: dict[PinBundle, float] = field(default_factory=dict)
    """Time since which each pinned bundle has been in the plan."""
    changed: bool = True
    """Whether something changed since the last plan."""
    short: bool = False
    """Whether the last plan left out blocks for lack of room."""
    plan_at: float = 0.0
    planned_at: float = 0.0
    spaces: set[int] = field(default_factory=set)
    """Spaces that the readers read, as of the last plan."""
    too_large: int = 0
    """Number of blocks that are larger than the pool."""
    retry_at: float | None = None
    paused: bool = False
    """Whether a copy failed, so that none begins before `retry_at`."""
    broken: bool = False
    wanted: int = 0
    shown: int = 0
    shown_bytes: int = 0
    last_extent: int = 0
    copied_blocks: int = 0
    copied_bytes: int = 0
    evicted_blocks: int = 0
    read_blocks: int = 0
    failed_copies: int = 0
    problem: str = ""

    @property
    def used_bytes(self) -> int:
        return sum(extent.nbytes for extents in (self.extents, self.leaving) for extent in extents.values()) + sum(
            extent.nbytes for extent in self.freeing
        )


def stats_of(pool: GpuCopyPool) -> GpuCopyPoolStats:
    """Return the statistics that a heartbeat reports for a pool."""
    return GpuCopyPoolStats(
        device=pool.device,
        name=pool.name,
        capacity_bytes=pool.capacity_bytes,
        used_bytes=pool.used_bytes,
        gpu_copies=pool.shown,
        gpu_copy_bytes=pool.shown_bytes,
        wanted=pool.wanted,
        copying=len(pool.copying),
        leaving_bytes=sum(extent.nbytes for extent in pool.leaving.values())
        + sum(gpu_copy.extent.shape.slot_bytes for gpu_copy in pool.withdrawn),
        readers=len(pool.readers),
        copied_blocks=pool.copied_blocks,
        copied_bytes=pool.copied_bytes,
        evicted_blocks=pool.evicted_blocks,
        read_blocks=pool.read_blocks,
        failed_copies=pool.failed_copies,
        problem=pool.problem or (f"{pool.too_large} blocks are larger than the pool" if pool.too_large else ""),
    )


def faults_of(pool: GpuCopyPool) -> list[str]:
    """Return the inconsistencies between the data structures of a pool; empty if there are none."""
    faults = []
    listed = {gpu_copy for extent in pool.extents.values() for gpu_copy in extent.gpu_copies}
    tracked = {*pool.gpu_copies.values(), *pool.withdrawn}
    if listed != tracked:
        faults.append(f"GPU copies on {pool.device}: extents hold {len(listed)}, {len(tracked)} are known")
    for extent in pool.extents.values():
        slots = sorted([*extent.free, *(gpu_copy.slot for gpu_copy in extent.gpu_copies)])
        if slots != list(range(extent.slots)):
            faults.append(f"extent {extent.number} on {pool.device} has duplicate or missing slots")
    if pool.used_bytes > pool.capacity_bytes:
        faults.append(f"extents on {pool.device} take {pool.used_bytes} of {pool.capacity_bytes} bytes")
    return faults

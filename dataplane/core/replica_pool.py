"""The replicas on one device: what is there, what is to come, and what is on its way out. Kept by `replicas`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dataplane.core.extents import Extent, Replica
from dataplane.protocol.events import ReplicaPoolStats
from dataplane.protocol.replicas import ReplicaTable

if TYPE_CHECKING:
    from dataplane.core.blocks import Block
    from dataplane.core.pins import Bundle


@dataclass(frozen=True, slots=True)
class Copy:
    """A block to be copied to where its replica is to be."""

    replica: Replica
    segment: int
    offset: int
    """In the segment."""


@dataclass(frozen=True, slots=True)
class Free:
    """An extent whose memory goes back to the device."""

    extent: Extent


Work = Copy | Free


@dataclass(eq=False, slots=True)
class ReplicaPool:
    """The replicas on one device."""

    device: str
    name: str
    capacity_bytes: int
    table: ReplicaTable
    left_bytes: int
    """How much of the capacity may be used: less than all of it after the device refused memory."""
    readers: dict[int, set[int]] = field(default_factory=dict)
    """Clients that read replicas, and of which spaces."""
    replicas: dict[Block, Replica] = field(default_factory=dict)
    """Wanted ones, by their block."""
    extents: dict[int, Extent] = field(default_factory=dict)
    leaving: dict[int, Extent] = field(default_factory=dict)
    """Not listed any more, still open in some engine."""
    freeing: list[Extent] = field(default_factory=list)
    """Closed by everybody."""
    missing: deque[Block] = field(default_factory=deque)
    """Blocks that are to be copied, the most important first."""
    withdrawn: list[Replica] = field(default_factory=list)
    """Whose slots wait for copies and readers to end."""
    copying: dict[Replica, None] = field(default_factory=dict)
    copying_bytes: int = 0
    came: dict[Bundle, float] = field(default_factory=dict)
    changed: bool = True
    short: bool = False
    plan_at: float = 0.0
    planned_at: float = 0.0
    spaces: set[int] = field(default_factory=set)
    """That its readers read, as of the last plan."""
    too_large: int = 0
    """Blocks that are larger than the pool."""
    retry_at: float | None = None
    paused: bool = False
    """A copy failed: none is begun before `retry_at`."""
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
        return sum(each.nbytes for some in (self.extents, self.leaving) for each in some.values()) + sum(
            each.nbytes for each in self.freeing
        )


def stats_of(pool: ReplicaPool) -> ReplicaPoolStats:
    """What a heartbeat says of it."""
    return ReplicaPoolStats(
        device=pool.device,
        name=pool.name,
        capacity_bytes=pool.capacity_bytes,
        used_bytes=pool.used_bytes,
        replicas=pool.shown,
        replica_bytes=pool.shown_bytes,
        wanted=pool.wanted,
        copying=len(pool.copying),
        leaving_bytes=sum(each.nbytes for each in pool.leaving.values())
        + sum(each.extent.shape.slot_bytes for each in pool.withdrawn),
        readers=len(pool.readers),
        copied_blocks=pool.copied_blocks,
        copied_bytes=pool.copied_bytes,
        evicted_blocks=pool.evicted_blocks,
        read_blocks=pool.read_blocks,
        failed_copies=pool.failed_copies,
        problem=pool.problem
        or (f"{pool.too_large} blocks are larger than the pool" if pool.too_large else ""),
    )


def faults_of(pool: ReplicaPool) -> list[str]:
    """Contradictions between its books; empty when all is well."""
    faults = []
    held = {each for extent in pool.extents.values() for each in extent.replicas}
    known = {*pool.replicas.values(), *pool.withdrawn}
    if held != known:
        faults.append(f"replicas on {pool.device}: extents hold {len(held)}, {len(known)} are known")
    for extent in pool.extents.values():
        slots = sorted([*extent.free, *(each.slot for each in extent.replicas)])
        if slots != list(range(extent.slots)):
            faults.append(f"extent {extent.number} on {pool.device} has slots twice, or not at all")
    if pool.used_bytes > pool.capacity_bytes:
        faults.append(f"extents on {pool.device} take {pool.used_bytes} of {pool.capacity_bytes} bytes")
    return faults

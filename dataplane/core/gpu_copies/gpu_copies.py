"""GPU copies: copies of pinned blocks in GPU memory, which engines on that GPU read instead of the blocks in the pool.

A GPU copy is a second copy. Its block stays in the pool under the strength of its pin, so losing a GPU, an extent or
this process loses no data. `dataplane.protocol.gpu_copies` explains how engines read GPU copies and when a slot may be
reused; `dataplane.core.gpu_copies.plan` explains which blocks get a copy.

The component that owns the devices takes work with `work`, does it in the given order, and reports the result with
`copied` or `failed`. The data plane itself holds a lease on each block that is being copied.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dataplane.core.gpu_copies.extents import CopySlot, Extent, ExtentBudget, ExtentShape, shape_of, size_of
from dataplane.core.gpu_copies.plan import STAY_S, CopyPlan
from dataplane.core.gpu_copies.pool import FreeExtent, GpuCopyPool, PendingCopy, Work, faults_of, stats_of
from dataplane.protocol.events import Event, GpuCopyPoolCreated, GpuCopyPoolFailed
from dataplane.protocol.gpu_copies import MAX_EXTENTS, GpuCopyIndex, location_of
from dataplane.protocol.states import STATE_MASK, State
from dataplane.protocol.stats.pins import GpuCopyPoolStats

if TYPE_CHECKING:
    from dataplane.core.engines.engines import Engine
    from dataplane.core.pool.pool import Pool

PLAN_INTERVAL_S = 0.5
PLAN_S_PER_LOOK = 3e-5
"""Minimum time between two plans of one device, per pin and block that the last plan looked at. A plan takes about
1.5 us for each, during which no engine is served."""
MAX_REFUSED = 64
"""Maximum number of unusable devices that are reported."""
RETRY_S = 30.0
"""Time until the next attempt after a device refused memory or a copy."""
MAX_COPYING_BYTES = 256 << 20
"""Bytes of running copies on one device above which no further copy begins. One copy may always run."""
MAX_COPYING_BLOCKS = 1024
_READY = int(State.READY)


class GpuCopyTable:
    """The GPU copies on all devices of a node."""

    def __init__(
        self, pool: Pool, engines: Mapping[int, Engine], emit: Callable[[Event], None], capacity_bytes: int
    ) -> None:
        self._pool = pool
        self._engines = engines
        self._emit = emit
        self.pools: dict[str, GpuCopyPool] = {}
        """Pools by the UUID of their device."""
        self.capacity_bytes = capacity_bytes
        """Bytes that GPU copies may take on each device; 0 for none."""
        self._refused: dict[str, str] = {}
        """Reasons why devices that engines asked for cannot be used, by UUID."""
        self._recount = False

    # ---- devices and engines

    def open(self, device: str, name: str, capacity_bytes: int, table: GpuCopyIndex, now: float) -> None:
        """Add a device when its first engine asks for GPU copies."""
        self._refused.pop(device, None)
        self.pools[device] = GpuCopyPool(device, name, capacity_bytes, table, capacity_bytes)
        self._emit(GpuCopyPoolCreated(now, device, name, capacity_bytes))

    def refuse(self, device: str, problem: str, now: float) -> None:
        """Record that an engine asked for a device that cannot be used."""
        if self._refused.get(device) == problem or len(self._refused) >= MAX_REFUSED:
            return
        self._refused[device] = problem
        self._emit(GpuCopyPoolFailed(now, device, problem))

    def read_by(self, client: int, device: str, spaces: Iterable[int] | None = None) -> None:
        """Register an engine as a reader of the GPU copies of some of its spaces; None means all of them."""
        pool, attached_spaces = self.pools[device], self._engines[client].spaces
        requested_spaces = attached_spaces.keys() if spaces is None else attached_spaces.keys() & set(spaces)
        read_spaces = pool.readers.setdefault(client, set())
        if not requested_spaces <= read_spaces:
            read_spaces.update(requested_spaces)
            pool.changed = True

    def grant(self, client: int, device: str, numbers: Sequence[int]) -> list[Extent]:
        """Return the requested extents that the engine may open."""
        pool, spaces = self.pools[device], self._engines[client].spaces
        granted: list[Extent] = []
        if pool.broken:
            return granted
        for number in dict.fromkeys(numbers):
            extent = pool.extents.get(number)
            if extent is not None and extent.made and extent.shape.space in spaces:
                extent.readers.add(client)
                granted.append(extent)
        return granted

    def closed(self, client: int, device: str, numbers: Sequence[int]) -> None:
        """Record that an engine has unmapped extents."""
        pool = self.pools[device]
        for number in numbers:
            extent = pool.leaving.get(number) or pool.extents.get(number)
            if extent is not None:
                extent.readers.discard(client)
                if number in pool.leaving:
                    self._leave(pool, extent)

    def forget(self, client: int) -> None:
        """Remove a reader whose process is gone or that holds nothing."""
        for pool in self.pools.values():
            if pool.readers.pop(client, None) is None:
                continue
            pool.changed = True
            for extents in (pool.extents, pool.leaving):
                for extent in list(extents.values()):
                    extent.readers.discard(client)
            for extent in list(pool.leaving.values()):
                self._leave(pool, extent)

    @staticmethod
    def _leave(pool: GpuCopyPool, extent: Extent) -> None:
        if not extent.readers:
            del pool.leaving[extent.number]
            if extent.made:
                pool.freeing.append(extent)
            pool.changed = True

    # ---- periodic work

    def step(self, now: float) -> None:
        """Update the plan of one device where something changed, and free slots that no engine reads."""
        pins = self._pool.pins
        if pins.gpu_copies_changed:
            pins.gpu_copies_changed = False
            self._recount = True
            for pool in self.pools.values():
                pool.changed = True
        for pool in self.pools.values():
            if pool.retry_at is not None and now >= pool.retry_at and not pool.broken:
                pool.retry_at, pool.paused = None, False
                pool.left_bytes, pool.changed = pool.capacity_bytes, True
            if pool.withdrawn:
                self._give_back(pool)
        # One plan per step, because engines wait while a plan is made.
        due = [pool for pool in self.pools.values() if now >= pool.plan_at and not pool.broken]
        for pool in sorted(due, key=lambda pool: pool.plan_at):
            if pool.changed or self._needs_new_plan(pool):
                self._plan(pool, now)
                return

    def _needs_new_plan(self, pool: GpuCopyPool) -> bool:
        """Return whether not everything fits and, since the last plan, soft pins were used or became replaceable."""
        return pool.short and any(
            bundle.strength == "soft"
            and max(bundle.hit_at, pool.planned_since.get(bundle, 0.0) + STAY_S) >= pool.planned_at
            for bundle in self._pool.pins.with_gpu_copies
        )

    def _plan(self, pool: GpuCopyPool, now: float) -> None:
        pool.changed = False
        spaces = set().union(*pool.readers.values())
        self._recount |= spaces != pool.spaces
        pool.spaces = spaces
        gone = sum(extent.nbytes for extent in (*pool.leaving.values(), *pool.freeing))
        bundles = self._pool.pins.with_gpu_copies
        plan = CopyPlan(
            bundles, spaces, ExtentBudget(pool.capacity_bytes, pool.left_bytes - gone), pool.planned_since, now
        )
        pool.planned_at = now
        pool.plan_at = now + max(PLAN_INTERVAL_S, plan.looked * PLAN_S_PER_LOOK)
        pool.short, pool.wanted, pool.too_large = plan.short, plan.wanted, len(plan.too_large)
        pool.planned_since = {bundle: pool.planned_since.get(bundle, now) for bundle in plan.bundles}
        self._withdraw(pool, [gpu_copy for block, gpu_copy in pool.gpu_copies.items() if block not in plan.blocks])
        pool.missing = deque(block for block in plan.blocks if block not in pool.gpu_copies)
        self._make_way(pool, plan)
        self._list(pool)

    def _withdraw(self, pool: GpuCopyPool, gpu_copies: Sequence[CopySlot]) -> None:
        """Withdraw GPU copies, so that no new reads of them begin."""
        if not gpu_copies:
            return
        for gpu_copy in gpu_copies:
            del pool.gpu_copies[gpu_copy.block]
            gpu_copy.wanted = False
            pool.evicted_blocks += gpu_copy.shown
            gpu_copy.shown = False
            pool.withdrawn.append(gpu_copy)
        pool.table.hide(np.array([gpu_copy.block.number for gpu_copy in gpu_copies if gpu_copy.alive], np.int64))
        self._recount = True

    def _give_back(self, pool: GpuCopyPool) -> None:
        """Free the slots of withdrawn GPU copies whose block is gone or is held by no lease."""
        waiting, checked = [], []
        for gpu_copy in pool.withdrawn:
            if gpu_copy in pool.copying:
                waiting.append(gpu_copy)
            elif gpu_copy.alive:
                checked.append(gpu_copy)
            else:  # a block disappears only when no lease holds it
                gpu_copy.extent.give(gpu_copy)
        if checked:
            leased = self._pool.leases.held([gpu_copy.block for gpu_copy in checked])
            for gpu_copy, is_leased in zip(checked, leased, strict=True):
                if is_leased:
                    waiting.append(gpu_copy)
                else:
                    gpu_copy.extent.give(gpu_copy)
        if len(waiting) < len(pool.withdrawn):
            pool.withdrawn = waiting
            pool.changed = True

    def _make_way(self, pool: GpuCopyPool, plan: CopyPlan) -> None:
        """Give up extents that the plan does not need.

        These are empty extents and, when another shape lacks room, extents whose copies fit into the other extents of
        their shape.
        """
        need: dict[ExtentShape, int] = {}
        for block in plan.blocks:
            shape = shape_of(block)
            need[shape] = need.get(shape, 0) + 1
        by_shape: dict[ExtentShape, list[Extent]] = {}
        for extent in pool.extents.values():
            by_shape.setdefault(extent.shape, []).append(extent)
        lacking, surplus = 0, []
        for shape, blocks in need.items():
            slots, nbytes = size_of(shape, pool.capacity_bytes)
            lacking += max(0, -(-blocks // slots) - len(by_shape.get(shape, ()))) * nbytes
        for shape, extents in by_shape.items():
            slots, _ = size_of(shape, pool.capacity_bytes)
            extents.sort(key=lambda extent: len(extent.gpu_copies), reverse=True)
            surplus += extents[-(-need.get(shape, 0) // slots) :]
        lacking -= pool.left_bytes - pool.used_bytes
        for extent in sorted(surplus, key=lambda extent: len(extent.gpu_copies)):
            if lacking > 0 and extent.gpu_copies:
                self._withdraw(pool, [gpu_copy for gpu_copy in extent.gpu_copies if gpu_copy.wanted])
                lacking -= extent.nbytes
            if not extent.gpu_copies:
                del pool.extents[extent.number]
                pool.leaving[extent.number] = extent
                self._leave(pool, extent)

    @staticmethod
    def _list(pool: GpuCopyPool) -> None:
        listed = [extent.number for extent in pool.extents.values() if extent.made]
        if sorted(listed) != sorted(pool.table.extents()):
            pool.table.list_extents(listed)

    # ---- work on devices

    def has_work(self, device: str) -> bool:
        """Return whether a device has work to do."""
        pool = self.pools[device]
        begins = bool(pool.missing) and not pool.broken and not pool.paused
        return begins or bool(pool.freeing)

    def work(self, device: str) -> list[Work]:
        """Return the next work on a device, in the order in which it must be done."""
        pool = self.pools[device]
        work: list[Work] = [FreeExtent(extent) for extent in pool.freeing]
        pool.freeing.clear()
        if pool.broken or pool.paused:
            return work
        begun: list[int] = []
        while (
            pool.missing
            and len(pool.copying) < MAX_COPYING_BLOCKS
            and (not pool.copying or pool.copying_bytes < MAX_COPYING_BYTES)
        ):
            block = pool.missing.popleft()
            if block.control & STATE_MASK != _READY or block in self._pool.dead or block in pool.gpu_copies:
                continue
            extent = self._extent_for(pool, shape_of(block))
            if extent is None:
                continue  # a new plan follows when slots come free
            gpu_copy = pool.gpu_copies[block] = extent.take(block)
            pool.copying[gpu_copy] = None
            pool.copying_bytes += block.nbytes
            begun.append(block.number)
            work.append(PendingCopy(gpu_copy, block.slot.slab.segment.number, block.slot.offset))
        if begun:
            self._pool.leases.hold(begun, self._pool.table.max_blocks)
        return work

    @staticmethod
    def _extent_for(pool: GpuCopyPool, shape: ExtentShape) -> Extent | None:
        """Return an extent with a free slot, a new one if necessary, or None if there is no room."""
        open_extents = [extent for extent in pool.extents.values() if extent.shape == shape and extent.free]
        if open_extents:  # the fullest one, so that others may become empty
            return min(open_extents, key=lambda extent: len(extent.free))
        slots, nbytes = size_of(shape, pool.capacity_bytes)
        if pool.used_bytes + nbytes > pool.left_bytes or len(pool.extents) >= MAX_EXTENTS:
            return None
        pool.last_extent += 1
        extent = Extent(pool.last_extent, shape, slots, nbytes, list(range(slots))[::-1])
        pool.extents[extent.number] = extent
        return extent

    def copied(self, device: str, copies: Sequence[PendingCopy]) -> None:
        """Record that copies are complete, and show those that are still wanted to engines."""
        pool = self._ended(device, copies)
        for copy in copies:
            copy.gpu_copy.extent.made = True
            pool.copied_blocks += 1
            pool.copied_bytes += copy.gpu_copy.block.nbytes
        if pool.retry_at is None:
            pool.problem = ""
        self._list(pool)
        for gpu_copy in [copy.gpu_copy for copy in copies if copy.gpu_copy.wanted]:
            gpu_copy.shown = True
            block, extent = gpu_copy.block, gpu_copy.extent
            pool.table.show(block.number, block.control, location_of(extent.number, gpu_copy.offset))
            self._recount = True

    def failed(self, device: str, copy: PendingCopy, problem: str, now: float, *, memory: bool, lasting: bool) -> None:
        """Record a failed copy.

        `memory` means that the device refused the memory of the extent, `lasting` that the device is no longer usable.
        """
        pool, gpu_copy = self._ended(device, (copy,)), copy.gpu_copy
        pool.failed_copies += 1
        if gpu_copy.wanted:
            self._withdraw(pool, [gpu_copy])
        if memory and not lasting:
            for extent in [extent for extent in pool.extents.values() if not extent.made]:
                self._withdraw(pool, [slot for slot in extent.gpu_copies if slot.wanted])
            pool.left_bytes = sum(extent.nbytes for extent in pool.extents.values() if extent.made)
            self._report(pool, problem, now)
        else:
            self.refused(device, problem, now, lasting=lasting)

    def refused(self, device: str, problem: str, now: float, *, lasting: bool) -> None:
        """Record that a device accepts no copies: never again if `lasting`, else until the next attempt."""
        pool = self.pools[device]
        pool.paused = True
        if lasting:
            pool.broken = True
            self._withdraw(pool, list(pool.gpu_copies.values()))
        self._report(pool, problem, now)

    def _report(self, pool: GpuCopyPool, problem: str, now: float) -> None:
        if problem != pool.problem:
            self._emit(GpuCopyPoolFailed(now, pool.device, problem))
        pool.problem, pool.retry_at = problem, now + RETRY_S
        pool.missing.clear()

    def _ended(self, device: str, copies: Sequence[PendingCopy]) -> GpuCopyPool:
        pool = self.pools[device]
        self._pool.leases.release([copy.gpu_copy.block.number for copy in copies])
        for copy in copies:
            del pool.copying[copy.gpu_copy]
            pool.copying_bytes -= copy.gpu_copy.block.nbytes
        return pool

    # ---- reads by this process

    def slots_of(self, device: str, descriptors: Sequence[int]) -> list[CopySlot | None]:
        """Return each block's GPU copy on a device, or None. This process must hold leases on the blocks."""
        pool, blocks = self.pools.get(device), self._pool.table.blocks
        if pool is None or not pool.gpu_copies:
            return [None] * len(descriptors)
        slots: list[CopySlot | None] = []
        for number in descriptors:
            gpu_copy = pool.gpu_copies.get(blocks[number])
            slots.append(gpu_copy if gpu_copy is not None and gpu_copy.shown else None)
        pool.read_blocks += sum(slot is not None for slot in slots)
        return slots

    # ---- state

    def count(self) -> None:
        """Update the GPU copy counts of pins and pools."""
        if not self._recount:
            return
        self._recount = False
        pools = Counter(space for pool in self.pools.values() for space in pool.spaces)
        for bundle in self._pool.pins.with_gpu_copies:
            bundle.gpu_copies = bundle.gpu_copy_bytes = 0
            bundle.gpu_copies_wanted = bundle.readable(pools)
        for pool in self.pools.values():
            shown = [block for block, gpu_copy in pool.gpu_copies.items() if gpu_copy.shown]
            pool.shown, pool.shown_bytes = len(shown), sum(block.nbytes for block in shown)
            for block in shown:
                for bundle in self._pool.pins.marked.get(block, ()):
                    bundle.gpu_copies += 1
                    bundle.gpu_copy_bytes += block.nbytes

    def stats(self) -> list[GpuCopyPoolStats]:
        """Return the statistics of all devices, as of the last `count`."""
        refused = [
            GpuCopyPoolStats(device, "", self.capacity_bytes, 0, 0, 0, 0, 0, problem=problem)
            for device, problem in self._refused.items()
        ]
        return [*(stats_of(pool) for pool in self.pools.values()), *refused]

    def faults(self) -> list[str]:
        """Return the inconsistencies between the data structures; empty if there are none."""
        return [fault for pool in self.pools.values() for fault in faults_of(pool)]

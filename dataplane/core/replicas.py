"""Replicas: copies of pinned blocks in the memory of GPUs, which engines there read instead of the pool's.

A replica is a second copy. Its block stays in the pool, under the strength of its pin: when a GPU, an extent or this
process is lost, nothing is lost with it. How engines read replicas, and when a slot may be used anew, is explained in
`dataplane.protocol.replicas`; which blocks get one, in `dataplane.core.replica_plan`.

Whoever has the devices takes work with `work`, does it in its order, and says how it went with `copied` or `failed`. A
block that is being copied is leased by the data plane itself.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dataplane.core.extents import Extent, Replica, Room, Shape, shape_of, size_of
from dataplane.core.replica_plan import STAY_S, Plan
from dataplane.core.replica_pool import Copy, Free, ReplicaPool, Work, faults_of, stats_of
from dataplane.protocol.events import Event, ReplicaPoolFailed, ReplicaPoolMade, ReplicaPoolStats
from dataplane.protocol.replicas import MAX_EXTENTS, ReplicaTable, place_of
from dataplane.protocol.states import STATE_MASK, State

if TYPE_CHECKING:
    from dataplane.core.engines import Engine
    from dataplane.core.pool import Pool

PLAN_INTERVAL_S = 0.5
PLAN_S_PER_LOOK = 3e-5
"""Between two plans of one device, for every pin and block that the last one looked at: a plan takes some 1.5 us for
each, which nobody is served in."""
MAX_REFUSED = 64
"""Devices that are told of though they cannot be used."""
RETRY_S = 30.0
"""After a device refused memory or a copy."""
MAX_COPYING_BYTES = 256 << 20
"""Under way at one time on one device, or one block."""
MAX_COPYING_BLOCKS = 1024
_READY = int(State.READY)


class Replicas:
    """Those of all devices of a node."""

    def __init__(self, pool: Pool, engines: dict[int, Engine], emit: Callable[[Event], None]) -> None:
        self._pool = pool
        self._engines = engines
        self._emit = emit
        self.pools: dict[str, ReplicaPool] = {}
        """By the UUID of the device."""
        self.capacity_bytes = 0
        """What replicas may take of each device."""
        self._refused: dict[str, str] = {}
        """Why devices that engines asked for cannot be used."""
        self._recount = False

    # ---- devices and engines

    def open(self, device: str, name: str, capacity_bytes: int, table: ReplicaTable, now: float) -> None:
        """A device whose first engine asked for replicas."""
        self._refused.pop(device, None)
        self.pools[device] = ReplicaPool(device, name, capacity_bytes, table, capacity_bytes)
        self._emit(ReplicaPoolMade(now, device, name, capacity_bytes))

    def refuse(self, device: str, problem: str, now: float) -> None:
        """An engine asked for a device that cannot be used."""
        if self._refused.get(device) == problem or len(self._refused) >= MAX_REFUSED:
            return
        self._refused[device] = problem
        self._emit(ReplicaPoolFailed(now, device, problem))

    def read_by(self, client: int, device: str, spaces: Iterable[int] | None = None) -> None:
        """An engine reads the replicas of some of its spaces from now on; None for all of them."""
        pool, own = self.pools[device], self._engines[client].spaces
        wanted = own.keys() if spaces is None else own.keys() & set(spaces)
        known = pool.readers.setdefault(client, set())
        if not wanted <= known:
            known.update(wanted)
            pool.changed = True

    def grant(self, client: int, device: str, numbers: Sequence[int]) -> list[Extent]:
        """Extents that an engine may open; others are left out."""
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
        """An engine has ended its mappings of extents."""
        pool = self.pools[device]
        for number in numbers:
            extent = pool.leaving.get(number) or pool.extents.get(number)
            if extent is not None:
                extent.readers.discard(client)
                if number in pool.leaving:
                    self._leave(pool, extent)

    def forget(self, client: int) -> None:
        """A process is gone, or holds nothing any more."""
        for pool in self.pools.values():
            if pool.readers.pop(client, None) is None:
                continue
            pool.changed = True
            for some in (pool.extents, pool.leaving):
                for extent in list(some.values()):
                    extent.readers.discard(client)
            for extent in list(pool.leaving.values()):
                self._leave(pool, extent)

    @staticmethod
    def _leave(pool: ReplicaPool, extent: Extent) -> None:
        if not extent.readers:
            del pool.leaving[extent.number]
            if extent.made:
                pool.freeing.append(extent)
            pool.changed = True

    # ---- time passes

    def step(self, now: float) -> None:
        """Plan anew where something changed, and give slots back that nobody reads any more."""
        pins = self._pool.pins
        if pins.replicated_changed:
            pins.replicated_changed = False
            self._recount = True
            for pool in self.pools.values():
                pool.changed = True
        for pool in self.pools.values():
            if pool.retry_at is not None and now >= pool.retry_at and not pool.broken:
                pool.retry_at, pool.paused = None, False
                pool.left_bytes, pool.changed = pool.capacity_bytes, True
            if pool.withdrawn:
                self._give_back(pool)
        # One at a time: engines wait for as long as a plan takes.
        due = [pool for pool in self.pools.values() if now >= pool.plan_at and not pool.broken]
        for pool in sorted(due, key=lambda each: each.plan_at):
            if pool.changed or self._turned(pool):
                self._plan(pool, now)
                return

    def _turned(self, pool: ReplicaPool) -> bool:
        """Not everything fits, and soft pins were used, or may be pushed out, since the last plan."""
        return pool.short and any(
            bundle.strength == "soft"
            and max(bundle.hit_at, pool.came.get(bundle, 0.0) + STAY_S) >= pool.planned_at
            for bundle in self._pool.pins.replicated
        )

    def _plan(self, pool: ReplicaPool, now: float) -> None:
        pool.changed = False
        spaces = set().union(*pool.readers.values())
        self._recount |= spaces != pool.spaces
        pool.spaces = spaces
        gone = sum(each.nbytes for each in (*pool.leaving.values(), *pool.freeing))
        bundles = self._pool.pins.replicated
        plan = Plan(bundles, spaces, Room(pool.capacity_bytes, pool.left_bytes - gone), pool.came, now)
        pool.planned_at = now
        pool.plan_at = now + max(PLAN_INTERVAL_S, plan.looked * PLAN_S_PER_LOOK)
        pool.short, pool.wanted, pool.too_large = plan.short, plan.wanted, len(plan.too_large)
        pool.came = {bundle: pool.came.get(bundle, now) for bundle in plan.bundles}
        self._withdraw(pool, [each for block, each in pool.replicas.items() if block not in plan.blocks])
        pool.missing = deque(block for block in plan.blocks if block not in pool.replicas)
        self._make_way(pool, plan)
        self._list(pool)

    def _withdraw(self, pool: ReplicaPool, replicas: Sequence[Replica]) -> None:
        """They are not read anew from here on."""
        if not replicas:
            return
        for replica in replicas:
            del pool.replicas[replica.block]
            replica.wanted = False
            pool.evicted_blocks += replica.shown
            replica.shown = False
            pool.withdrawn.append(replica)
        pool.table.hide(np.array([each.block.number for each in replicas if each.alive], np.int64))
        self._recount = True

    def _give_back(self, pool: ReplicaPool) -> None:
        """Slots of withdrawn replicas whose block is gone, or that no lease holds."""
        waiting, asked = [], []
        for replica in pool.withdrawn:
            if replica in pool.copying:
                waiting.append(replica)
            elif replica.alive:
                asked.append(replica)
            else:  # it could only go when nobody held it
                replica.extent.give(replica)
        if asked:
            held = self._pool.leases.held([each.block.number for each in asked])
            for replica, kept in zip(asked, held, strict=True):
                if kept:
                    waiting.append(replica)
                else:
                    replica.extent.give(replica)
        if len(waiting) < len(pool.withdrawn):
            pool.withdrawn = waiting
            pool.changed = True

    def _make_way(self, pool: ReplicaPool, plan: Plan) -> None:
        """Give up extents that the plan has no need of: empty ones, and where another shape lacks room also those that
        the rest of their shape has room for."""
        need: dict[Shape, int] = {}
        for block in plan.blocks:
            shape = shape_of(block)
            need[shape] = need.get(shape, 0) + 1
        by_shape: dict[Shape, list[Extent]] = {}
        for extent in pool.extents.values():
            by_shape.setdefault(extent.shape, []).append(extent)
        lacking, spare = 0, []
        for shape, blocks in need.items():
            slots, nbytes = size_of(shape, pool.capacity_bytes)
            lacking += max(0, -(-blocks // slots) - len(by_shape.get(shape, ()))) * nbytes
        for shape, extents in by_shape.items():
            slots, _ = size_of(shape, pool.capacity_bytes)
            extents.sort(key=lambda each: len(each.replicas), reverse=True)
            spare += extents[-(-need.get(shape, 0) // slots) :]
        lacking -= pool.left_bytes - pool.used_bytes
        for extent in sorted(spare, key=lambda each: len(each.replicas)):
            if lacking > 0 and extent.replicas:
                self._withdraw(pool, [each for each in extent.replicas if each.wanted])
                lacking -= extent.nbytes
            if not extent.replicas:
                del pool.extents[extent.number]
                pool.leaving[extent.number] = extent
                self._leave(pool, extent)

    @staticmethod
    def _list(pool: ReplicaPool) -> None:
        listed = [extent.number for extent in pool.extents.values() if extent.made]
        if sorted(listed) != sorted(pool.table.extents()):
            pool.table.list_extents(listed)

    # ---- work on devices

    def has_work(self, device: str) -> bool:
        """Whether there is anything to be done on a device."""
        pool = self.pools[device]
        begins = bool(pool.missing) and not pool.broken and not pool.paused
        return begins or bool(pool.freeing)

    def work(self, device: str) -> list[Work]:
        """What is to be done next on a device, in this order."""
        pool = self.pools[device]
        work: list[Work] = [Free(extent) for extent in pool.freeing]
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
            if block.control & STATE_MASK != _READY or block.doomed or block in pool.replicas:
                continue
            extent = self._extent_for(pool, shape_of(block))
            if extent is None:
                continue  # when slots come free, it is planned anew
            replica = pool.replicas[block] = extent.take(block)
            pool.copying[replica] = None
            pool.copying_bytes += block.nbytes
            begun.append(block.number)
            work.append(Copy(replica, block.slot.slab.segment.number, block.slot.offset))
        if begun:
            self._pool.leases.hold(begun, self._pool.table.max_blocks)
        return work

    @staticmethod
    def _extent_for(pool: ReplicaPool, shape: Shape) -> Extent | None:
        """One with a free slot."""
        open_ones = [each for each in pool.extents.values() if each.shape == shape and each.free]
        if open_ones:  # the fullest: others may become empty
            return min(open_ones, key=lambda each: len(each.free))
        slots, nbytes = size_of(shape, pool.capacity_bytes)
        if pool.used_bytes + nbytes > pool.left_bytes or len(pool.extents) >= MAX_EXTENTS:
            return None
        pool.last_extent += 1
        extent = Extent(pool.last_extent, shape, slots, nbytes, list(range(slots))[::-1])
        pool.extents[extent.number] = extent
        return extent

    def copied(self, device: str, copies: Sequence[Copy]) -> None:
        """All bytes of some blocks are there."""
        pool = self._ended(device, copies)
        for copy in copies:
            copy.replica.extent.made = True
            pool.copied_blocks += 1
            pool.copied_bytes += copy.replica.block.nbytes
        if pool.retry_at is None:
            pool.problem = ""
        self._list(pool)
        for replica in [copy.replica for copy in copies if copy.replica.wanted]:
            replica.shown = True
            block, extent = replica.block, replica.extent
            pool.table.show(block.number, block.control, place_of(extent.number, replica.offset))
            self._recount = True

    def failed(
        self, device: str, copy: Copy, problem: str, now: float, *, memory: bool, lasting: bool
    ) -> None:
        """A copy failed. `memory`: the device refused that of the extent; `lasting`: it is of no use any more."""
        pool, replica = self._ended(device, (copy,)), copy.replica
        pool.failed_copies += 1
        if replica.wanted:
            self._withdraw(pool, [replica])
        if memory and not lasting:
            for extent in [each for each in pool.extents.values() if not each.made]:
                self._withdraw(pool, [each for each in extent.replicas if each.wanted])
            pool.left_bytes = sum(each.nbytes for each in pool.extents.values() if each.made)
            self._tell(pool, problem, now)
        else:
            self.refused(device, problem, now, lasting=lasting)

    def refused(self, device: str, problem: str, now: float, *, lasting: bool) -> None:
        """Nothing can be copied: later again, or, `lasting`, never."""
        pool = self.pools[device]
        pool.paused = True
        if lasting:
            pool.broken = True
            self._withdraw(pool, list(pool.replicas.values()))
        self._tell(pool, problem, now)

    def _tell(self, pool: ReplicaPool, problem: str, now: float) -> None:
        if problem != pool.problem:
            self._emit(ReplicaPoolFailed(now, pool.device, problem))
        pool.problem, pool.retry_at = problem, now + RETRY_S
        pool.missing.clear()

    def _ended(self, device: str, copies: Sequence[Copy]) -> ReplicaPool:
        pool = self.pools[device]
        self._pool.leases.let_go([copy.replica.block.number for copy in copies])
        for copy in copies:
            del pool.copying[copy.replica]
            pool.copying_bytes -= copy.replica.block.nbytes
        return pool

    # ---- reading, by this process

    def places(self, device: str, descriptors: Sequence[int]) -> list[Replica | None]:
        """Replicas on a device of blocks that this process has leased."""
        pool, blocks = self.pools.get(device), self._pool.table.blocks
        if pool is None or not pool.replicas:
            return [None] * len(descriptors)
        found: list[Replica | None] = []
        for number in descriptors:
            replica = pool.replicas.get(blocks[number])
            found.append(replica if replica is not None and replica.shown else None)
        pool.read_blocks += sum(each is not None for each in found)
        return found

    # ---- state

    def count(self) -> None:
        """Bring the numbers of pins up to date."""
        if not self._recount:
            return
        self._recount = False
        pools = Counter(space for pool in self.pools.values() for space in pool.spaces)
        for bundle in self._pool.pins.replicated:
            bundle.replicas = bundle.replica_bytes = 0
            bundle.replicas_wanted = bundle.readable(pools)
        for pool in self.pools.values():
            shown = [block for block, replica in pool.replicas.items() if replica.shown]
            pool.shown, pool.shown_bytes = len(shown), sum(block.nbytes for block in shown)
            for block in shown:
                for bundle in block.pins:
                    bundle.replicas += 1
                    bundle.replica_bytes += block.nbytes

    def stats(self) -> list[ReplicaPoolStats]:
        """As of the last `count`."""
        refused = [
            ReplicaPoolStats(device, "", self.capacity_bytes, 0, 0, 0, 0, 0, problem=problem)
            for device, problem in self._refused.items()
        ]
        return [*(stats_of(pool) for pool in self.pools.values()), *refused]

    def faults(self) -> list[str]:
        """Contradictions between the books; empty when all is well."""
        return [fault for pool in self.pools.values() for fault in faults_of(pool)]

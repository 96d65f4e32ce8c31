"""How room is made: which blocks go so that a reservation, a limit or a watermark gets its bytes.

Room is made inside a reservation, in bytes, by one rule: walk the eviction order and take the first thing that makes
usable room (`walks`). A pool of one block size therefore evicts exactly in policy order, and a mixed one never wedges:
an allocation that fits the evictable bytes fails only when every slab that could serve it holds something that may not
go.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from dataplane.core.accounts import Account
from dataplane.core.ancestors import with_ancestors
from dataplane.core.blocks import Block
from dataplane.core.pool import Pool
from dataplane.core.quotas import Tenant
from dataplane.core.refusals import Flags, Refusal, Refusals
from dataplane.core.search import Search
from dataplane.core.shelves import Rank
from dataplane.core.slabs import Slot
from dataplane.core.walks import Walk
from dataplane.protocol.codes import Code
from dataplane.protocol.events import BlocksEvicted
from dataplane.protocol.salts import shown
from dataplane.protocol.states import STATE_MASK, State, Step

_EVICTING = int(State.EVICTING)
MAX_AT_ONCE = 4096
"""Blocks that are evicted at once for a limit or a watermark."""


def _place(slot: Slot) -> int:
    return slot.slab.segment.number << 44 | slot.offset


@dataclass(slots=True)
class Wanted:
    """Slots that one reservation looks for."""

    space: int
    size: int
    count: int
    slots: list[Slot] = field(default_factory=list)

    def take(self, slot: Slot) -> bool:
        """Take a slot whose block has just gone, if it serves."""
        slab = slot.slab
        if slab.slot_bytes != self.size or slab.segment.space != self.space or len(self.slots) >= self.count:
            return False
        self.slots.append(slot)
        return True


class Room:
    """Makes room in a pool, one search after the other."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._table = pool.table
        self._slabs = pool.slabs
        self._leases = pool.leases
        self._order = pool.order
        self._search = 0
        self._leased: bytes | None = None
        """A byte for each descriptor, not 0 where somebody holds it; taken when a search meets leases only."""
        self._passed: list[int] = []
        """Descriptors that this search passed over."""
        self._refusals = Refusals()

    def evict(self, victims: Sequence[Block], reason: str, now: float) -> int:
        """Evict READY blocks that nobody holds; blocks that somebody holds count as just used. Returns freed blocks."""
        return self._evict_groups([[block] for block in victims], reason, now)

    def _evict_groups(
        self,
        groups: Sequence[Sequence[Block]],
        reason: str,
        now: float,
        wanted: Wanted | None = None,
    ) -> int:
        """As `evict`, but a group of which somebody holds a block stays whole: without that block it makes no room.

        Slots that are `wanted` go to whoever wants them instead of back to their slabs.
        """
        victims = [block for group in groups for block in group]
        if not victims:
            return 0
        held = self._held(victims)
        if any(held):
            going: list[Block] = []
            waiting = iter(held)
            for group in groups:
                kept = [next(waiting) for _ in group]
                if any(kept):
                    self._table.step(group, Step.PUT_BACK)
                else:
                    going += group
            self._pass_over([block for block, kept in zip(victims, held, strict=True) if kept], now)
        else:
            going = victims
        if not going:  # all of it is held: do not ask one by one of a pool that may be leased as a whole
            self._leased = self._leases.held_by_anybody(self._table.max_blocks)
            return 0
        admission = self._pool.admission if reason == "room" else None
        freed: dict[Tenant, list[Block]] = {}
        for block in going:
            if admission is not None:
                admission.victim(now - block.used_at, now)
            if block.pins:
                self._pool.pins.unmark(block)
            if block.shelf is not None:
                block.shelf.evict(block, now)
            mine = freed.get(block.tenant)
            if mine is None:
                freed[block.tenant] = [block]
            else:
                mine.append(block)
        self._table.free_all(going, Step.FREE)
        for block in going:
            if wanted is None or not wanted.take(block.slot):
                self._slabs.give(block.slot)
        usage = self._pool.usage
        usage.pass_to(now)
        for tenant, blocks in freed.items():
            size = sum([block.charge for block in blocks])
            self._pool.uncharge(tenant, size, blocks)
            usage.evicted(tenant, blocks, size)
            tenant.evicted_blocks += len(blocks)
            self._pool.totals.evicted_blocks += len(blocks)
            self._pool.totals.evicted_bytes += size
            self._pool.emit(BlocksEvicted(now, shown(tenant.salt), reason, len(blocks), size))
        return len(going)

    def _held(self, victims: Sequence[Block]) -> list[bool]:
        """Turn READY blocks EVICTING and see which of them somebody holds. On an error all are READY again."""
        try:
            self._table.step(victims, Step.EVICT)
            return self._leases.held([block.number for block in victims])
        except BaseException:
            for block in victims:
                if block.control & STATE_MASK == _EVICTING:
                    self._table.step((block,), Step.PUT_BACK)
            raise

    def _pass_over(self, held: Sequence[Block], now: float) -> None:
        """READY blocks that somebody holds count as just used, and this search does not ask again."""
        self._pool.totals.put_back_blocks += len(held)
        for block in held:
            block.passed_over = self._search
            self._passed.append(block.number)
        used = set(held)
        for block in reversed(with_ancestors(self._table, held, used)):
            if block.shelf is None:
                continue
            if block in used:
                block.shelf.touch(block, now)
            else:
                block.shelf.refresh(block, now)

    def spare(self, blocks: Iterable[Block]) -> None:
        """Begin a search for room that must not evict these blocks."""
        self._search += 1
        self._leased = None
        self._passed = []
        for block in blocks:
            block.passed_over = self._search
            self._passed.append(block.number)

    def _skip(self, block: Block) -> bool:
        leased = self._leased
        return block.passed_over == self._search or (leased is not None and leased[block.number] != 0)

    def shrink_tenant(self, tenant: Tenant, target_bytes: int, now: float) -> None:
        """Evict an enforced tenant's own blocks, in its own order, until it is charged at most `target_bytes`."""
        request = (tenant.account, "limit")
        if tenant.bytes <= target_bytes or self._refused_before(request, self._order.changes):
            return
        while (excess := tenant.bytes - target_bytes) > 0:
            own = chain.from_iterable(tenant.account.shelf.victims(rank, now) for rank in Rank)
            victims = self._some(map(self._table.blocks.__getitem__, own), nbytes=excess, count=MAX_AT_ONCE)
            if not victims:
                self._remember_refusal(request, Code.POOL_FULL, self._order.changes)
                return
            self.evict(victims, "limit", now)

    def keep_below(self, high: float, low: float, now: float) -> None:
        """Above a share of the capacity, evict ahead of need down to another; of many blocks some each time."""
        capacity = self._slabs.capacity_bytes
        excess = self._pool.used_bytes - int(low * capacity)
        if self._pool.used_bytes <= high * capacity or excess <= 0:
            return
        self.spare(())
        request = (None, "watermark")
        if self._refused_before(request, self._stamp()):
            return
        while victims := self._first(None, now, nbytes=excess, count=MAX_AT_ONCE):
            if self.evict(victims, "watermark", now):
                return
        self._remember_refusal(request, Code.POOL_FULL, self._stamp())

    def take_slots(
        self, tenant: Tenant, space: int, size: int, count: int, now: float
    ) -> tuple[list[Slot], Code | None]:
        """For a tenant: up to `count` slots, evicting as needed; with fewer, the reason. `spare` came before."""
        wanted = Wanted(space, size, count)
        slots = wanted.slots
        reason: Code | None = None
        may_add = True
        while len(slots) < count:
            slot = self._slabs.take(space, size)
            if slot is not None:
                slots.append(slot)
                continue
            if self._pool.doomed and self._pool.bury(now):
                continue
            try:
                if may_add and self._pool.segments.add(space, size, now):
                    continue
            except MemoryError:
                may_add = False
            request = (tenant.account, space, size)
            reason = self._refused_before(request, self._stamp())
            if reason is not None:
                break
            walk = self._walk(tenant.account, space, size, count - len(slots), now, may_add=may_add)
            if walk.victims:
                self._evict_groups(walk.victims, "room", now, wanted)
                continue
            if self._leased is None:  # look once more, knowing what is leased: the reason is to be right
                self._leased = self._leases.held_by_anybody(self._table.max_blocks)
                continue
            reason = Code.FRAGMENTED if walk.evictable_bytes >= size else Code.POOL_FULL
            if may_add:
                self._remember_refusal(request, reason, self._stamp())
            else:
                reason = Code.OUT_OF_MEMORY
            break
        # Neighbours in the chain are neighbours in memory as far as possible: engines copy them at once.
        slots.sort(key=_place)
        return slots, reason

    def _stamp(self) -> Hashable:
        """Moves when a request that was refused may be served now, for another reason than the end of a lease."""
        return self._slabs.given, self._order.changes, self._order.ranking.changes

    def _blocked(self, leased: bytes | None) -> Flags:
        """Descriptors that are held, or that this search passed over."""
        blocked = np.zeros(self._table.max_blocks, np.bool_)
        if leased is not None:
            blocked |= np.frombuffer(leased, np.bool_)
        blocked[self._passed] = True
        return blocked

    def _refused_before(self, request: Hashable, stamp: Hashable) -> Code | None:
        """Why such a request was refused, if a new search could find no more than the last one did."""
        refusal = self._refusals.of(request, stamp)
        if refusal is None:
            return None
        if refusal.code is Code.FRAGMENTED and refusal.evicted != self._pool.totals.evicted_blocks:
            return None  # less may go than did: it may be too little by now
        leased = self._leases.held_by_anybody(self._table.max_blocks)
        return refusal.code if self._refusals.stands(refusal, self._blocked(leased)) else None

    def _remember_refusal(self, request: Hashable, code: Code, stamp: Hashable) -> None:
        self._refusals.remember(
            request, Refusal(code, stamp, self._blocked(self._leased), self._pool.totals.evicted_blocks)
        )

    def give_slots(self, slots: Iterable[Slot]) -> None:
        """Return slots that no block took."""
        for slot in slots:
            self._slabs.give(slot)

    def free_descriptors(self, tenant: Tenant, count: int, now: float) -> int:
        """How many of `count` descriptors can be had, evicting as needed. `spare` came before."""
        while (missing := count - self._table.free_descriptors()) > 0:
            if self._pool.doomed and self._pool.bury(now):
                continue
            victims = self._first(tenant.account, now, count=missing)
            if not victims:
                break
            self.evict(victims, "room", now)
        return min(count, self._table.free_descriptors())

    def make_entry(
        self, tenant: Tenant, buckets: Sequence[int], taken: Container[tuple[int, int]], now: float
    ) -> tuple[int, int] | None:
        """An index entry in one of two full buckets, by evicting one of their blocks; None when none may go."""
        while True:
            search = self._order.search(self._table.blocks, tenant.account, now)
            candidates = [
                block
                for block in self._table.neighbours(buckets)
                if block.shelf is not None and not self._skip(block)
            ]
            candidates.sort(key=lambda block: (block.rank, block.used_at))
            victim = next((block for block in candidates if search.take(block)), None)
            if victim is None:
                return None
            self.evict([victim], "index", now)
            entry = self._table.free_entry(buckets, taken)
            if entry is not None:
                return entry

    def _first(
        self, asking: Account | None, now: float, *, count: int = 1 << 60, nbytes: int = 1 << 60
    ) -> list[Block]:
        """The blocks that go first, until there are so many or so large."""
        search = self._order.search(self._table.blocks, asking, now)
        with closing(search.candidates()) as candidates:
            return self._some(candidates, search, count=count, nbytes=nbytes)

    def _some(
        self, candidates: Iterable[Block], search: Search | None = None, *, count: int, nbytes: int
    ) -> list[Block]:
        """Candidates that are not passed over and that the search may take, until there are so many or so large."""
        found: list[Block] = []
        for block in candidates:
            if not self._skip(block) and (search is None or search.take(block)):
                found.append(block)
                nbytes -= block.charge
                if len(found) == count or nbytes <= 0:
                    break
        return found

    def _walk(
        self, asking: Account, space: int, size: int, missing: int, now: float, *, may_add: bool
    ) -> Walk:
        """What makes room for so many slots; `may_add`: the machine has memory for new segments."""
        search = self._order.search(self._table.blocks, asking, now)
        room = self._pool.segments.room_bytes() if may_add else -1
        ranges = self._pool.segments.vacant_ranges(space)
        walk = Walk(self._slabs, search, space, size, missing, self._skip, room, ranges)
        with closing(search.candidates()) as candidates:
            walk.along(candidates)
        return walk

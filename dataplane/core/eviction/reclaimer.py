"""The reclaimer: evict blocks to make room for a reservation, a limit or a watermark.

A reservation makes its room itself, in bytes, by one rule: walk the eviction order and take the first victims that make
usable room (`reclaim_plan`). A pool of one block size therefore evicts exactly in policy order, and a pool of mixed
sizes does not get stuck: an allocation that fits the evictable bytes fails only if every slab that could serve it holds
a block that may not be evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from dataplane.core.blocks.blocks import Block
from dataplane.core.blocks.slabs import Slot
from dataplane.core.eviction.ancestors import with_ancestors
from dataplane.core.eviction.reclaim_plan import ReclaimPlan
from dataplane.core.eviction.victim_iterator import VictimIterator
from dataplane.core.pool.pool import TIMESTAMP, USED_AT, Pool
from dataplane.core.tenants.accounts import Account
from dataplane.core.tenants.eviction_queues import Rank
from dataplane.core.tenants.tenant import Tenant
from dataplane.protocol.codes import Code
from dataplane.protocol.layout import Mask
from dataplane.protocol.states import STATE_MASK, BlockStep, State

_EVICTING = int(State.EVICTING)
MAX_AT_ONCE = 4096
"""Maximum number of blocks that are evicted at once for a limit or a watermark."""
MAX_REFUSALS = 64


def _split(
    groups: Sequence[Sequence[Block]], is_leased: Sequence[bool]
) -> tuple[Sequence[Sequence[Block]], Sequence[Sequence[Block]], list[Block]]:
    """Return the groups without and with a leased block, and the leased blocks. `is_leased` has a flag for each block
    of all groups."""
    if not any(is_leased):
        return groups, (), []
    flags = iter(is_leased)
    without: list[Sequence[Block]] = []
    with_leased: list[Sequence[Block]] = []
    leased: list[Block] = []
    for group in groups:
        found = [block for block in group if next(flags)]
        (with_leased if found else without).append(group)
        leased += found
    return without, with_leased, leased


def _position(slot: Slot) -> int:
    return slot.slab.segment.number << 44 | slot.offset


@dataclass(slots=True)
class SlotRequest:
    """The slots that one reservation needs."""

    space: int
    size: int
    count: int
    slots: list[Slot] = field(default_factory=list)

    def take(self, slot: Slot) -> bool:
        """Take the slot of a block that was just evicted if it fits; return whether it was taken."""
        slab = slot.slab
        if slab.slot_bytes != self.size or slab.segment.space != self.space or len(self.slots) >= self.count:
            return False
        self.slots.append(slot)
        return True


@dataclass(frozen=True, slots=True)
class FailedSearch:
    """A search that could not make the requested room. It is not repeated while nothing has changed.

    A request that was refused for lack of room may succeed after a slot or segment was given back, a block became
    evictable, or the bytes that an account may lose changed; each of these changes the version. Leases end without
    notification, so their counters are read instead.
    """

    code: Code
    pool_version: Hashable
    blocked: Mask
    """Mask of the descriptors that the search skipped because they were leased or had to be spared."""
    evicted: int
    """Total number of blocks that the pool had evicted before the search."""

    def stands(self, blocked: Mask) -> bool:
        """Return whether the search would fail again with the descriptors that are blocked now.

        For POOL_FULL, every descriptor that was blocked must still be blocked. For other codes, which depend on the
        evictable bytes, exactly the same descriptors must be blocked.
        """
        if self.code is Code.POOL_FULL:
            return not (self.blocked & ~blocked).any()
        return bool((self.blocked == blocked).all())


class Reclaimer:
    """Makes room in a pool, one search at a time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._table = pool.table
        self._slabs = pool.slabs
        self._leases = pool.leases
        self._order = pool.order
        self._search = 0
        self._leased: bytes | None = None
        """A byte for each descriptor, nonzero where it is leased; read when a search finds only leased blocks."""
        self._passed: list[int] = []
        """Descriptors that the current search passed over."""
        self._protected: Set[Block] = frozenset()
        """Blocks that the current search must not evict."""
        self._taken_back = 0
        """Blocks whose leases of look-ups the current search has asked for."""
        self._failed: dict[Hashable, FailedSearch] = {}
        """The last failed search for each kind of request, oldest first."""

    def evict(self, victims: Sequence[Block], reason: str, now: float) -> int:
        """Evict the READY blocks that are not leased and return their number. Leased blocks count as just used."""
        return self._evict_groups([[block] for block in victims], reason, now)

    def _evict_groups(
        self, groups: Sequence[Sequence[Block]], reason: str, now: float, slot_request: SlotRequest | None = None
    ) -> int:
        """Evict groups of blocks as `evict` does. A group with a leased block stays whole, because without that block
        it makes no room.

        Slots that fit `slot_request` go to that request instead of back to their slabs.
        """
        victims = [block for group in groups for block in group]
        if not victims:
            return 0
        # A lease usually shows without a barrier. Only blocks that show none are hidden from their readers.
        candidates, _, leased = _split(groups, self._leases.raised(victims))
        hidden = [block for group in candidates for block in group]
        if hidden:
            candidates, kept, late = _split(candidates, self._leased_among(hidden))
            for group in kept:
                self._table.step(group, BlockStep.PUT_BACK)
            leased += late
        unleased = [block for group in candidates for block in group]
        if leased:
            self._pass_over(leased, now)
        if not unleased:  # all victims are leased: read all counters at once, since the whole pool may be leased
            self._leased = self._leases.held_by_any(self._table.space_of)
            return 0
        admission = self._pool.admission if reason == "room" else None
        self._pool.evicted_idle.add(map(USED_AT, unleased), now)
        self._pool.lifetimes.add(map(TIMESTAMP, unleased), now)
        freed: dict[Tenant, list[Block]] = {}
        pinned, hinted = self._pool.pins.marked, self._pool.hints.hinted
        for block in unleased:
            if admission is not None:
                admission.victim(now - block.used_at, now)
            if block in pinned:
                self._pool.pins.unmark(block)
            if block in hinted:
                self._pool.hints.forget(block)
            if block.queue is not None:
                block.queue.evict(block, now)
            tenant_blocks = freed.get(block.tenant)
            if tenant_blocks is None:
                freed[block.tenant] = [block]
            else:
                tenant_blocks.append(block)
        tiers = self._pool.tiers
        self._pool.sessions.evicted(unleased, None if tiers is None else tiers.is_served)
        self._table.free_all(unleased, BlockStep.FREE)
        for block in unleased:
            if slot_request is None or not slot_request.take(block.slot):
                self._slabs.give(block.slot)
        self._pool.removals.note(unleased, reason, now)
        if self._pool.changes is not None:
            self._pool.changes.changed(unleased)
        if tiers is not None:
            tiers.removed(unleased, now)
        usage = self._pool.usage
        usage.pass_to(now)
        for tenant, blocks in freed.items():
            size = sum([block.charge for block in blocks])
            self._pool.uncharge(tenant, size, blocks)
            for space, count, nbytes in _by_space(blocks, size):
                usage.evicted(tenant, space, count, nbytes)
            tenant.evicted_blocks += len(blocks)
            self._pool.totals.evicted_blocks += len(blocks)
            self._pool.totals.evicted_bytes += size
            self._pool.count_evicted(tenant, reason, len(blocks), size, now)
        return len(unleased)

    def _leased_among(self, victims: Sequence[Block]) -> list[bool]:
        """Move READY blocks to EVICTING and return for each whether it is leased. On an error, move all back to
        READY."""
        try:
            self._table.step(victims, BlockStep.EVICT)
            return self._leases.held(victims)
        except BaseException:
            for block in victims:
                if block.control & STATE_MASK == _EVICTING:
                    self._table.step((block,), BlockStep.PUT_BACK)
            raise

    def _pass_over(self, is_leased: Sequence[Block], now: float) -> None:
        """Count leased READY blocks and their ancestors as just used, and exclude the blocks from this search."""
        self._pool.totals.evictions_cancelled += len(is_leased)
        for block in is_leased:
            block.passed_over = self._search
            self._passed.append(block.number)
        used = set(is_leased)
        for block in reversed(with_ancestors(self._table, is_leased, used)):
            if block.queue is None:
                continue
            if block in used:
                block.queue.touch(block, now)
            else:
                block.queue.refresh(block, now)

    def protect(self, blocks: Set[Block]) -> None:
        """Start a search for room that must not evict these blocks. The reclaimer keeps this set itself, so blocks that
        the caller adds later are protected too, as `StoreService.reserve` does."""
        self._protected = blocks
        self._taken_back = 0
        self._begin_search()

    def _begin_search(self) -> None:
        self._search += 1
        self._leased = None
        self._passed = []

    def _take_back(
        self, asking: Account | None, blocks: int, search: Callable[[], object], among: Collection[int] | None = None
    ) -> bool:
        """Take back leases of look-ups, of those that have waited longest, if `search` would find something without the
        leases of all look-ups. Return whether any were taken back. Only the descriptors `among` help, if given.

        Each call within a search asks for twice as many blocks as the one before, and for `blocks` at least.
        """
        lookups = self._pool.lookups
        if not lookups:
            return False
        self._begin_search()
        self._leased = self._leases.held_by_any(self._table.space_of, lookups.clients)
        if not search():
            return False
        self._taken_back = max(blocks, 2 * self._taken_back)

        def useful(numbers: Sequence[int]) -> bool:
            helpful = numbers[:1] if among is None else [number for number in numbers if number in among]
            return any(self._may_lose(self._table.blocks.get(number), asking) for number in helpful)

        if lookups.take_back(self._taken_back, useful):
            self._leased = None
            return True
        self._leased = self._leases.held_by_any(self._table.space_of)
        return False

    def _may_lose(self, block: Block | None, asking: Account | None) -> bool:
        """Return whether a block would make room for an account if it were not leased, as far as floors are
        concerned."""
        if block is None:
            return False
        account = block.tenant.account
        return self._order.alone or account is asking or block in self._pool.dead or account.bytes > account.floor_bytes

    def _unleased_dead(self) -> bool:
        """Return whether a dead block could be freed."""
        return any(not self._skip(block) for block in self._pool.dead)

    def _skip(self, block: Block) -> bool:
        leased = self._leased
        passed_over = block.passed_over == self._search or block in self._protected
        return passed_over or (leased is not None and leased[block.number] != 0)

    def shrink_tenant(self, tenant: Tenant, target_bytes: int, now: float) -> None:
        """Evict blocks of a tenant with an enforced quota, in its own order, until it is charged at most
        `target_bytes`."""
        request = (tenant.account, "limit")
        self._taken_back = 0
        if tenant.bytes <= target_bytes or self._refused_before(request, self._order.changes):
            return
        while (excess := tenant.bytes - target_bytes) > 0:
            victims = self._own(tenant.account, now, nbytes=excess)
            if victims:
                self.evict(victims, "limit", now)
                continue
            if self._take_back(tenant.account, 1, lambda: self._own(tenant.account, now, nbytes=1)):
                continue
            self._remember_refusal(request, Code.POOL_FULL, self._order.changes)
            return

    def _own(self, account: Account, now: float, *, nbytes: int) -> list[Block]:
        """Return the first victims of an account in its own order, until `nbytes` bytes are reached."""
        descriptors = chain.from_iterable(account.queue.victims(rank, now) for rank in Rank)
        return self._select(map(self._table.blocks.__getitem__, descriptors), nbytes=nbytes, count=MAX_AT_ONCE)

    def keep_below(self, high: float, low: float, now: float) -> None:
        """If use is above the fraction `high` of the capacity, evict ahead of need towards the fraction `low`. Each
        call evicts a bounded number of blocks."""
        capacity = self._slabs.capacity_bytes
        excess = self._pool.used_bytes - int(low * capacity)
        if self._pool.used_bytes <= high * capacity or excess <= 0:
            return
        self.protect(frozenset())
        request = (None, "watermark")
        if self._refused_before(request, self._pool_version()):
            return
        while victims := self._first(None, now, nbytes=excess, count=MAX_AT_ONCE):
            if self.evict(victims, "watermark", now):
                return
        self._remember_refusal(request, Code.POOL_FULL, self._pool_version())

    def take_slots(
        self, tenant: Tenant, space: int, size: int, count: int, now: float
    ) -> tuple[list[Slot], Code | None]:
        """Return up to `count` slots for a tenant, evicting as needed, and the reason when there are fewer. Call
        `protect` first."""
        slot_request = SlotRequest(space, size, count)
        slots = slot_request.slots
        reason: Code | None = None
        may_add = True
        account = tenant.account
        protects_own = bool(self._pool.lookups)
        while len(slots) < count:
            slot = self._slabs.take(space, size)
            if slot is not None:
                slots.append(slot)
                continue
            if self._pool.dead and self._pool.reap(now):
                continue
            try:
                if may_add and self._pool.segments.add(space, size, now):
                    continue
            except MemoryError:
                may_add = False
            request = (account, space, size)
            reason = self._refused_before(request, self._pool_version())
            if reason is not None:
                break
            walk = self._walk(account, space, size, count - len(slots), now, may_add=may_add)
            # Within its floor, an account loses no blocks of its own as long as look-ups keep those of others in place.
            within_floor = protects_own and account.bytes + size * (len(slots) + 1) <= account.floor_bytes
            if walk.victims and not (within_floor and _any_of(account, walk.victims)):
                self._evict_groups(walk.victims, "room", now, slot_request)
                continue
            if self._leased is None and not walk.victims:  # search again with the leases known, for the right reason
                self._leased = self._leases.held_by_any(self._table.space_of)
                continue
            missing = count - len(slots)

            def finds_victims(missing: int = missing, may_add: bool = may_add, keeps_own: bool = within_floor) -> bool:
                if self._unleased_dead():
                    return True
                victims = self._walk(account, space, size, missing, now, may_add=may_add).victims
                return bool(victims) and not (keeps_own and _any_of(account, victims))

            if self._take_back(account, missing, finds_victims):
                continue
            if walk.victims:
                protects_own = False
                self._begin_search()
                continue
            reason = Code.FRAGMENTED if walk.evictable_bytes >= size else Code.POOL_FULL
            if may_add:
                self._remember_refusal(request, reason, self._pool_version())
            else:
                reason = Code.OUT_OF_MEMORY
            break
        # Place neighbours in the chain next to each other in memory where possible, so that one copy covers them.
        slots.sort(key=_position)
        return slots, reason

    def _pool_version(self) -> Hashable:
        """Return a value that changes when a refused request might succeed for a reason other than the end of a
        lease."""
        return self._slabs.releases, self._order.changes, self._order.ranking.changes

    def _blocked(self, leased: bytes | None) -> Mask:
        """Return a mask of the descriptors that are leased, protected, or passed over by this search."""
        blocked = np.zeros(self._table.max_blocks, np.bool_)
        if leased is not None:
            blocked |= np.frombuffer(leased, np.bool_)
        blocked[self._passed] = True
        blocks = self._table.blocks
        blocked[[block.number for block in self._protected if blocks.get(block.number) is block]] = True
        return blocked

    def _refused_before(self, request: Hashable, pool_version: Hashable) -> Code | None:
        """Return the code with which such a request was refused if a new search could not find more than the last one;
        otherwise None."""
        failed = self._failed.get(request)
        if failed is None:
            return None
        if failed.pool_version != pool_version:
            del self._failed[request]
            return None
        if failed.code is Code.FRAGMENTED and failed.evicted != self._pool.totals.evicted_blocks:
            return None  # fewer evictable bytes may be left, so the code may have changed
        leased = self._leases.held_by_any(self._table.space_of, self._pool.lookups.clients)
        return failed.code if failed.stands(self._blocked(leased)) else None

    def _remember_refusal(self, request: Hashable, code: Code, pool_version: Hashable) -> None:
        self._failed.pop(request, None)
        self._failed[request] = FailedSearch(
            code, pool_version, self._blocked(self._leased), self._pool.totals.evicted_blocks
        )
        if len(self._failed) > MAX_REFUSALS:
            del self._failed[next(iter(self._failed))]

    def give_slots(self, slots: Iterable[Slot]) -> None:
        """Give back slots that no block took."""
        for slot in slots:
            self._slabs.give(slot)

    def free_descriptors(self, tenant: Tenant, count: int, now: float) -> int:
        """Free descriptors by evicting as needed and return how many of `count` are available. Call `protect` first."""
        while (missing := count - self._table.free_descriptors()) > 0:
            if self._pool.dead and self._pool.reap(now):
                continue
            victims = self._first(tenant.account, now, count=missing)
            if victims:
                self.evict(victims, "room", now)
            elif not self._take_back(
                tenant.account, missing, lambda: self._unleased_dead() or self._first(tenant.account, now, count=1)
            ):
                break
        return min(count, self._table.free_descriptors())

    def make_entry(
        self, tenant: Tenant, buckets: Sequence[int], taken_entries: Container[tuple[int, int]], now: float
    ) -> tuple[int, int] | None:
        """Free an index entry in one of two full buckets by evicting one of their blocks, and return it; None when none
        may be evicted. Hinted pins have no effect, because the blocks may belong to several accounts."""

        def find() -> Block | None:
            search = VictimIterator(self._order, self._table.blocks, tenant.account, now)
            candidates = [
                block for block in self._table.neighbours(buckets) if block.queue is not None and not self._skip(block)
            ]
            candidates.sort(key=lambda block: (Rank.NORMAL if block.rank is Rank.HINTED else block.rank, block.used_at))
            return next((block for block in candidates if search.take(block)), None)

        self._taken_back = 0
        while True:
            victim = find()
            if victim is None:
                neighbours = [block.number for block in self._table.neighbours(buckets)]
                if self._take_back(tenant.account, 1, find, neighbours):
                    continue
                return None
            self.evict([victim], "index", now)
            entry = self._table.free_entry(buckets, taken_entries)
            if entry is not None:
                return entry

    def _first(self, asking: Account | None, now: float, *, count: int = 1 << 60, nbytes: int = 1 << 60) -> list[Block]:
        """Return the first victims, until `count` blocks or `nbytes` bytes are reached."""
        search = VictimIterator(self._order, self._table.blocks, asking, now)
        with closing(search.candidates()) as candidates:
            return self._select(candidates, search, count=count, nbytes=nbytes)

    def _select(
        self, candidates: Iterable[Block], search: VictimIterator | None = None, *, count: int, nbytes: int
    ) -> list[Block]:
        """Return candidates that are not skipped and that the search may take, until `count` blocks or `nbytes` bytes
        are reached."""
        selected: list[Block] = []
        for block in candidates:
            if not self._skip(block) and (search is None or search.take(block)):
                selected.append(block)
                nbytes -= block.charge
                if len(selected) == count or nbytes <= 0:
                    break
        return selected

    def _walk(self, asking: Account, space: int, size: int, missing: int, now: float, *, may_add: bool) -> ReclaimPlan:
        """Return a plan that makes room for `missing` slots. `may_add` says whether the machine has memory for new
        segments."""
        search = VictimIterator(self._order, self._table.blocks, asking, now)
        free_bytes = self._pool.segments.room_bytes() if may_add else -1
        ranges = self._pool.segments.vacant_ranges(space)
        walk = ReclaimPlan(self._slabs, search, space, size, missing, self._skip, free_bytes, ranges)
        with closing(search.candidates()) as candidates:
            walk.along(candidates)
        return walk


def _any_of(account: Account, groups: Iterable[Iterable[Block]]) -> bool:
    """Return whether an account would lose one of these blocks."""
    return any(block.tenant.account is account for group in groups for block in group)


def _by_space(blocks: Sequence[Block], nbytes: int) -> Iterable[tuple[int, int, int]]:
    """Return (space, number of blocks, charged bytes) for each space of blocks that are charged `nbytes` in all."""
    if len({block.space for block in blocks}) == 1:
        return ((blocks[0].space, len(blocks), nbytes),)
    sums: dict[int, tuple[int, int]] = {}
    for block in blocks:
        count, size = sums.get(block.space, (0, 0))
        sums[block.space] = count + 1, size + block.charge
    return [(space, count, size) for space, (count, size) in sums.items()]

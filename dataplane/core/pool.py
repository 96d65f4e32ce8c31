"""The pool: every block, who is charged for it, and how room is made.

Room is made inside a reservation, in bytes, by one rule: walk the eviction order and take the first thing that makes
usable room (`walks`). A pool of one block size therefore evicts exactly in policy order, and a mixed one never wedges:
an allocation that fits the evictable bytes fails only when every slab that could serve it holds something that may not
go.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np

from dataplane.core.accounts import Account
from dataplane.core.blocks import Block, BlockTable
from dataplane.core.leases import LeaseTable
from dataplane.core.names import SegmentEnd, SpaceEnd
from dataplane.core.order import Order
from dataplane.core.pins import Bundle, PinTable
from dataplane.core.ports import Memory
from dataplane.core.quotas import Tenant, Tenants
from dataplane.core.refusals import Flags, Refusal, Refusals
from dataplane.core.search import Search
from dataplane.core.shelves import MakePolicy, Rank
from dataplane.core.slabs import Segment, Slabs, Slot
from dataplane.core.spaces import Spaces
from dataplane.core.sweeps import Sweeps
from dataplane.core.walks import Walk
from dataplane.eviction.admission import Admission
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.events import (
    BlocksEvicted,
    Event,
    PoolResized,
    PoolStats,
    SegmentCreated,
    SegmentRetired,
    SpaceStats,
    Totals,
)
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.salts import shown
from dataplane.protocol.states import STATE_MASK, State, Step

_READABLE = (int(State.READY), int(State.EVICTING))
_RESERVED = int(State.RESERVED)
_EVICTING = int(State.EVICTING)
MAX_SPACES_SHOWN = 1000
MAX_BURIED = 4096
"""Doomed blocks that one step asks the lease counters about."""
MAX_AT_ONCE = 4096
"""Blocks that are evicted at once for a limit or a watermark."""
MAX_ANCESTORS = 16_384
"""Ancestors of held blocks that are made as new as those, a time."""
MAX_LOOKED_UP = 256
"""Of those, the ones that are looked up in the index, for they are not known by reference."""


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


class Pool:
    """Blocks, slabs, tenants, pins, sweeps and the order, kept consistent with each other."""

    def __init__(
        self,
        table: BlockTable,
        slabs: Slabs,
        leases: LeaseTable,
        memory: Memory,
        policy: MakePolicy,
        pin_budget_ratio: float,
        emit: Callable[[Event], None],
    ) -> None:
        self.table = table
        self.slabs = slabs
        self.leases = leases
        self.order = Order(policy)
        self.tenants = Tenants(self.order.common)
        self.pin_budget_ratio = pin_budget_ratio
        self.pins = PinTable(int(slabs.capacity_bytes * pin_budget_ratio))
        self.spaces = Spaces()
        self.doomed: dict[Block, None] = {}
        """Out of the index, waiting for the end of a lease."""
        self.sweeps = Sweeps(
            table.memory, table.books, table.blocks, self._invalidate, self._demote, self.doomed
        )
        self.totals = Totals()
        self.emit = emit
        self.reserved_bytes = 0
        self.quarantined_bytes = 0
        self.used_bytes = 0
        self.padding_bytes = 0
        self.admission: Admission | None = None
        """The admission filter, when it is switched on."""
        self._memory = memory
        self._search = 0
        self._leased: bytes | None = None
        """A byte for each descriptor, not 0 where somebody holds it; taken when a search meets leases only."""
        self._passed: list[int] = []
        """Descriptors that this search passed over."""
        self._refusals = Refusals()

    # ---- a block's charge

    def charge(self, tenant: Tenant, blocks: Sequence[Block]) -> None:
        """Account a tenant's blocks that were just reserved."""
        size = sum([block.charge for block in blocks])
        self.order.charge(tenant, size)
        tenant.blocks += len(blocks)
        self.used_bytes += size
        self.reserved_bytes += size
        for block in blocks:
            if padding := block.charge - block.nbytes:
                self.padding_bytes += padding
                self.slabs.use(block.space).padding_bytes += padding

    def release(self, block: Block, step: Step) -> None:
        """End a block with a step into FREE and give everything of it back."""
        state = block.control & STATE_MASK
        charge = block.charge
        if state in _READABLE:
            if block.pins:
                self.pins.unmark(block)
            if block.shelf is not None:
                block.shelf.remove(block)
        elif state == _RESERVED:
            self.reserved_bytes -= charge
        else:
            self.quarantined_bytes -= charge
        self.table.free(block, step)
        self.slabs.give(block.slot)
        self._uncharge(block.tenant, charge, (block,))

    def _uncharge(self, tenant: Tenant, size: int, blocks: Sequence[Block]) -> None:
        self.order.charge(tenant, -size)
        tenant.blocks -= len(blocks)
        self.used_bytes -= size
        for block in blocks:
            if padding := block.charge - block.nbytes:
                self.padding_bytes -= padding
                self.slabs.use(block.space).padding_bytes -= padding

    def publish(self, block: Block, now: float) -> None:
        """A block turned READY: put it under its pins or on its shelf. The caller tells the books."""
        self.reserved_bytes -= block.charge
        block.used_at = now
        pins = self.pins.of(self.spaces.model(block.space), block.key) if self.pins.by_name else ()
        if pins:
            self._mark(block, pins, now)
        else:
            self.order.insert(block, now)

    def quarantine(self, blocks: Iterable[Block]) -> int:
        """Their owner is hung or dead and could still write: keep the bytes, free the keys. Returns charged bytes."""
        total = 0
        for block in blocks:
            self.table.unlist(block)
            self.table.step((block,), Step.LOSE_OWNER)
            self.reserved_bytes -= block.charge
            self.quarantined_bytes += block.charge
            self.totals.quarantined_blocks += 1
            total += block.charge
        return total

    def use(self, blocks: Sequence[Block], now: float) -> None:
        """READY blocks were used, one after the other."""
        for block in blocks:
            self.touch(block, now)
        self.table.used(blocks, now)

    def touch(self, block: Block, now: float) -> None:
        """A READY block was used. The caller tells the books."""
        block.used_at = now
        block.hits += 1
        if block.shelf is not None:  # one that may not go is on none
            block.shelf.touch(block, now)
        for pin in block.pins:
            pin.hit(now)

    def refresh(self, block: Block, now: float) -> None:
        """The same use once more: what its chain got meanwhile must not become newer. The caller tells the books."""
        block.used_at = now
        if block.shelf is not None:
            block.shelf.refresh(block, now)

    # ---- pins

    def repin(self, block: Block, now: float) -> None:
        """Look a READY block's pins up again after the pin table changed."""
        pins = self.pins.of(self.spaces.model(block.space), block.key)
        if block.doomed or pins == block.pins:
            return
        self.pins.unmark(block)
        if pins:
            self._mark(block, pins, now)
        else:
            self.order.move(block, Rank.NORMAL, now)

    def line_up_soft(self, blocks: Sequence[Block], now: float) -> None:
        """A chain of pinned blocks, first block first: those under soft pins go tail first."""
        for block in reversed(blocks):
            if block.shelf is not None and block.rank is Rank.SOFT:
                block.shelf.refresh(block, now)

    def _mark(self, block: Block, pins: tuple[Bundle, ...], now: float) -> None:
        rank, displaced = self.pins.mark(block, pins)
        self.order.move(block, rank, now)
        for other in displaced:
            self.order.move(other, Rank.SOFT, now)

    def promote_pins(self, now: float) -> None:
        """Give pin budget that was freed to blocks that wait for it."""
        for block in self.pins.promote():
            self.order.move(block, None, now)

    def settle_pins(self, tenants: Iterable[Tenant], now: float) -> None:
        """Budgets changed: what is beyond them waits, as under soft pins."""
        for block in self.pins.demote(tenants):
            self.order.move(block, Rank.SOFT, now)
        self.promote_pins(now)

    # ---- sweeps

    def invalid(self, block: Block) -> bool:
        """Whether an invalidation in force covers a READY block that was not swept yet."""
        return self.sweeps.covers(block)

    def doom(self, blocks: Iterable[Block]) -> int:
        """Take READY blocks out of the index; they go now, or when no lease holds them. Returns blocks."""
        count = 0
        for block in blocks:
            self.table.unlist(block)
            if block.pins:
                self.pins.unmark(block)
            self.order.move(block, None, 0.0)
            block.doomed = True
            self.doomed[block] = None
            count += 1
        return count

    def bury(self, now: float) -> int:
        """Free doomed blocks that no lease holds; returns how many."""
        if not self.doomed:
            self.sweeps.rest()
            return 0
        blocks = list(islice(self.doomed, MAX_BURIED))
        self.table.step(blocks, Step.EVICT)
        held = self.leases.held([block.number for block in blocks])
        freed: dict[Tenant, list[int]] = {}
        for block, kept in zip(blocks, held, strict=True):
            del self.doomed[block]
            if kept:
                self.table.step((block,), Step.PUT_BACK)
                self.doomed[block] = None  # to the end: others have their turn
                continue
            sums = freed.setdefault(block.tenant, [0, 0])
            sums[0] += 1
            sums[1] += block.charge
            self.release(block, Step.FREE)
        for tenant, (count, size) in freed.items():
            self.emit(BlocksEvicted(now, shown(tenant.salt), "invalidated", count, size))
        return sum(count for count, _ in freed.values())

    def _invalidate(self, blocks: Sequence[Block]) -> int:
        count = self.doom(block for block in blocks if block.state is State.READY)
        self.totals.invalidated_blocks += count
        return count

    def _demote(self, blocks: Sequence[Block]) -> int:
        chosen = [block for block in blocks if block.shelf is not None and block.rank is Rank.NORMAL]
        for block in chosen:
            self.order.move(block, Rank.DEMOTED, block.used_at)
        return len(chosen)

    # ---- room

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
                    self.table.step(group, Step.PUT_BACK)
                else:
                    going += group
            self._pass_over([block for block, kept in zip(victims, held, strict=True) if kept], now)
        else:
            going = victims
        if not going:  # all of it is held: do not ask one by one of a pool that may be leased as a whole
            self._leased = self.leases.held_by_anybody(self.table.max_blocks)
            return 0
        admission = self.admission if reason == "room" else None
        freed: dict[Tenant, list[Block]] = {}
        for block in going:
            if admission is not None:
                admission.victim(now - block.used_at, now)
            if block.pins:
                self.pins.unmark(block)
            if block.shelf is not None:
                block.shelf.evict(block, now)
            mine = freed.get(block.tenant)
            if mine is None:
                freed[block.tenant] = [block]
            else:
                mine.append(block)
        self.table.free_all(going, Step.FREE)
        for block in going:
            if wanted is None or not wanted.take(block.slot):
                self.slabs.give(block.slot)
        for tenant, blocks in freed.items():
            size = sum([block.charge for block in blocks])
            self._uncharge(tenant, size, blocks)
            tenant.evicted_blocks += len(blocks)
            self.totals.evicted_blocks += len(blocks)
            self.totals.evicted_bytes += size
            self.emit(BlocksEvicted(now, shown(tenant.salt), reason, len(blocks), size))
        return len(going)

    def _held(self, victims: Sequence[Block]) -> list[bool]:
        """Turn READY blocks EVICTING and see which of them somebody holds. On an error all are READY again."""
        try:
            self.table.step(victims, Step.EVICT)
            return self.leases.held([block.number for block in victims])
        except BaseException:
            for block in victims:
                if block.control & STATE_MASK == _EVICTING:
                    self.table.step((block,), Step.PUT_BACK)
            raise

    def _pass_over(self, held: Sequence[Block], now: float) -> None:
        """READY blocks that somebody holds count as just used, and this search does not ask again."""
        self.totals.put_back_blocks += len(held)
        for block in held:
            block.passed_over = self._search
            self._passed.append(block.number)
        used = set(held)
        for block in reversed(self._with_ancestors(held, used)):
            if block.shelf is None:
                continue
            if block in used:
                block.shelf.touch(block, now)
            else:
                block.shelf.refresh(block, now)

    def _with_ancestors(self, held: Sequence[Block], used: Set[Block]) -> list[Block]:
        """Held blocks and the chains before them, ancestors first: who holds one holds those, they must not be older.

        A block whose ancestors are more than one time allows is left out, it stays where it is: were it alone made
        newer, its ancestors would go before it.
        """
        lines: list[Block] = []
        seen: set[Block] = set()
        ancestors, to_look_up = MAX_ANCESTORS, MAX_LOOKED_UP
        for block in reversed(held):
            line: list[Block] = []
            each: Block | None = block
            while each is not None and each not in seen:
                seen.add(each)
                line.append(each)
                if each not in used:
                    ancestors -= 1
                before = each.before
                if each.parent and (before is None or before.entry is None):
                    to_look_up -= 1
                    if to_look_up >= 0:
                        before = each.before = self.table.find(pack_keys([each.parent]), each.space)[0]
                if ancestors < 0 or to_look_up < 0:
                    return lines
                each = before
            lines += reversed(line)
        return lines

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
        if tenant.bytes <= target_bytes or self._refused_before(request, self.order.changes):
            return
        while (excess := tenant.bytes - target_bytes) > 0:
            own = chain.from_iterable(tenant.account.shelf.victims(rank, now) for rank in Rank)
            victims = self._some(map(self.table.blocks.__getitem__, own), nbytes=excess, count=MAX_AT_ONCE)
            if not victims:
                self._remember_refusal(request, Code.POOL_FULL, self.order.changes)
                return
            self.evict(victims, "limit", now)

    def keep_below(self, high: float, low: float, now: float) -> None:
        """Above a share of the capacity, evict ahead of need down to another; of many blocks some each time."""
        capacity = self.slabs.capacity_bytes
        excess = self.used_bytes - int(low * capacity)
        if self.used_bytes <= high * capacity or excess <= 0:
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
            slot = self.slabs.take(space, size)
            if slot is not None:
                slots.append(slot)
                continue
            if self.doomed and self.bury(now):
                continue
            try:
                if may_add and self._add_segment(space, size, now):
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
                self._leased = self.leases.held_by_anybody(self.table.max_blocks)
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
        return self.slabs.given, self.order.changes, self.order.ranking.changes

    def _blocked(self, leased: bytes | None) -> Flags:
        """Descriptors that are held, or that this search passed over."""
        blocked = np.zeros(self.table.max_blocks, np.bool_)
        if leased is not None:
            blocked |= np.frombuffer(leased, np.bool_)
        blocked[self._passed] = True
        return blocked

    def _refused_before(self, request: Hashable, stamp: Hashable) -> Code | None:
        """Why such a request was refused, if a new search could find no more than the last one did."""
        refusal = self._refusals.of(request, stamp)
        if refusal is None:
            return None
        if refusal.code is Code.FRAGMENTED and refusal.evicted != self.totals.evicted_blocks:
            return None  # less may go than did: it may be too little by now
        leased = self.leases.held_by_anybody(self.table.max_blocks)
        return refusal.code if self._refusals.stands(refusal, self._blocked(leased)) else None

    def _remember_refusal(self, request: Hashable, code: Code, stamp: Hashable) -> None:
        self._refusals.remember(
            request, Refusal(code, stamp, self._blocked(self._leased), self.totals.evicted_blocks)
        )

    def give_slots(self, slots: Iterable[Slot]) -> None:
        """Return slots that no block took."""
        for slot in slots:
            self.slabs.give(slot)

    def free_descriptors(self, tenant: Tenant, count: int, now: float) -> int:
        """How many of `count` descriptors can be had, evicting as needed. `spare` came before."""
        while (missing := count - self.table.free_descriptors()) > 0:
            if self.doomed and self.bury(now):
                continue
            victims = self._first(tenant.account, now, count=missing)
            if not victims:
                break
            self.evict(victims, "room", now)
        return min(count, self.table.free_descriptors())

    def make_entry(
        self, tenant: Tenant, buckets: Sequence[int], taken: Container[tuple[int, int]], now: float
    ) -> tuple[int, int] | None:
        """An index entry in one of two full buckets, by evicting one of their blocks; None when none may go."""
        while True:
            search = self.order.search(self.table.blocks, tenant.account, now)
            candidates = [
                block
                for block in self.table.neighbours(buckets)
                if block.shelf is not None and not self._skip(block)
            ]
            candidates.sort(key=lambda block: (block.rank, block.used_at))
            victim = next((block for block in candidates if search.take(block)), None)
            if victim is None:
                return None
            self.evict([victim], "index", now)
            entry = self.table.free_entry(buckets, taken)
            if entry is not None:
                return entry

    def _first(
        self, asking: Account | None, now: float, *, count: int = 1 << 60, nbytes: int = 1 << 60
    ) -> list[Block]:
        """The blocks that go first, until there are so many or so large."""
        search = self.order.search(self.table.blocks, asking, now)
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
        search = self.order.search(self.table.blocks, asking, now)
        room = self._room() if may_add else -1
        walk = Walk(self.slabs, search, space, size, missing, self._skip, room)
        with closing(search.candidates()) as candidates:
            walk.along(candidates)
        return walk

    def _room(self) -> int:
        """Bytes that a new segment could have once the empty ones are retired."""
        empty = sum(segment.nbytes for segment in self.slabs.empty_segments())
        return self.slabs.capacity_bytes - self.slabs.committed_bytes + empty

    def _add_segment(self, space: int, size: int, now: float) -> bool:
        """Give the space another segment; empty segments of others are retired when the capacity needs it."""
        segment = self.slabs.plan_segment(space, size, len(self.spaces.by_number))
        if segment is None:
            for empty in self.slabs.empties_for(size, len(self.spaces.by_number)):
                self._retire(empty, now)
            segment = self.slabs.plan_segment(space, size, len(self.spaces.by_number))
        if segment is None:
            return False
        try:
            self._memory.create_segment(segment.number, segment.nbytes)
        except MemoryError:  # what nobody uses may be what the machine lacks
            empties = self.slabs.empty_segments()
            for empty in empties:
                self._retire(empty, now)
            if not empties:
                raise
            self._memory.create_segment(segment.number, segment.nbytes)
        self.slabs.add_segment(segment)
        self.emit(SegmentCreated(now, segment.number, self.spaces.model(space), segment.nbytes))
        return True

    def forget_spaces(self, used: Set[int], now: float) -> None:
        """Forget spaces that no engine has and no block is in: a wrong block size must not outlive its engine."""
        if len(self.spaces.by_number) == len(used):
            return
        busy = {segment.space for segment in self.slabs.segments.values() if segment.slabs}
        idle = self.spaces.by_number.keys() - used - busy
        for segment in self.slabs.empty_segments():
            if segment.space in idle:
                self._retire(segment, now)
        for number in idle:
            self.spaces.forget(number)
            self.table.names.append(SpaceEnd(number))

    def _retire(self, segment: Segment, now: float) -> None:
        self.slabs.drop_segment(segment)
        self.table.names.append(SegmentEnd(segment.number))
        self._memory.retire_segment(segment.number)
        self.emit(SegmentRetired(now, segment.number, self.spaces.model(segment.space), segment.nbytes))

    def resize(self, capacity_bytes: int, now: float) -> None:
        """Let the pool grow. Raises ProtocolError(CANNOT_RESIZE); then nothing changed."""
        slabs = self.slabs
        page = slabs.page_bytes
        if capacity_bytes < slabs.capacity_bytes or capacity_bytes % page:
            raise ProtocolError(
                Code.CANNOT_RESIZE,
                f"expected a multiple of {page} bytes, {slabs.capacity_bytes} or more, got {capacity_bytes}: "
                "the pool can only grow",
                "capacity_bytes",
            )
        most = slabs.committed_bytes + self._memory.available_bytes()
        if capacity_bytes > max(most, slabs.capacity_bytes):
            raise ProtocolError(
                Code.CANNOT_RESIZE,
                f"expected at most {most} bytes, got {capacity_bytes}: this machine has no more memory available",
                "capacity_bytes",
            )
        if capacity_bytes == slabs.capacity_bytes:
            return
        slabs.resize(capacity_bytes)
        self._memory.resize(capacity_bytes)
        self.pins.rebudget(int(capacity_bytes * self.pin_budget_ratio))
        self.promote_pins(now)
        self.emit(PoolResized(now, capacity_bytes))

    def space_stats(self) -> list[SpaceStats]:
        """Spaces with most bytes first."""
        return [self.spaces.stats(number, use) for number, use in self.slabs.largest_spaces(MAX_SPACES_SHOWN)]

    def stats(self) -> PoolStats:
        stats = PoolStats(
            capacity_bytes=self.slabs.capacity_bytes,
            used_bytes=self.used_bytes,
            ready_bytes=self.used_bytes - self.reserved_bytes - self.quarantined_bytes,
            reserved_bytes=self.reserved_bytes,
            quarantined_bytes=self.quarantined_bytes,
            pinned_bytes=self.pins.pinned_bytes,
            pin_budget_bytes=self.pins.budget_bytes,
            committed_bytes=self.slabs.committed_bytes,
            padding_bytes=self.padding_bytes,
            segments=len(self.slabs.segments),
            blocks=len(self.table.blocks),
            max_blocks=self.table.max_blocks,
            free_slot_bytes=self.slabs.free_slot_bytes,
        )
        self._memory.describe(stats)
        return stats

"""The pool: every block, who is charged for it, and how room is made.

Room is made inside a reservation, in bytes, by one rule: walk the eviction order and take the first thing that makes
usable room. That is a block whose slot serves the request, or a slab or segment all of whose blocks were met on the
way. A pool of one block size therefore evicts exactly in policy order, and a mixed one never wedges: an allocation that
fits the evictable bytes fails only when every slab that could serve it holds something that may not go.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence, Set
from dataclasses import dataclass, field

from dataplane.core.blocks import Block, BlockTable
from dataplane.core.leases import LeaseTable
from dataplane.core.order import Order
from dataplane.core.pins import PinTable
from dataplane.core.ports import Memory
from dataplane.core.quotas import Tenant, Tenants
from dataplane.core.slabs import Segment, Slab, Slabs, Slot
from dataplane.core.spaces import Spaces
from dataplane.eviction import EvictionPolicy
from dataplane.protocol.codes import Code
from dataplane.protocol.events import BlocksEvicted, Event, PoolStats, SegmentCreated, SegmentRetired, Totals
from dataplane.protocol.salts import shown
from dataplane.protocol.states import STATE_MASK, State, Step

_READABLE = (int(State.READY), int(State.EVICTING))
_RESERVED = int(State.RESERVED)


@dataclass(slots=True)
class Walk:
    """What one walk along the eviction order found."""

    victims: list[list[Block]] = field(default_factory=list)
    """Groups: a group makes room only when all of it goes."""
    missing: int = 0
    evictable_bytes: int = 0
    met: dict[Slab, list[Block]] = field(default_factory=dict)
    """Blocks met of slabs that serve another size or space."""
    full: dict[Segment, int] = field(default_factory=dict)
    """Number of a segment's slabs all of whose blocks were met."""
    emptied: list[Segment] = field(default_factory=list)
    """Segments all of whose blocks were met, and that are not among the victims."""
    room: int = 0
    """Bytes that retiring `emptied` and what is empty already would leave for a new segment."""


class Pool:
    """Blocks, slabs, tenants, pins and the order, kept consistent with each other."""

    def __init__(
        self,
        table: BlockTable,
        slabs: Slabs,
        leases: LeaseTable,
        memory: Memory,
        policy: Callable[[], EvictionPolicy],
        pin_budget_bytes: int,
        emit: Callable[[Event], None],
    ) -> None:
        self.table = table
        self.slabs = slabs
        self.leases = leases
        self.tenants = Tenants()
        self.pins = PinTable(pin_budget_bytes)
        self.spaces = Spaces()
        self.order = Order(policy)
        self.totals = Totals()
        self.emit = emit
        self.reserved_bytes = 0
        self.quarantined_bytes = 0
        self.used_bytes = 0
        self.padding_bytes = 0
        self._memory = memory
        self._search = 0
        self._leased: bytes | None = None
        """A byte for each descriptor, not 0 where somebody holds it; taken when a search meets leases only."""

    # ---- a block's charge

    def charge(self, tenant: Tenant, blocks: Sequence[Block]) -> None:
        """Account a tenant's blocks that were just reserved."""
        size = sum(block.charge for block in blocks)
        tenant.bytes += size
        tenant.blocks += len(blocks)
        self.used_bytes += size
        self.reserved_bytes += size
        self.padding_bytes += size - sum(block.nbytes for block in blocks)

    def release(self, block: Block, step: Step) -> None:
        """End a block with a step into FREE and give everything of it back."""
        state = block.control & STATE_MASK
        charge = block.charge
        if state in _READABLE:
            if not (block.pins and self.pins.unmark(block)):
                self.order.remove(block)
        elif state == _RESERVED:
            self.reserved_bytes -= charge
        else:
            self.quarantined_bytes -= charge
        self.table.free(block, step)
        self.slabs.give(block.slot)
        block.tenant.bytes -= charge
        block.tenant.blocks -= 1
        self.used_bytes -= charge
        self.padding_bytes -= charge - block.nbytes

    def publish(self, block: Block, now: float) -> None:
        """A block turned READY: put it under its pins or into the eviction order."""
        self.reserved_bytes -= block.charge
        pins = self.pins.of(self.spaces.model(block.space), block.key)
        if not (pins and self.pins.mark(block, pins)):
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

    def touch_number(self, number: int, now: float) -> None:
        """A READY block was used."""
        self.order.touch(self.table.blocks[number], now)

    # ---- pins

    def repin(self, block: Block, now: float) -> None:
        """Look a READY block's pins up again after the pin table changed."""
        pins = self.pins.of(self.spaces.model(block.space), block.key)
        if pins == block.pins:
            return
        was = self.pins.unmark(block)
        guaranteed = bool(pins) and self.pins.mark(block, pins)
        if was and not guaranteed:
            self.order.insert(block, now)
        elif guaranteed and not was:
            self.order.remove(block)

    def promote_pins(self) -> None:
        """Give pin budget that was freed to blocks that wait for it."""
        for block in self.pins.promote():
            self.order.remove(block)

    # ---- room

    def evict(self, victims: Sequence[Block], reason: str, now: float) -> int:
        """Evict READY blocks that nobody holds; blocks that somebody holds count as just used. Returns freed blocks."""
        return self._evict_groups([[block] for block in victims], reason, now)

    def _evict_groups(self, groups: Sequence[Sequence[Block]], reason: str, now: float) -> int:
        """As `evict`, but a group of which somebody holds a block stays whole: without that block it makes no room."""
        victims = [block for group in groups for block in group]
        if not victims:
            return 0
        self.table.step(victims, Step.EVICT)
        held = iter(self.leases.held([block.number for block in victims]))
        freed: dict[Tenant, list[int]] = {}
        for group in groups:
            kept = [next(held) for _ in group]
            if any(kept):
                self._put_back(group, kept, now)
                continue
            for block in group:
                sums = freed.setdefault(block.tenant, [0, 0])
                sums[0] += 1
                sums[1] += block.charge
                self.release(block, Step.FREE)
        for tenant, (blocks, size) in freed.items():
            tenant.evicted_blocks += blocks
            self.totals.evicted_blocks += blocks
            self.totals.evicted_bytes += size
            self.emit(BlocksEvicted(now, shown(tenant.salt), reason, blocks, size))
        if not freed:  # all of it is held: do not ask one by one of a pool that may be leased as a whole
            self._leased = self.leases.held_by_anybody(self.table.max_blocks)
        return sum(blocks for blocks, _ in freed.values())

    def _put_back(self, group: Sequence[Block], held: Sequence[bool], now: float) -> None:
        self.table.step(group, Step.PUT_BACK)
        for block, kept in zip(group, held, strict=True):
            if kept:
                self.order.touch(block, now)
                block.passed_over = self._search
                self.totals.put_back_blocks += 1

    def spare(self, blocks: Iterable[Block]) -> None:
        """Begin a search for room that must not evict these blocks."""
        self._search += 1
        self._leased = None
        for block in blocks:
            block.passed_over = self._search

    def _skip(self, block: Block) -> bool:
        leased = self._leased
        return block.passed_over == self._search or (leased is not None and leased[block.number] != 0)

    def shrink_tenant(self, tenant: Tenant, target_bytes: int, now: float) -> None:
        """Evict a limited tenant's own blocks, in its own order, until it is charged at most `target_bytes`."""
        while tenant.bytes > target_bytes:
            excess = tenant.bytes - target_bytes
            victims: list[Block] = []
            for number in self.order.victims(tenant):
                block = self.table.blocks[number]
                if self._skip(block):
                    continue
                victims.append(block)
                excess -= block.charge
                if excess <= 0:
                    break
            if not victims:
                return
            self.evict(victims, "limit", now)

    def take_slots(self, space: int, size: int, count: int, now: float) -> tuple[list[Slot], Code | None]:
        """Up to `count` slots, evicting as needed; with fewer, the reason. `spare` came before."""
        slots: list[Slot] = []
        reason: Code | None = None
        while len(slots) < count:
            slot = self.slabs.take(space, size)
            if slot is not None:
                slots.append(slot)
                continue
            try:
                if self._add_segment(space, size, now):
                    continue
            except MemoryError:
                reason = Code.OUT_OF_MEMORY
            walk = self._walk(space, size, count - len(slots))
            if not walk.victims:
                reason = reason or (Code.FRAGMENTED if walk.evictable_bytes >= size else Code.POOL_FULL)
                break
            self._evict_groups(walk.victims, "room", now)
        return slots, reason if len(slots) < count else None

    def give_slots(self, slots: Iterable[Slot]) -> None:
        """Return slots that no block took."""
        for slot in slots:
            self.slabs.give(slot)

    def free_descriptors(self, count: int, now: float) -> int:
        """How many of `count` descriptors can be had, evicting as needed. `spare` came before."""
        while (missing := count - self.table.free_descriptors()) > 0:
            victims = self._first(missing)
            if not victims:
                break
            self.evict(victims, "room", now)
        return min(count, self.table.free_descriptors())

    def make_entry(
        self, buckets: Sequence[int], taken: Container[tuple[int, int]], now: float
    ) -> tuple[int, int] | None:
        """An index entry in one of two full buckets, by evicting one of their blocks; None when none may go."""
        while True:
            candidates = [
                block
                for block in self.table.neighbours(buckets)
                if block.state is State.READY and not block.guaranteed and not self._skip(block)
            ]
            if not candidates:
                return None
            self.evict(candidates[:1], "index", now)
            entry = self.table.free_entry(buckets, taken)
            if entry is not None:
                return entry

    def _first(self, count: int) -> list[Block]:
        found: list[Block] = []
        for number in self.order.victims(None):
            block = self.table.blocks[number]
            if not self._skip(block):
                found.append(block)
                if len(found) == count:
                    break
        return found

    def _walk(self, space: int, size: int, missing: int) -> Walk:
        walk = Walk(missing=missing, room=self._room())
        for number in self.order.victims(None):
            block = self.table.blocks[number]
            if self._skip(block):
                continue
            slab = block.slot.slab
            walk.evictable_bytes += block.charge
            if slab.slot_bytes == size and slab.segment.space == space:
                walk.victims.append([block])
                walk.missing -= 1
            else:
                self._meet(walk, block, space, size)
            if walk.missing <= 0:
                break
        return walk

    def _meet(self, walk: Walk, block: Block, space: int, size: int) -> None:
        """A block of another size or space: it makes room together with the rest of its slab, or of its segment."""
        slab = block.slot.slab
        blocks = walk.met.setdefault(slab, [])
        blocks.append(block)
        if len(blocks) < len(slab.blocks):
            return
        slots = self.slabs.yields(slab, space, size)
        if slots:
            walk.victims.append(blocks)
            walk.missing -= slots
            return
        segment = slab.segment
        walk.full[segment] = walk.full.get(segment, 0) + 1
        if walk.full[segment] < len(segment.slabs):
            return
        walk.emptied.append(segment)
        walk.room += segment.nbytes
        if walk.room >= size:
            walk.victims.append(
                [other for each in walk.emptied for slab in each.slabs for other in walk.met[slab]]
            )
            walk.missing -= walk.room // size
            walk.emptied, walk.room = [], walk.room % size

    def _room(self) -> int:
        """Bytes that a new segment could have once the empty ones are retired."""
        empty = sum(segment.nbytes for segment in self.slabs.empty_segments())
        return self.slabs.capacity_bytes - self.slabs.committed_bytes + empty

    def _add_segment(self, space: int, size: int, now: float) -> bool:
        """Give the space another segment; empty segments of others are retired when the capacity needs it."""
        segment = self.slabs.plan_segment(space, size, len(self.spaces.by_number))
        if segment is None:
            for empty in self.slabs.empty_segments():
                self._retire(empty, now)
            segment = self.slabs.plan_segment(space, size, len(self.spaces.by_number))
        if segment is None:
            return False
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

    def _retire(self, segment: Segment, now: float) -> None:
        self.slabs.drop_segment(segment)
        self._memory.retire_segment(segment.number)
        self.emit(SegmentRetired(now, segment.number, self.spaces.model(segment.space), segment.nbytes))

    def stats(self) -> PoolStats:
        return PoolStats(
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
        )

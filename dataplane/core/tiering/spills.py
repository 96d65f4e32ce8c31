"""Copies to tiers: which blocks wait for which tier, and what the outcome of a copy means."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Protocol

from dataplane.core.blocks.blocks import Block
from dataplane.core.eviction.victim_iterator import VictimIterator
from dataplane.core.pool.pool import Pool
from dataplane.core.tiering.contents import TierEntry
from dataplane.core.tiering.invalidations import Tombstone
from dataplane.core.tiering.tier_state import TAKES_NOTHING, TierState
from dataplane.protocol.checksums import NONE
from dataplane.protocol.layout import COLD_CHECKSUM, pack_keys
from dataplane.protocol.stored_blocks import BlockName, CopyEnd, Outcome, StoredBlock

if TYPE_CHECKING:
    from dataplane.core.tiering.tiering import Tiering

MAX_WAITING_SPILLS = 1 << 16
EVICT_AHEAD = 256
"""Number of blocks at the end of the eviction order that `look_ahead` examines."""
EVICT_ABOVE = 0.8
"""Fraction of the pool above which blocks that are soon evicted are copied to tiers with spill `evict`."""


@dataclass(frozen=True, slots=True)
class PlannedSpill:
    """A block to copy to a tier. It is leased until `Spills.ended` is called."""

    block: Block
    stored: StoredBlock
    """With an empty checksum if the pool has none."""
    charge: int
    """Bytes that were reserved for it: its size without compression."""
    since: float = inf
    """Blocks of the tier that were stored or used at or after this time are not evicted for it."""


class PlannedCopy(Protocol):
    """A copy to a tier, from memory or from another tier."""

    @property
    def stored(self) -> StoredBlock: ...

    @property
    def charge(self) -> int: ...

    @property
    def since(self) -> float: ...


class Spills:
    """Blocks that wait to be copied to tiers, and the copies under way."""

    def __init__(self, pool: Pool, tiering: Tiering) -> None:
        self._pool = pool
        self._tiering = tiering
        self._under_way: dict[tuple[int, BlockName], StoredBlock] = {}
        """Blocks that are being copied to a tier, by its number."""
        self._dead: set[tuple[int, BlockName]] = set()
        """Those of them that an invalidation covers."""

    def look_ahead(self, now: float) -> None:
        """Choose blocks that are soon evicted, for tiers with spill `evict`."""
        pool = self._pool
        if not any(tier.spec.spill == "evict" for tier in self._tiering.tiers):
            return
        if pool.used_bytes < EVICT_ABOVE * pool.slabs.capacity_bytes:
            return
        search = VictimIterator(pool.order, pool.table.blocks, None, now)
        with closing(search.candidates()) as candidates:
            soon = list(islice(candidates, EVICT_AHEAD))
        self.wait(soon, "evict")

    def wait(self, blocks: Sequence[Block], why: str) -> None:
        targets = [tier for tier in self._tiering.tiers if tier.spec.spill == why]
        for tier in targets:
            self._enqueue(tier, tier.waiting, blocks)
        if targets:
            self._tiering.on_work()

    def first(self, blocks: Sequence[Block]) -> None:
        """Copy those of the blocks that a guaranteed or a permanent pin holds before all others, to every tier that
        takes blocks at all."""
        marked = self._pool.pins.marked
        ready = [block for block in blocks if any(bundle.strength != "soft" for bundle in marked.get(block, ()))]
        if not ready:
            return
        for tier in self._tiering.tiers:
            if tier.spec.spill in TAKES_NOTHING:
                continue
            if tier.serves:
                self._enqueue(tier, tier.first, ready)
            else:
                tier.missed_pins = True
        self._tiering.on_work()

    def move(self, tier: TierState, blocks: Sequence[Block]) -> set[BlockName]:
        """Copy blocks to one tier, whatever its `spill` is. Return those that did not wait for the tier before."""
        added = self._enqueue(tier, tier.waiting, blocks)
        self._tiering.on_work()
        return added

    def move_cancelled(self, tier: TierState, names: Set[BlockName]) -> None:
        """Remove blocks that `move` added from the queue, except those of guaranteed and permanent pins."""
        left: deque[tuple[Block, int]] = deque()
        for block, control in tier.waiting:
            space = self._tiering.identity(block.space)
            name = None if space is None else BlockName(space, block.key)
            if name is None or name not in names or block in self._pool.pins.marked:
                left.append((block, control))
            else:
                tier.waiting_for.discard(name)
                tier.waiting_bytes -= block.nbytes
        tier.waiting = left

    def _enqueue(self, tier: TierState, queue: deque[tuple[Block, int]], blocks: Sequence[Block]) -> set[BlockName]:
        added: set[BlockName] = set()
        for block in blocks:
            space = self._tiering.identity(block.space)
            if space is None:
                continue
            name = BlockName(space, block.key)
            if name in tier.waiting_for or tier.entry_of(name) is not None:
                continue
            if not tier.serves:
                tier.refuse("away", name)
            elif len(queue) >= MAX_WAITING_SPILLS:
                tier.refuse("waiting", name)
            else:
                tier.enqueue(queue, block)
                tier.waiting_for.add(name)
                added.add(name)
        return added

    @property
    def crowded(self) -> bool:
        """Whether too many blocks of pins wait for a tier to add others."""
        return any(len(tier.first) >= MAX_WAITING_SPILLS // 2 for tier in self._tiering.tiers if tier.serves)

    def next_batch(self, tier: TierState, now: float, most: int, most_bytes: int = 1 << 62) -> list[PlannedSpill]:
        """Return the next blocks to copy to a tier, leased: at most `most`, and no more after `most_bytes`."""
        plans: list[PlannedSpill] = []
        planned_bytes = 0
        while len(plans) < most and planned_bytes < most_bytes:
            plan = self._plan(tier, now)
            if plan is None:
                break
            plans.append(plan)
            planned_bytes += plan.stored.length
        if plans:
            self._pool.leases.hold([plan.block.number for plan in plans], self._pool.table.max_blocks)
        return plans

    def _plan(self, tier: TierState, now: float) -> PlannedSpill | None:
        while queue := tier.first or tier.waiting:
            block, control = queue[0]
            space = self._tiering.identity(block.space)
            if space is None or not self._pool.readable(block, control):
                tier.dequeue(queue)
                self._waits_no_more(tier, space, block)
                continue
            name = BlockName(space, block.key)
            if name in tier.deleting:
                return None
            charge = tier.stored_size(block.nbytes)
            if tier.spilling_bytes and tier.spilling_bytes + charge > tier.spec.max_bytes_in_flight:
                return None
            tier.dequeue(queue)
            self._waits_no_more(tier, space, block)
            if (tier.number, name) in self._under_way or tier.entry_of(name) is not None:
                continue
            checksum = self._checksum(block)
            writer = self._tiering.writer if tier.shared else 0
            salt, timestamp, parent = block.tenant.salt, block.timestamp, block.parent
            stored = StoredBlock(name, salt, timestamp, block.nbytes, checksum, parent, writer)
            since = tier.moving.get(name, inf)
            taken = self.admit(tier, stored, now, self._in_memory, since=since)
            if taken is not None:
                return PlannedSpill(block, stored, taken, since)
        return None

    def admit(
        self,
        tier: TierState,
        stored: StoredBlock,
        now: float,
        excluded: Callable[[TierEntry], bool],
        *,
        since: float = inf,
    ) -> int | None:
        """Reserve room for a block that is to be copied to a tier, and return its charge; None if it is refused. Blocks
        that were stored or used at or after the time `since` are not evicted for it. `copied` or `cancel` must
        follow."""
        charge, salt, name = tier.stored_size(stored.length), stored.tenant, stored.name
        victims = tier.contents.victims(charge, salt, now, excluded)
        if isinstance(victims, str):
            tier.refuse(victims, name)
            return None
        if victims and tier.listed_blocks is not None:
            tier.refuse("listing", name)
            return None
        if any(victim.used_at >= since for victim in victims):
            tier.refuse("budget", name)
            return None
        for victim in victims:
            self._tiering.evict(tier, victim)
        tier.contents.take(charge, salt)
        tier.spilling_bytes += charge
        self._under_way[tier.number, name] = stored
        return charge

    def batch_ended(self, tier: TierState, plans: Sequence[PlannedSpill], ends: Sequence[CopyEnd], now: float) -> None:
        """Process the ends of copies to a tier."""
        self._pool.leases.release([plan.block.number for plan in plans])
        self.copied(tier, plans, ends, now)

    def copied(self, tier: TierState, plans: Sequence[PlannedCopy], ends: Sequence[CopyEnd], now: float) -> None:
        """Process the ends of copies for which `admit` reserved room."""
        stored = [plan.stored for plan, end in zip(plans, ends, strict=True) if self._is_stored(tier, plan, end, now)]
        entries = tier.contents.entries  # a later copy of the batch may have evicted the block of an earlier one
        self._tiering.list_blocks(
            tier, [block for block in stored if block.name in entries and entries[block.name].stored is block]
        )

    def cancel(self, tier: TierState, plan: PlannedCopy) -> bool:
        """Release the room of a copy. Return whether an invalidation covers the block."""
        tier.contents.take(-plan.charge, plan.stored.tenant)
        tier.spilling_bytes -= plan.charge
        return self.end(tier, plan.stored)

    def _is_stored(self, tier: TierState, plan: PlannedCopy, end: CopyEnd, now: float) -> bool:
        """Process the end of a copy. Return whether the tier holds the block from now on."""
        outcome = end.outcome
        dead = self.cancel(tier, plan)
        if dead and not tier.closing:  # it may have been stored again meanwhile
            self._wait_again(tier, plan.stored.name)
        if outcome is not Outcome.OK:
            tier.refuse(outcome.value, plan.stored.name)
            if outcome is Outcome.FULL and not tier.closing:
                self._make_room(tier, plan, now)
            return False
        tier.counters.spilled_blocks += 1
        tier.counters.spilled_bytes += plan.stored.length
        tier.counters.not_compressed_because(end.not_compressed)
        if tier.closing:
            return False
        if dead:
            self._tiering.delete_later(tier, [plan.stored.name])
            return False
        charge = plan.charge if end.charge is None else end.charge
        entry = tier.contents.add(plan.stored, charge, now, end.encoding)
        self._tiering.pinned_chains.mark(tier, entry, now)
        self._tiering.existence.stored(plan.stored.name)
        return True

    def _make_room(self, tier: TierState, plan: PlannedCopy, now: float) -> None:
        """Evict as many bytes as the refused block needs. The tier's room is smaller than its budget, for example
        because it is divided into pieces for blocks of one size."""
        if tier.listed_blocks is not None:
            return
        tier.contents.was_full()
        salt = plan.stored.tenant
        victims = tier.contents.victims(0, salt, now, lambda entry: False, at_least=plan.charge)
        if not isinstance(victims, str) and all(victim.used_at < plan.since for victim in victims):
            for victim in victims:
                self._tiering.evict(tier, victim)

    def _wait_again(self, tier: TierState, name: BlockName) -> None:
        space = self._tiering.space_numbers().get(name.space)
        block = None if space is None else self._pool.table.find(pack_keys([name.key]), space)[0]
        if block is not None and self._pool.readable(block, block.control):
            tier.enqueue(tier.waiting, block)
            tier.waiting_for.add(name)

    def _waits_no_more(self, tier: TierState, space: bytes | None, block: Block) -> None:
        if space is not None:
            tier.waiting_for.discard(BlockName(space, block.key))

    def _checksum(self, block: Block) -> bytes:
        cold = self._pool.table.memory.cold
        found = cold[block.number, COLD_CHECKSUM : COLD_CHECKSUM + 2].tobytes()
        return b"" if found == NONE else found

    def _in_memory(self, entry: TierEntry) -> bool:
        return self.is_used_in_memory(entry, self._tiering.space_numbers())

    def is_used_in_memory(self, entry: TierEntry, spaces: Mapping[bytes, int]) -> bool:
        """Return whether a block is used in memory. The tier then keeps it, because it does not see these uses.
        `spaces` are `Tiering.space_numbers`."""
        space = spaces.get(entry.stored.name.space)
        if space is None:
            return False
        block = self._pool.table.find(pack_keys([entry.stored.name.key]), space)[0]
        return block is not None and block.hits > 0 and entry.hits == 0

    def begin(self, tier: TierState, stored: StoredBlock) -> None:
        """Record that a block in the tier is being stored again."""
        self._under_way[tier.number, stored.name] = stored

    def end(self, tier: TierState, stored: StoredBlock) -> bool:
        """Record that a block is no longer being stored again. Return whether an invalidation covers it now."""
        known = (tier.number, stored.name)
        del self._under_way[known]
        dead = known in self._dead
        self._dead.discard(known)
        return dead

    def is_under_way(self, tier: TierState, name: BlockName) -> bool:
        """Return whether a block is being copied to a tier."""
        return (tier.number, name) in self._under_way

    def invalidated(self, tombstone: Tombstone) -> None:
        """Note that the copies that a tombstone covers must be deleted when they end. Whether a block lies behind the
        keys of the tombstone is not known yet."""
        self._dead |= {known for known, stored in self._under_way.items() if tombstone.covers(stored)}

    def dead(self, tier: TierState) -> int:
        """Return the number of copies to a tier that are deleted when they end."""
        return sum(number == tier.number for number, _ in self._dead)

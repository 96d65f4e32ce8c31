"""The pool: all blocks, their charges, pins and sweeps. `core.eviction.reclaimer` makes room in it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Protocol

import numpy as np

from dataplane.base.units import format_exact_size
from dataplane.core.blocks.blocks import Block, BlockTable
from dataplane.core.blocks.leases import LeaseTable
from dataplane.core.blocks.lookup_leases import LookupLeases
from dataplane.core.blocks.ports import MemorySource
from dataplane.core.blocks.segments import Segments
from dataplane.core.blocks.slabs import Slabs
from dataplane.core.pool.ages import AgeHistogram
from dataplane.core.pool.arrivals import TierArrivals
from dataplane.core.pool.changes import BlockChanges
from dataplane.core.pool.hints import Hint, HintTable
from dataplane.core.pool.order import EvictionOrder
from dataplane.core.pool.pins import Pin, PinBundle, PinTable
from dataplane.core.pool.removals import MEMORY_CAUSES, Removals
from dataplane.core.pool.sessions import SessionTable
from dataplane.core.pool.sweeps import Sweeps
from dataplane.core.spaces import Spaces
from dataplane.core.tenants.eviction_queues import MakePolicy, Rank
from dataplane.core.tenants.quotas import TenantTable
from dataplane.core.tenants.tenant import Tenant
from dataplane.core.tenants.usage import UsageTable
from dataplane.policies.admission import Admission
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.events import BlocksEvicted, Event, PoolResized
from dataplane.protocol.layout import COLD_TENANT, HOT_NBYTES
from dataplane.protocol.salts import shown
from dataplane.protocol.states import STATE_MASK, BlockStep, State
from dataplane.protocol.stats.pool import Evictions, PoolStats, SpaceStats, Totals

_READABLE = (int(State.READY), int(State.EVICTING))
_RESERVED = int(State.RESERVED)
MAX_SPACES_SHOWN = 1000
USED_AT, TIMESTAMP = attrgetter("used_at"), attrgetter("timestamp")
MAX_REAPED = 4096
"""Maximum number of dead blocks whose leases one call of `reap` checks."""


class TierListener(Protocol):
    """What tiers behind memory need to know of blocks."""

    def stored(self, blocks: Sequence[Block]) -> None:
        """Blocks became READY."""

    def used(self, block: Block) -> None:
        """A block was used for the first time since it was stored."""

    def removed(self, blocks: Sequence[Block], now: float) -> None:
        """Blocks were evicted."""

    def is_served(self, key: bytes, space: int) -> bool | None:
        """Return whether a tier in service holds a block; None if no tier is known to hold it."""

    def share_out(self) -> None:
        """Quotas of tenants changed."""

    def pins_changed(self, pins: Iterable[Pin]) -> None:
        """Pins were added, replaced, removed, or have expired."""


class Pool:
    """Blocks, slabs, tenants, pins, sweeps and the eviction order, kept consistent with each other."""

    def __init__(
        self,
        table: BlockTable,
        slabs: Slabs,
        leases: LeaseTable,
        memory: MemorySource,
        policy: MakePolicy,
        pin_budget_ratio: float,
        emit: Callable[[Event], None],
    ) -> None:
        self.table = table
        self.slabs = slabs
        self.leases = leases
        self.lookups = LookupLeases(leases)
        self._holders: list[Tenant] = []
        """Tenants of which look-ups held blocks when that was last measured."""
        self.order = EvictionOrder(policy)
        self.pin_budget_ratio = pin_budget_ratio
        self.pins = PinTable(int(slabs.capacity_bytes * pin_budget_ratio))
        self._marked = self.pins.marked
        self.hints = HintTable(self.order, self._marked)
        self.sessions = SessionTable(table.max_blocks)
        self.spaces = Spaces()
        self.usage = UsageTable(self.spaces)
        self.arrivals = TierArrivals(self.usage)
        self.tenants = TenantTable(self.order.common, self.usage)
        self.dead: dict[Block, str] = {}
        """Blocks that are out of the index and wait for the end of a lease, oldest first, and why: `invalidated`,
        `corrupt` or `hint`."""
        self.removals = Removals()
        """What became of blocks that are gone."""
        self.sweeps = Sweeps(table.memory, table.recovery_table, table.blocks, self._invalidate, self.demote, self.dead)
        self.totals = Totals()
        self.evicted = {reason: Evictions() for reason in MEMORY_CAUSES}
        self.evicted_idle, self.reuse_gaps = AgeHistogram(), AgeHistogram()
        self.lifetimes = AgeHistogram(per_second=1e9)
        self.emit = emit
        self.reserved_bytes = 0
        self.quarantined_bytes = 0
        self.used_bytes = 0
        self.padding_bytes = 0
        self.admission: Admission | None = None
        """The admission filter, or None when it is off."""
        self.changes: BlockChanges | None = None
        """Record of stored and removed blocks, or None when nothing reads it."""
        self.tiers: TierListener | None = None
        """Listener for blocks that tiers may hold, or None without tiers."""
        self._memory = memory
        self.segments = Segments(slabs, self.spaces, table.names, memory, emit)

    # ---- a block's charge

    def charge(self, tenant: Tenant, blocks: Sequence[Block]) -> None:
        """Charge a tenant for blocks of one space that were just reserved."""
        size = sum([block.charge for block in blocks])
        self.order.charge(tenant, size)
        self.usage.charge(tenant, blocks[0].space, size)
        tenant.blocks += len(blocks)
        self.used_bytes += size
        self.reserved_bytes += size
        for block in blocks:
            if padding := block.charge - block.nbytes:
                self.padding_bytes += padding
                self.slabs.use(block.space).padding_bytes += padding

    def release(self, block: Block, step: BlockStep) -> None:
        """Free a block with `step`, which must end in FREE, and give back its slot and charge."""
        state = block.control & STATE_MASK
        charge = block.charge
        if state in _READABLE:
            if block in self.pins.marked:
                self.pins.unmark(block)
            self.hints.forget(block)
            if self.arrivals:
                self.arrivals.removed((block,))
            if block.queue is not None:
                block.queue.remove(block)
        elif state == _RESERVED:
            self.reserved_bytes -= charge
        else:
            self.quarantined_bytes -= charge
        self.table.free(block, step)
        self.slabs.give(block.slot)
        self.uncharge(block.tenant, charge, (block,))
        self.usage.charge(block.tenant, block.space, -charge)

    def uncharge(self, tenant: Tenant, size: int, blocks: Sequence[Block]) -> None:
        """Remove the charge of freed blocks, `size` bytes in all, from a tenant."""
        self.order.charge(tenant, -size)
        tenant.blocks -= len(blocks)
        if not tenant.blocks:
            self.table.names.tenant_unused(tenant.number)
        self.used_bytes -= size
        for block in blocks:
            if padding := block.charge - block.nbytes:
                self.padding_bytes -= padding
                self.slabs.use(block.space).padding_bytes -= padding

    def publish(self, block: Block, now: float) -> None:
        """Apply pins to a block that became READY, or insert it into its eviction queue. The caller updates the
        recovery table."""
        self.reserved_bytes -= block.charge
        block.used_at = now
        pins = self._pins_of(block) if self.pins.by_name else ()
        if pins:
            self._mark(block, pins, now)
        else:
            self.order.insert(block, now)

    def quarantine(self, blocks: Iterable[Block]) -> int:
        """Quarantine blocks whose hung or dead owner could still write: keep the bytes but free the keys.

        Return the charged bytes.
        """
        total = 0
        for block in blocks:
            self.table.unlist(block)
            self.table.step((block,), BlockStep.LOSE_OWNER)
            self.reserved_bytes -= block.charge
            self.quarantined_bytes += block.charge
            self.totals.quarantined_blocks += 1
            total += block.charge
        return total

    def use(self, blocks: Sequence[Block], now: float) -> None:
        """Record uses of READY blocks, in order."""
        self.reuse_gaps.add(map(USED_AT, blocks), now)
        for block in blocks:
            self.touch(block, now)
        self.table.used(blocks, now)

    def touch(self, block: Block, now: float) -> None:
        """Record a use of a READY block. The caller updates the recovery table."""
        block.used_at = now
        block.hits += 1
        if block.hits == 1 and self.tiers is not None:
            self.tiers.used(block)
        if block.queue is not None:  # a block that may not be evicted is in no queue
            block.queue.touch(block, now)
        if self._marked:
            for pin in self._marked.get(block, ()):
                pin.hits += 1
                pin.hit_at = now

    def refresh(self, block: Block, now: float) -> None:
        """Make a block recent again without counting a use, so that later blocks of its chain do not become newer than
        it. The caller updates the recovery table."""
        block.used_at = now
        if block.queue is not None:
            block.queue.refresh(block, now)

    def use_chain(self, blocks: Sequence[Block], counted: Container[int], now: float) -> None:
        """Record the use of READY blocks of a chain, last block first. Blocks whose numbers are in `counted` only
        become recent, because their use was recorded before."""
        for block in blocks:
            if block.number in counted:
                self.refresh(block, now)
            else:
                self.touch(block, now)
        if blocks:
            self.table.used(blocks, now)

    # ---- pins

    def repin(self, block: Block, now: float) -> None:
        """Update the pins of a READY block after the pin table changed."""
        pins = self._pins_of(block)
        if block in self.dead or pins == self.pins.marked.get(block, ()):
            return
        self.pins.unmark(block)
        if pins:
            self._mark(block, pins, now)
        else:
            self.order.move(block, self.hints.rank(block), now)

    def _pins_of(self, block: Block) -> tuple[PinBundle, ...]:
        """Return the bundles of pins that hold a block; only pins of its own tenant can."""
        return self.pins.of(self.spaces.model(block.space), block.tenant.salt, block.key)

    def line_up_soft(self, blocks: Sequence[Block], now: float) -> None:
        """Order the soft-pinned blocks of a chain, given in chain order, so that the tail is evicted first."""
        for block in reversed(blocks):
            if block.queue is not None and block.rank is Rank.SOFT:
                block.queue.refresh(block, now)

    def _mark(self, block: Block, pins: tuple[PinBundle, ...], now: float) -> None:
        rank, displaced = self.pins.mark(block, pins)
        self.order.move(block, rank, now)
        for other in displaced:
            self.order.move(other, Rank.SOFT, now)

    def promote_pins(self, now: float) -> None:
        """Give freed pin budget to blocks that wait for it."""
        for block in self.pins.promote():
            self.order.move(block, None, now)

    def settle_pins(self, tenants: Iterable[Tenant], now: float) -> None:
        """Apply changed pin budgets. Blocks beyond the budgets wait and are treated as under soft pins."""
        for block in self.pins.demote(tenants):
            self.order.move(block, Rank.SOFT, now)
        self.promote_pins(now)

    # ---- hints

    def hint(self, hint: Hint, blocks: Sequence[Block], chain: Sequence[Block], now: float) -> int:
        """Apply the hint of a request to some READY blocks of its chain, ancestors first, and count them. Return the
        number of blocks that were not pinned because the share was full."""
        bounded = hint.bounded(self.hints.max_s)
        if bounded is None:
            return 0
        refused = self.hints.apply(bounded, blocks, chain, self.slabs.capacity_bytes, now)
        if bounded.ttl_s:
            self.totals.hinted_ttl_blocks += len(blocks)
        if bounded.pin_s:
            self.totals.hinted_pin_blocks += len(blocks) - refused
            self.totals.refused_hinted_pin_blocks += refused
        return refused

    def end_hints(self, now: float) -> None:
        """End hints that are due, and drop the blocks that were not used for as long as their request asked."""
        self.mark_dead(self.hints.step(now), "hint")

    # ---- sweeps

    def invalid(self, block: Block) -> bool:
        """Return whether an active invalidation covers a READY block that has not been swept yet."""
        return self.sweeps.covers(block)

    def readable(self, block: Block, control: int) -> bool:
        """Return whether a block still has this control word, is READY, and is neither dead nor invalid."""
        return (
            self.table.blocks.get(block.number) is block
            and block.control == control
            and block.state is State.READY
            and block not in self.dead
            and not self.invalid(block)
        )

    def count_evicted(self, tenant: Tenant, reason: str, blocks: int, nbytes: int, now: float) -> None:
        """Count evicted blocks of a tenant, and publish an event."""
        counted = self.evicted[reason]
        counted.blocks += blocks
        counted.bytes += nbytes
        tenant.evict(reason, blocks)
        self.emit(BlocksEvicted(now, shown(tenant.salt), reason, blocks, nbytes))

    def mark_dead(self, blocks: Iterable[Block], reason: str = "invalidated") -> int:
        """Remove READY blocks from the index and mark them dead; `reap` frees them when no lease holds them. Return the
        number of blocks."""
        gone = list(blocks)
        self.sessions.evicted(gone, None if self.tiers is None else self.tiers.is_served)
        for block in gone:
            self.table.unlist(block)
            if block in self.pins.marked:
                self.pins.unmark(block)
            self.hints.forget(block)
            self.order.move(block, None, 0.0)
            self.dead[block] = reason
        self.removals.note(gone, reason, self.usage.now)
        if self.changes is not None:
            self.changes.changed(gone)
        return len(gone)

    def reap(self, now: float) -> int:
        """Free dead blocks that no lease holds and return their number."""
        if not self.dead:
            self.sweeps.clear_mark()
            return 0
        blocks = list(islice(self.dead, MAX_REAPED))
        self.table.step(blocks, BlockStep.EVICT)
        leased = self.leases.held(blocks)
        freed: dict[tuple[Tenant, str], list[int]] = {}
        for block, is_leased in zip(blocks, leased, strict=True):
            reason = self.dead.pop(block)
            if is_leased:
                self.table.step((block,), BlockStep.PUT_BACK)
                self.dead[block] = reason  # at the end, so that other blocks get checked
                continue
            sums = freed.setdefault((block.tenant, reason), [0, 0])
            sums[0] += 1
            sums[1] += block.charge
            self.release(block, BlockStep.FREE)
        for (tenant, reason), (count, size) in freed.items():
            self.count_evicted(tenant, reason, count, size, now)
        return sum(count for count, _ in freed.values())

    def _invalidate(self, blocks: Sequence[Block]) -> int:
        count = self.mark_dead(block for block in blocks if block.state is State.READY)
        self.totals.invalidated_blocks += count
        return count

    def demote(self, blocks: Sequence[Block]) -> int:
        """Make blocks the first victims, in this order, unless a pin of an operator holds them. Return their number."""
        demotable = (Rank.NORMAL, Rank.HINTED)
        chosen = [block for block in blocks if block.queue is not None and block.rank in demotable]
        for block in chosen:
            self.hints.end_pin(block)
            self.order.move(block, Rank.DEMOTED, block.used_at)
        return len(chosen)

    def end_demotion(self, chain: Sequence[Block], now: float) -> None:
        """End the demotion of blocks of a chain, ancestors first, as a use does."""
        for block in reversed(chain):
            if block.queue is not None and block.rank is Rank.DEMOTED:
                self.order.move(block, self.hints.rank(block), now)

    # ---- size

    def resize(self, capacity_bytes: int, now: float) -> None:
        """Grow the pool. Raise ProtocolError(CANNOT_RESIZE) and change nothing when the size is refused."""
        slabs = self.slabs
        page = slabs.page_bytes
        if capacity_bytes < slabs.capacity_bytes or capacity_bytes % page:
            raise ProtocolError(
                Code.CANNOT_RESIZE,
                f"expected a multiple of {format_exact_size(page)}, {format_exact_size(slabs.capacity_bytes)} or more, "
                f"got {format_exact_size(capacity_bytes)}: the pool can only grow",
                "capacity_bytes",
            )
        most = slabs.committed_bytes + self._memory.available_bytes()
        if capacity_bytes > max(most, slabs.capacity_bytes):
            raise ProtocolError(
                Code.CANNOT_RESIZE,
                f"expected at most {most >> 20} MiB, got {format_exact_size(capacity_bytes)}: "
                "this machine has no more memory available",
                "capacity_bytes",
            )
        if capacity_bytes == slabs.capacity_bytes:
            return
        slabs.resize(capacity_bytes)
        self._memory.resize(capacity_bytes)
        self.pins.rebudget(int(capacity_bytes * self.pin_budget_ratio))
        self.promote_pins(now)
        self.emit(PoolResized(now, capacity_bytes))

    def measure_lookups(self) -> None:
        """Set the `lookup_bytes` of every tenant to the bytes of blocks that look-ups hold."""
        for tenant in self._holders:
            tenant.lookup_bytes = 0
        memory = self.table.memory
        leased = self.leases.raised_by(self.lookups.clients)
        _, first, owner = np.unique(memory.cold[leased, COLD_TENANT], return_index=True, return_inverse=True)
        self._holders = [self.table.blocks[number].tenant for number in leased[first].tolist()]
        sizes = np.bincount(owner, memory.hot[leased, HOT_NBYTES].astype(np.float64), len(first))
        for tenant, size in zip(self._holders, sizes.tolist(), strict=True):
            tenant.lookup_bytes = int(size)

    def space_stats(self) -> list[SpaceStats]:
        """Return the statistics of at most MAX_SPACES_SHOWN spaces, largest number of bytes first."""
        return [use.stats(self.spaces.by_number[number]) for number, use in self.slabs.largest_spaces(MAX_SPACES_SHOWN)]

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
            hinted_bytes=self.hints.pinned_bytes,
            sessions=len(self.sessions),
            forgotten_sessions=self.sessions.forgotten,
        )
        self._memory.describe(stats)
        return stats

"""The pool: every block, who is charged for it, and what it is marked with. How room is made in it: `room`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from dataplane.core.blocks import Block, BlockTable
from dataplane.core.leases import LeaseTable
from dataplane.core.order import Order
from dataplane.core.pins import Bundle, PinTable
from dataplane.core.ports import Memory
from dataplane.core.quotas import Tenant, Tenants
from dataplane.core.segments import Segments
from dataplane.core.shelves import MakePolicy, Rank
from dataplane.core.slabs import Slabs
from dataplane.core.spaces import Spaces
from dataplane.core.sweeps import Sweeps
from dataplane.core.usage import Usage
from dataplane.eviction.admission import Admission
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.events import (
    BlocksEvicted,
    Event,
    PoolResized,
    PoolStats,
    SpaceStats,
    Totals,
)
from dataplane.protocol.salts import shown
from dataplane.protocol.states import STATE_MASK, State, Step

_READABLE = (int(State.READY), int(State.EVICTING))
_RESERVED = int(State.RESERVED)
MAX_SPACES_SHOWN = 1000
MAX_BURIED = 4096
"""Doomed blocks that one step asks the lease counters about."""


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
        self.pin_budget_ratio = pin_budget_ratio
        self.pins = PinTable(int(slabs.capacity_bytes * pin_budget_ratio))
        self.spaces = Spaces()
        self.usage = Usage(self.spaces)
        self.tenants = Tenants(self.order.common, self.usage)
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
        self.segments = Segments(slabs, self.spaces, table.names, memory, emit)

    # ---- a block's charge

    def charge(self, tenant: Tenant, blocks: Sequence[Block]) -> None:
        """Account a tenant's blocks of one space that were just reserved."""
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
        self.uncharge(block.tenant, charge, (block,))
        self.usage.charge(block.tenant, block.space, -charge)

    def uncharge(self, tenant: Tenant, size: int, blocks: Sequence[Block]) -> None:
        """Take blocks that go, `size` bytes together, off a tenant's account."""
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
        pins = self._pins_of(block) if self.pins.by_name else ()
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
        pins = self._pins_of(block)
        if block.doomed or pins == block.pins:
            return
        self.pins.unmark(block)
        if pins:
            self._mark(block, pins, now)
        else:
            self.order.move(block, Rank.NORMAL, now)

    def _pins_of(self, block: Block) -> tuple[Bundle, ...]:
        """Pins of a block's own tenant that want it to stay."""
        return self.pins.of(self.spaces.model(block.space), block.tenant.salt, block.key)

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

    # ---- size

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

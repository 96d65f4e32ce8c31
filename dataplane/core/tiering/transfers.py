"""Copies from one tier to another: one batch at a time, through a buffer outside the pool.

The mover asks for a batch, loads it from its source into a buffer, stores it in its target, and reports the outcomes.
The target has reserved room for the blocks of a batch. If an invalidation covers a block meanwhile, the block is
deleted when the batch ends. The moves take turns, and a move whose target takes no blocks now delays no other. If a
call of a batch hangs, the mover says so, and the next batch begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.stored_blocks import BlockName, CopyEnd, Outcome, StoredBlock

if TYPE_CHECKING:
    from dataplane.core.tiering.tiering import Tiering

BATCH_BLOCKS, BATCH_BYTES = 64, 32 << 20
"""Maximum number of blocks in a batch, and the bytes after which no block is added to it: the size of the buffer."""
URGENT_BYTES = 8 << 20
"""The same for a batch that begins while engines wait for loads, which then wait for it: the size of one of theirs."""
HUNG = "hung"
"""Why a block was not moved: a call of one of the tiers did not return."""


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """A block to copy from one tier to another."""

    source: TierState
    target: TierState
    stored: StoredBlock
    """The block as the target stores it."""
    charge: int
    """Bytes that it takes of the target's budget."""
    since: float
    """Blocks of the target that were stored or used at or after this time are not evicted for it."""
    cascades: bool = False
    """Whether the source evicts it soon; all plans of a batch have the same value."""


class TransferMove:
    """A move, a cascade or a drain that asks for copies from one tier to another."""

    urgent = False
    """Whether its copies begin even while engines wait for loads, because the source evicts the blocks soon."""

    def __init__(self, source: TierState, target: TierState, began: float) -> None:
        """Its copies evict no block of the target that was stored or used after `began`."""
        self.source, self.tier, self.began = source, target, began
        self.copying: dict[BlockName, None] = {}
        """Blocks that wait for their copy, or are being copied."""


class TierTransfers:
    """Blocks that wait to be copied from one tier to another, and the batch that is under way."""

    def __init__(self, tiering: Tiering) -> None:
        self._tiering = tiering
        self._waiting: dict[TransferMove, dict[BlockName, None]] = {}
        """Blocks that wait, in order, by move. The first move has the next turn."""
        self._under_way: set[tuple[int, BlockName]] = set()
        """Blocks of the batch, with the number of its target."""
        self._hung: set[tuple[int, BlockName]] = set()
        """Blocks that a call stores which did not return in time."""

    def add(self, move: TransferMove, name: BlockName) -> None:
        """Copy a block that the move's source holds. `take_ended` returns the outcome."""
        move.copying[name] = None
        move.tier.watched.setdefault(name, "")
        self._waiting.setdefault(move, {})[name] = None

    def take_ended(self, move: TransferMove) -> list[tuple[BlockName, str]]:
        """Return the blocks of a move whose copies have ended, each with the reason if it failed."""
        ended = [name for name in move.copying if not self.is_pending(move, name)]
        for name in ended:
            del move.copying[name]
        return [(name, move.tier.watched.pop(name, "")) for name in ended]

    def end(self, move: TransferMove) -> None:
        """Cancel the copies of a move that wait, and take no outcomes of the others."""
        self.cancel(move)
        for name in move.copying:
            move.tier.watched.pop(name, None)
        move.copying.clear()

    def cancel(self, move: TransferMove) -> None:
        """Cancel the copies of a move that wait."""
        self._waiting.pop(move, None)

    def is_pending(self, move: TransferMove, name: BlockName) -> bool:
        """Return whether a block of a move waits for its batch, or is being copied by a call that may still end in
        time."""
        if name in self._waiting.get(move, ()):
            return True
        target = move.tier
        hung = (target.number, name) in self._hung
        return self._tiering.spills.is_under_way(target, name) and not hung

    def next_batch(self, now: float) -> list[PlannedTransfer]:
        """Return the next blocks to copy, all from one tier to one other. The list is empty while a batch is under way.
        While engines wait for loads, only urgent copies begin."""
        if self._under_way or not self._waiting:
            return []
        idle = self._tiering.loads.serves_only(self._tiering.client)
        for move in [each for each in self._waiting if idle or each.urgent]:
            batch = self._batch(move, now, BATCH_BYTES if idle else URGENT_BYTES)
            waiting = self._waiting.pop(move)
            if waiting:
                self._waiting[move] = waiting  # behind the other moves
            if batch:
                self._under_way = {(plan.target.number, plan.stored.name) for plan in batch}
                return batch
        return []

    def _batch(self, move: TransferMove, now: float, most_bytes: int) -> list[PlannedTransfer]:
        target, waiting = move.tier, self._waiting[move]
        batch: list[PlannedTransfer] = []
        planned_bytes = 0
        while waiting and len(batch) < BATCH_BLOCKS and planned_bytes < most_bytes:
            name = next(iter(waiting))
            busy = target.spilling_bytes >= target.spec.max_bytes_in_flight or name in target.deleting
            if busy and target.serves:
                break
            del waiting[name]
            target.watched.setdefault(name, "")  # another move of the block may have ended
            plan = self._plan(move, name, now)
            if plan is not None:
                batch.append(plan)
                planned_bytes += plan.stored.length
        return batch

    def _plan(self, move: TransferMove, name: BlockName, now: float) -> PlannedTransfer | None:
        source, target, spills = move.source, move.tier, self._tiering.spills
        source_entry = source.entry_of(name)
        if source_entry is None or target.entry_of(name) is not None:
            return None
        for tier in (source, target):
            if not tier.serves:
                target.refuse("away", name)
                return None
        if spills.is_under_way(target, name):
            return None
        stored = msgspec.structs.replace(source_entry.stored, writer=self._tiering.writer if target.shared else 0)
        if stored.length > self._tiering.pool.slabs.capacity_bytes:
            target.refuse("size", name)
            return None
        charge = spills.admit(target, stored, now, lambda entry: False, since=move.began)
        return None if charge is None else PlannedTransfer(source, target, stored, charge, move.began, move.urgent)

    def ended(self, plans: Sequence[PlannedTransfer], ends: Sequence[CopyEnd], now: float) -> None:
        """Process the ends of the stores in the target. All plans have the same target."""
        self._are_over(plans)
        if plans:
            counters = plans[0].target.counters
            before = counters.spilled_blocks
            self._tiering.spills.copied(plans[0].target, plans, ends, now)
            if plans[0].cascades:
                counters.cascaded_blocks += counters.spilled_blocks - before
            self._tiering.on_work()

    def not_loaded(self, plans: Sequence[PlannedTransfer], outcomes: Sequence[Outcome]) -> None:
        """Process the outcomes of blocks that could not be loaded from their source."""
        self._are_over(plans)
        for plan, outcome in zip(plans, outcomes, strict=True):
            name = plan.stored.name
            self._tiering.spills.cancel(plan.target, plan)
            plan.target.note(outcome.value, name)
            if plan.source.entry_of(name) is None:
                continue  # it was evicted or invalidated meanwhile
            plan.source.lose(outcome.value, name)
            if outcome in (Outcome.MISSING, Outcome.CORRUPT) and not plan.source.closing:
                self._tiering.forget(plan.source, name)
        self._tiering.on_work()

    def load_hung(self, plans: Sequence[PlannedTransfer]) -> None:
        """Give up blocks because the call that loads them did not return. Nothing of them will be stored."""
        self._are_over(plans)
        for plan in plans:
            self._tiering.spills.cancel(plan.target, plan)
            plan.target.note(HUNG, plan.stored.name)
            plan.source.lose("late", plan.stored.name)
        self._tiering.on_work()

    def store_hung(self, plans: Sequence[PlannedTransfer]) -> None:
        """Wait no longer for the call that stores blocks. Their room stays reserved until `ended`, because the call may
        still store them."""
        self._are_over(plans)
        for plan in plans:
            self._hung.add((plan.target.number, plan.stored.name))
            plan.target.note(HUNG, plan.stored.name)
        self._tiering.on_work()

    def _are_over(self, plans: Sequence[PlannedTransfer]) -> None:
        names = {(plan.target.number, plan.stored.name) for plan in plans}
        self._under_way -= names
        self._hung -= names

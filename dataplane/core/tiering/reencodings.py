"""Encodes blocks of a tier again, as its record says now, a bounded number of bytes at a time.

A thread of the tier loads a block, encodes it, and stores it in place of the old one. Meanwhile, the block counts as
being copied: if an invalidation covers it, it is deleted when the copy ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataplane.core.tiering.move_chains import MAX_STEP_BLOCKS, ChainSelection, SelectedMove
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.stored_blocks import BlockForm, BlockName, CopyEnd, Outcome, StoredBlock

if TYPE_CHECKING:
    from dataplane.core.pool.pool import Pool
    from dataplane.core.tiering.tiering import Tiering

BATCH_BLOCKS, BATCH_BYTES = 64, 8 << 20
"""Maximum number of blocks in one call, and the bytes in memory after which no block is added to it."""


@dataclass(frozen=True, slots=True)
class PlannedReencoding:
    """A block to load from a tier and to store there in another form."""

    move: Reencoding
    stored: StoredBlock
    form: BlockForm
    growth: int
    """Bytes that were reserved because the block may become larger."""


class Reencoding(SelectedMove):
    """Encodes the blocks of a scope in a tier again, as its record says."""

    def __init__(self, pool: Pool, tiering: Tiering, message: Move, state: MoveState, tier: TierState) -> None:
        super().__init__(state, ChainSelection(pool, tiering, message.scope, tier), dry_run=message.dry_run)
        self.tier = tier
        self._tiering = tiering
        self._left: deque[tuple[int, BlockName]] = deque()
        """Blocks that wait: the number of the space, and the name."""
        self._under_way = 0
        self._ended = False

    def _select(self) -> bool:
        return self._selection.step() or self._choose()

    def _advance(self, now: float) -> bool:
        if not self.tier.serves:
            self.state.refuse("away", len(self._left))
            self._left.clear()
        self._tiering.on_work()
        return not (self._left or self._under_way)

    def _choose(self) -> bool:
        """Choose some of the blocks that the tier holds in another form, and return whether more are left."""
        state, parts, looked_at = self.state, self._selection.parts, 0
        while parts and looked_at < MAX_STEP_BLOCKS:
            part = parts.popleft()
            looked_at += len(part.names)
            for name in part.names:
                entry = self.tier.entry_of(name)
                if entry is None:
                    continue
                state.blocks += 1
                state.bytes += entry.stored.length
                if entry.encoding == self.tier.spec.compress:
                    state.present_blocks += 1
                else:
                    self._left.append((part.space, name))
        if parts:
            return True
        state.blocks += self._selection.unreachable
        if not self._dry_run:
            state.refuse("detached", self._selection.unreachable)
        return False

    def next_batch(self, now: float) -> list[PlannedReencoding]:
        """Return the next blocks; an empty list if none can begin now."""
        batch: list[PlannedReencoding] = []
        nbytes = 0
        for _ in range(min(len(self._left), MAX_STEP_BLOCKS)):
            if len(batch) >= BATCH_BLOCKS or nbytes >= BATCH_BYTES:
                break
            space, name = self._left.popleft()
            planned = self._plan(space, name, now)
            if planned is not None:
                batch.append(planned)
                nbytes += planned.stored.length
        self._under_way += len(batch)
        return batch

    def _plan(self, space: int, name: BlockName, now: float) -> PlannedReencoding | None:
        tier = self.tier
        entry = tier.entry_of(name)
        if entry is None or self._tiering.spills.is_under_way(tier, name):
            self.state.refuse("gone")
            return None
        if entry.encoding == tier.spec.compress:
            self.state.present_blocks += 1
            return None
        growth = 0
        if tier.spec.compress == "none" or entry.encoding == "fp8":  # a lossless codec undoes what fp8 saved
            growth = max(0, tier.stored_size(entry.stored.length) - entry.charge)
            room = tier.contents.victims(growth, entry.stored.tenant, now, lambda entry: False)
            if room:  # it has none, or only at the cost of other blocks
                self.state.refuse(room if isinstance(room, str) else "budget")
                return None
            tier.contents.take(growth, entry.stored.tenant)
        self._tiering.spills.begin(tier, entry.stored)
        return PlannedReencoding(self, entry.stored, self._tiering.form(space), growth)

    def ended(self, plans: Sequence[PlannedReencoding], ends: Sequence[CopyEnd], now: float) -> None:
        """Process the ends of a batch. MISSING and CORRUPT are outcomes of the load. FAILED with a reason means that
        the block was left as it is."""
        self._under_way -= len(plans)
        tier = self.tier
        for plan, end in zip(plans, ends, strict=True):
            name = plan.stored.name
            if plan.growth:
                tier.contents.take(-plan.growth, plan.stored.tenant)
            dead = self._tiering.spills.end(tier, plan.stored)
            if tier.closing:
                continue
            entry = tier.contents.entries.get(name)
            if end.outcome in (Outcome.MISSING, Outcome.CORRUPT):
                self._tiering.forget(tier, name)
            elif dead:
                self._tiering.delete_later(tier, [name])
            elif end.outcome is Outcome.OK and entry is not None and entry.stored is plan.stored:
                charge = entry.charge if end.charge is None else end.charge
                added = tier.contents.add(plan.stored, charge, now, end.encoding)
                self._tiering.pinned_chains.mark(tier, added, now)
            elif end.outcome is Outcome.OK and entry is None:  # it was forgotten meanwhile, and stored again
                self._tiering.delete_later(tier, [name])
            if self._ended:
                continue
            if dead or entry is None:
                self.state.refuse("gone")
            elif end.outcome is Outcome.OK:
                self.state.moved_blocks += 1
                self.state.moved_bytes += plan.stored.length
            else:
                self.state.refuse(end.not_compressed or end.outcome.value)

    def cancel(self) -> None:
        self._cancel(len(self._left))
        self._left.clear()

    def give_up(self) -> None:
        left = len(self._left) + self._under_way + self._unasked()
        self.state.refuse("away" if self.tier.closing else "late", left)
        self._left.clear()
        self._ended = True

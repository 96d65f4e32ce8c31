"""Moves that encode blocks of a tier again, as its record says now.

A job loads blocks of the tier, encodes them, and stores them in place of the old ones. Meanwhile, a block counts as
being copied: if an invalidation covers it, it is deleted when the job ends.
"""

from __future__ import annotations

from collections import deque

from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.copies import PRESENT
from dataplane.core.tiering.jobs import CopyRequest, JobReason, JobTable
from dataplane.core.tiering.move_chains import MAX_STEP_BLOCKS, ChainSelection, SelectedMove
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.stored_blocks import BlockName

MAX_OUTSTANDING = 4096
"""Maximum number of blocks of a move that wait at the same time."""


class Reencoding(SelectedMove):
    """Encodes the blocks of a scope in a tier again, as its record says."""

    def __init__(self, catalog: Catalog, table: JobTable, message: Move, state: MoveState, tier: TierState) -> None:
        super().__init__(state, ChainSelection(catalog, message.scope, tier), dry_run=message.dry_run)
        self.tier = tier
        self._catalog, self._table = catalog, table
        self._copies = CopyRequest(JobReason.ENCODE, tier, tier)
        self._remaining: deque[BlockName] = deque()
        """Blocks that do not wait for their job yet."""

    def _select(self) -> bool:
        return self._selection.step() or self._choose()

    def _advance(self, now: float) -> bool:
        for name, reason in self._table.take_ended(self._copies):
            entry = self.tier.contents.entries.get(name)
            if reason == PRESENT:
                self.state.present_blocks += 1
            elif reason or entry is None:
                self.state.refuse(reason or "gone")
            else:
                self.state.moved_blocks += 1
                self.state.moved_bytes += entry.stored.length
        if not self.tier.serves:
            self.state.refuse("away", len(self._remaining))
            self._remaining.clear()
        while self._remaining and len(self._copies.copying) < MAX_OUTSTANDING:
            self._table.add(self._copies, self._remaining.popleft())
        if self._copies.copying:
            self._catalog.wake()
        return not (self._remaining or self._copies.copying)

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
                    self._remaining.append(name)
        if parts:
            return True
        state.blocks += self._selection.unreachable
        if not self._dry_run:
            state.refuse("detached", self._selection.unreachable)
        return False

    def cancel(self) -> None:
        self._cancel(len(self._remaining) + self._table.cancel(self._copies))
        self._remaining.clear()

    def give_up(self) -> None:
        left_blocks = len(self._remaining) + len(self._copies.copying) + self._unasked()
        self.state.refuse("away" if self.tier.closing else "late", left_blocks)
        self._remaining.clear()
        self._table.end(self._copies)

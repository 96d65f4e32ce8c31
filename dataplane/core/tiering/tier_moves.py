"""Moves from one tier to another."""

from __future__ import annotations

from collections import deque

from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.jobs import CopyRequest, JobReason, JobTable
from dataplane.core.tiering.move_chains import CANCELLED, ChainSelection, SelectedMove
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.stored_blocks import BlockName

BLOCKS_PER_STEP = 1024
"""Maximum number of blocks that one step examines, and that one step releases."""
MAX_OUTSTANDING = 4096
"""Maximum number of blocks of a move that wait for their copy at the same time."""


class MoveBetweenTiers(SelectedMove):
    """Copies blocks of one tier to another, and removes them from the first one if the move releases them."""

    def __init__(
        self, catalog: Catalog, table: JobTable, message: Move, state: MoveState, source: TierState, target: TierState
    ) -> None:
        super().__init__(state, ChainSelection(catalog, message.scope, source), dry_run=message.dry_run)
        self.source, self.tier = source, target
        self._catalog, self._table = catalog, table
        self._copies = CopyRequest(JobReason.MOVE, source, target, state.started_at)
        self._release = message.release
        self._remaining: deque[BlockName] = deque()
        self._releasing: deque[BlockName] = deque()

    def step(self, now: float) -> bool:
        if self.source.closing:
            self.give_up()
            return True
        return super().step(now)

    def _advance(self, now: float) -> bool:
        self._look_at_copies()
        self._begin_copies()
        self._release_some()
        return not (self._remaining or self._selection.parts or self._copies.copying or self._releasing)

    def _look_at_copies(self) -> None:
        for name, reason in self._table.take_ended(self._copies):
            entry = self.tier.contents.entries.get(name)
            if entry is None:
                self.state.refuse(reason or "gone")
                continue
            self.state.moved_blocks += 1
            self.state.moved_bytes += entry.stored.length
            self._copied(name)

    def _copied(self, name: BlockName) -> None:
        if self._release and self.state.cancelled:
            self.state.refuse(CANCELLED)
        elif self._release:
            self._releasing.append(name)

    def _begin_copies(self) -> None:
        source, target = self.source, self.tier
        for _ in range(BLOCKS_PER_STEP):
            if len(self._copies.copying) >= MAX_OUTSTANDING:
                break
            if not self._remaining:
                if not self._selection.parts:
                    break
                part = self._selection.parts.popleft()
                self._remaining.extend(name for name in part.names if name in part.sizes)
                continue
            name = self._remaining.popleft()
            if source.entry_of(name) is None:
                self.state.refuse("gone")
            elif target.entry_of(name) is not None:
                self.state.present_blocks += 1
                self._copied(name)
            elif not (source.serves and target.serves):
                self.state.refuse("away")
            else:
                self._table.add(self._copies, name)
        if self._copies.copying:
            self._catalog.wake()

    def _release_some(self) -> None:
        for _ in range(min(BLOCKS_PER_STEP, len(self._releasing))):
            name = self._releasing.popleft()
            entry = self.source.entry_of(name)
            if entry is None:
                continue  # it was evicted meanwhile
            if self.tier.entry_of(name) is None:
                self.state.refuse("evicted")
            elif any(bundle.strength != "soft" for bundle in entry.bundles):
                self.state.refuse("pinned")
            else:
                self.state.released_blocks += 1
                self.state.released_bytes += entry.stored.length
                self._catalog.release(self.source, entry)

    def cancel(self) -> None:
        waiting = self._table.cancel(self._copies)
        self._cancel(self._unasked() + len(self._remaining) + waiting + len(self._releasing))
        self._remaining.clear()
        self._releasing.clear()

    def give_up(self) -> None:
        reason = "away" if self.tier.closing or self.source.closing else "late"
        self.state.refuse(reason, self._unasked() + len(self._remaining) + len(self._copies.copying))
        self.state.refuse("late", len(self._releasing))
        self._remaining.clear()
        self._table.end(self._copies)

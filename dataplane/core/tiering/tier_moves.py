"""Moves from one tier to another."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from dataplane.core.tiering.move_chains import CANCELLED, ChainSelection, SelectedMove
from dataplane.core.tiering.tier_state import TierState
from dataplane.core.tiering.transfers import TransferMove
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.stored_blocks import BlockName

if TYPE_CHECKING:
    from dataplane.core.tiering.tiering import Tiering

BLOCKS_PER_STEP = 1024
"""Maximum number of blocks that one step examines, and that one step releases."""
MAX_OUTSTANDING = 4096
"""Maximum number of blocks of a move that wait for their copy at the same time."""


class MoveBetweenTiers(SelectedMove, TransferMove):
    """Copies blocks of one tier to another, and removes them from the first one if the move releases them."""

    def __init__(self, tiering: Tiering, message: Move, state: MoveState, source: TierState, target: TierState) -> None:
        selection = ChainSelection(tiering.pool, tiering, message.scope, source)
        SelectedMove.__init__(self, state, selection, dry_run=message.dry_run)
        TransferMove.__init__(self, source, target, began=state.started_at)
        self._tiering = tiering
        self._release = message.release
        self._left: deque[BlockName] = deque()
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
        return not (self._left or self._selection.parts or self.copying or self._releasing)

    def _look_at_copies(self) -> None:
        for name, reason in self._tiering.transfers.take_ended(self):
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
            if len(self.copying) >= MAX_OUTSTANDING:
                break
            if not self._left:
                if not self._selection.parts:
                    break
                part = self._selection.parts.popleft()
                self._left.extend(name for name in part.names if name in part.sizes)
                continue
            name = self._left.popleft()
            if source.entry_of(name) is None:
                self.state.refuse("gone")
            elif target.entry_of(name) is not None:
                self.state.present_blocks += 1
                self._copied(name)
            elif not (source.serves and target.serves):
                self.state.refuse("away")
            else:
                self._tiering.transfers.add(self, name)
        if self.copying:
            self._tiering.on_work()

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
                self._tiering.release(self.source, entry)

    def cancel(self) -> None:
        self._cancel(self._unasked() + len(self._left) + len(self._releasing))
        self._left.clear()
        self._releasing.clear()
        self._tiering.transfers.cancel(self)
        for name in self.copying:
            if not self._tiering.transfers.is_pending(self, name):
                self.tier.note(CANCELLED, name)

    def give_up(self) -> None:
        reason = "away" if self.tier.closing or self.source.closing else "late"
        self.state.refuse(reason, self._unasked() + len(self._left) + len(self.copying))
        self.state.refuse("late", len(self._releasing))
        self._left.clear()
        self._tiering.transfers.end(self)

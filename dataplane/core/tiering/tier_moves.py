"""Moves from one tier to another."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from dataplane.core.tiering.move_chains import ChainSelection
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.tiers.tier import BlockName

if TYPE_CHECKING:
    from dataplane.core.tiering.tiering import Tiering

CANCELLED = "cancelled"
"""Why a block was not moved, or not released: an operator cancelled the move."""
BLOCKS_PER_STEP = 1024
"""Maximum number of blocks that one step examines, and that one step releases."""
MAX_OUTSTANDING = 4096
"""Maximum number of blocks of a move that wait for their copy at the same time."""


class MoveBetweenTiers:
    """Copies blocks of one tier to another, and removes them from the first one if the move releases them."""

    urgent = False

    def __init__(self, tiering: Tiering, message: Move, state: MoveState, source: TierState, target: TierState) -> None:
        self.state, self.tier, self.source = state, target, source
        self.began = state.started_at
        self._tiering = tiering
        self._release, self._dry_run = message.release, message.dry_run
        self._selection = ChainSelection(tiering.pool, tiering, message.scope, source)
        self._selecting = True
        self._left: deque[BlockName] = deque()
        self._copying: dict[BlockName, int] = {}
        """Bytes of the blocks that are being copied."""
        self._releasing: deque[BlockName] = deque()

    def step(self, now: float) -> bool:
        if self.source.closing:
            self.give_up()
            return True
        if self._selecting:
            self._selecting = self._selection.step()
            if self._selecting:
                return False
            self.state.blocks, self.state.bytes = self._selection.blocks, self._selection.bytes
            if self._dry_run:
                return True
            if self._selection.unreachable:
                self.state.refuse("detached", self._selection.unreachable)
        self._look_at_copies()
        self._begin_copies()
        self._release_some()
        return not (self._left or self._selection.parts or self._copying or self._releasing)

    def _look_at_copies(self) -> None:
        target = self.tier
        for name, nbytes in list(self._copying.items()):
            if name in target.contents.entries:
                self.state.moved_blocks += 1
                self.state.moved_bytes += nbytes
                self._copied(name)
            elif self._tiering.transfers.is_pending(self, name):
                continue
            else:
                self.state.refuse(target.watched.get(name) or "gone")
            target.watched.pop(name, None)
            del self._copying[name]

    def _copied(self, name: BlockName) -> None:
        if self._release and self.state.cancelled:
            self.state.refuse(CANCELLED)
        elif self._release:
            self._releasing.append(name)

    def _begin_copies(self) -> None:
        source, target = self.source, self.tier
        for _ in range(BLOCKS_PER_STEP):
            if len(self._copying) >= MAX_OUTSTANDING:
                break
            if not self._left:
                if not self._selection.parts:
                    break
                part = self._selection.parts.popleft()
                self._left.extend(name for name in part.names if name in part.sizes)
                continue
            name = self._left.popleft()
            source_entry = source.entry_of(name)
            if source_entry is None:
                self.state.refuse("gone")
            elif target.entry_of(name) is not None:
                self.state.present_blocks += 1
                self._copied(name)
            elif not (source.serves and target.serves):
                self.state.refuse("away")
            else:
                target.watched[name] = ""
                self._copying[name] = source_entry.stored.length
                self._tiering.transfers.add(self, name)
        if self._copying:
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
        self._selecting = False
        left = sum(len(part.sizes) for part in self._selection.parts) + len(self._left) + len(self._releasing)
        if left:
            self.state.refuse(CANCELLED, left)
        self._selection.parts.clear()
        self._left.clear()
        self._releasing.clear()
        self._tiering.transfers.cancel(self)
        for name in self._copying:
            if not self._tiering.transfers.is_pending(self, name):
                self.tier.note(CANCELLED, name)

    def give_up(self) -> None:
        reason = "away" if self.tier.closing or self.source.closing else "late"
        for name in self._copying:
            self.tier.watched.pop(name, None)
        left = sum(len(part.sizes) for part in self._selection.parts)
        left += len(self._left) + len(self._copying)
        if left:
            self.state.refuse(reason, left)
        if self._releasing:
            self.state.refuse("late", len(self._releasing))
        self._left.clear()
        self._tiering.transfers.cancel(self)

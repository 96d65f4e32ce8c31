"""Changes of the cached blocks, in order, for a publisher: blocks that became READY, and READY blocks that were
removed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from dataplane.core.blocks.blocks import Block

MAX_WAITING_BLOCKS = 1 << 18


class BlockChanges:
    """Bounded record of changes. The pool appends to it and never waits for the reader."""

    def __init__(self, wake: Callable[[], None], max_blocks: int = MAX_WAITING_BLOCKS) -> None:
        """`wake` is called when the first change is recorded after the record was empty."""
        self._wake = wake
        self._max_blocks = max_blocks
        self._waiting: deque[tuple[bool, Sequence[Block]]] = deque()
        self.blocks = 0
        """Number of blocks that wait to be taken."""
        self.lost_blocks = 0
        """Number of blocks whose changes were discarded because the record was full, since `clear`."""

    def stored(self, blocks: Sequence[Block]) -> None:
        self._add(True, blocks)

    def removed(self, blocks: Sequence[Block]) -> None:
        self._add(False, blocks)

    def _add(self, stored: bool, blocks: Sequence[Block]) -> None:
        if not blocks:
            return
        if not self.blocks and not self.lost_blocks:
            self._wake()
        if self.lost_blocks or self.blocks + len(blocks) > self._max_blocks:
            self.lost_blocks += len(blocks)
            return
        self._waiting.append((stored, blocks))
        self.blocks += len(blocks)

    def take(self, most: int) -> list[tuple[bool, Sequence[Block]]]:
        """Return the oldest changes, at most `most` blocks, as (whether the blocks were stored, blocks)."""
        taken: list[tuple[bool, Sequence[Block]]] = []
        while self._waiting and most > 0:
            stored, blocks = self._waiting.popleft()
            if len(blocks) > most:
                self._waiting.appendleft((stored, blocks[most:]))
                blocks = blocks[:most]
            taken.append((stored, blocks))
            most -= len(blocks)
            self.blocks -= len(blocks)
        return taken

    def clear(self) -> int:
        """Discard all changes and return the number of blocks in them, including those that were lost before."""
        count = self.blocks + self.lost_blocks
        self._waiting.clear()
        self.blocks = self.lost_blocks = 0
        return count

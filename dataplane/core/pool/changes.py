"""Blocks that became READY, and READY blocks that were removed, in order, for a publisher that compares their keys with
the pool."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from dataplane.core.blocks.blocks import Block

MAX_WAITING_BLOCKS = 1 << 18


class BlockChanges:
    """Bounded record of changes. The pool appends to it and never waits for the reader."""

    def __init__(self, wake: Callable[[], None], max_blocks: int = MAX_WAITING_BLOCKS) -> None:
        """`wake` is called when the first change is recorded after the record was empty."""
        self._wake = wake
        self._max_blocks = max_blocks
        self._waiting: deque[Sequence[Block]] = deque()
        self._spaces = 0
        self.blocks = 0
        """Number of blocks that wait to be taken."""
        self.lost_blocks = 0
        """Number of blocks whose changes were discarded because the record was full, since `clear`."""

    def changed(self, blocks: Sequence[Block]) -> None:
        """Record blocks that were stored or removed."""
        if not blocks:
            return
        if not self.blocks and not self.lost_blocks:
            self._wake()
        if self.lost_blocks or self.blocks + len(blocks) > self._max_blocks:
            self.lost_blocks += len(blocks)
            return
        self._waiting.append(blocks)
        self.blocks += len(blocks)

    def spaces(self, version: int) -> None:
        """Wake the publisher if the version of the spaces is another one than at the last call."""
        if version != self._spaces:
            self._spaces = version
            self._wake()

    def take(self, most: int) -> Iterator[Block]:
        """Yield the oldest changes, at most `most` blocks."""
        while self._waiting and most > 0:
            blocks = self._waiting.popleft()
            if len(blocks) > most:
                self._waiting.appendleft(blocks[most:])
                blocks = blocks[:most]
            most -= len(blocks)
            self.blocks -= len(blocks)
            yield from blocks

    def clear(self) -> int:
        """Discard all changes and return the number of blocks in them, including those that were lost before."""
        count = self.blocks + self.lost_blocks
        self._waiting.clear()
        self.blocks = self.lost_blocks = 0
        return count

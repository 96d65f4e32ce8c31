"""Names of blocks that a tier must delete, taken a bounded number at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dataplane.tiers.tier import BlockName


class Deletions:
    """A queue of names. Adding many names costs as much as adding one."""

    def __init__(self) -> None:
        self._parts: deque[Sequence[BlockName]] = deque()
        self._at = 0
        """Position in the first part."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, names: Sequence[BlockName]) -> None:
        """Add names; the sequence must not change later."""
        if names:
            self._parts.append(names)
            self._count += len(names)

    def take(self, most: int) -> list[BlockName]:
        """Remove and return the next names."""
        taken: list[BlockName] = []
        while self._parts and len(taken) < most:
            part = self._parts[0][self._at : self._at + most - len(taken)]
            taken += part
            self._at += len(part)
            if self._at == len(self._parts[0]):
                self._parts.popleft()
                self._at = 0
        self._count -= len(taken)
        return taken

    def names(self) -> list[BlockName]:
        """Return all names."""
        return [name for part in self._parts for name in part][self._at :]

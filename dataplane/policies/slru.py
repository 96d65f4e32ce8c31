"""Segmented LRU: new blocks are on probation, and a use moves a block to the protected segment, which holds at most
80 % of the bytes. Blocks that the protected segment pushes out return to probation. Victims come from probation first.

A large scan passes through probation without displacing protected blocks. A drawback is that blocks of ended sessions
stay protected for a long time.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

PROTECTED_SHARE = 0.8


class Slru:
    """Segmented LRU policy: two segments that map blocks to bytes, least recently used first."""

    __slots__ = ("_bytes", "_probation", "_protected", "_protected_bytes")

    def __init__(self) -> None:
        self._probation: OrderedDict[int, int] = OrderedDict()
        self._protected: OrderedDict[int, int] = OrderedDict()
        self._bytes = 0
        self._protected_bytes = 0

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def insert(self, block: int, key: int, size_bytes: int, now: float, hits: int = 0) -> None:
        self._bytes += size_bytes
        if hits:
            self._protect(block, size_bytes)
        else:
            self._probation[block] = size_bytes

    def touch(self, block: int, now: float) -> None:
        size = self._probation.pop(block, None)
        if size is None:
            self._protected.move_to_end(block)
        else:
            self._protect(block, size)

    def refresh(self, block: int, now: float) -> None:
        segment = self._probation if block in self._probation else self._protected
        segment.move_to_end(block)

    def evict(self, block: int, now: float) -> None:
        self.remove(block)

    def remove(self, block: int) -> None:
        size = self._probation.pop(block, None)
        if size is None:
            size = self._protected.pop(block)
            self._protected_bytes -= size
        self._bytes -= size

    def victims(self, now: float) -> Iterator[int]:
        return chain(self._probation, self._protected)

    def _protect(self, block: int, size: int) -> None:
        self._protected[block] = size
        self._protected_bytes += size
        most = PROTECTED_SHARE * self._bytes
        while self._protected_bytes > most and len(self._protected) > 1:
            oldest, its_size = self._protected.popitem(last=False)
            self._protected_bytes -= its_size
            self._probation[oldest] = its_size

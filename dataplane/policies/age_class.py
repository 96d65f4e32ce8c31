"""Idle time weighted by use: eight LRU lists by number of hits. The victim is the list head with the largest
`idle seconds / (1 + hits)`.

A block that was used three times may be idle four times as long as one that was never used. From the head of a chain to
its tail, hits fall and idle time grows, so a head is never evicted before its tail. At equal scores, the list with
fewer hits yields the victim.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import merge

CLASSES = 8
"""Number of lists; the last one holds every block that was used at least seven times."""
_LAST = CLASSES - 1


class AgeClass:
    """Age-class eviction policy. Each step of `victims` compares at most eight list heads."""

    __slots__ = ("_class_of", "_lists")

    def __init__(self) -> None:
        self._class_of: dict[int, int] = {}
        self._lists: list[OrderedDict[int, float] | None] = [None] * CLASSES
        """Time of the last use by block, least recent first; created on first use."""

    def __len__(self) -> int:
        return len(self._class_of)

    def insert(self, block: int, key: int, size_bytes: int, now: float, hits: int = 0) -> None:
        self._put(block, min(hits, _LAST), now)

    def touch(self, block: int, now: float) -> None:
        at = self._class_of[block]
        if at == _LAST:
            self.refresh(block, now)
        else:
            self._take(block, at)
            self._put(block, at + 1, now)

    def refresh(self, block: int, now: float) -> None:
        members = self._lists[self._class_of[block]]
        assert members is not None
        members[block] = now
        members.move_to_end(block)

    def evict(self, block: int, now: float) -> None:
        self._take(block, self._class_of.pop(block))

    def remove(self, block: int) -> None:
        self._take(block, self._class_of.pop(block))

    def victims(self, now: float) -> Iterator[int]:
        lists = [_scored(members, hits, now) for hits, members in enumerate(self._lists) if members]
        return (block for _, _, block in merge(*lists))

    def _put(self, block: int, at: int, now: float) -> None:
        self._class_of[block] = at
        members = self._lists[at]
        if members is None:
            members = self._lists[at] = OrderedDict()
        members[block] = now

    def _take(self, block: int, at: int) -> None:
        members = self._lists[at]
        assert members is not None
        del members[block]


Scored = tuple[float, int, int]
"""Score (the lowest is evicted first), hits (distinct for each list), block."""


def _scored(members: OrderedDict[int, float], hits: int, now: float) -> Iterator[Scored]:
    for block, used_at in members.items():
        yield (min(used_at, now) - now) / (1 + hits), hits, block

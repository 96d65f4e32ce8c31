"""Least frequently used, with ties broken by least recent use. A count lasts while its block is in the order.

A block that was popular an hour ago stays until others have been used as often, so this policy suits sets of prompts
that rarely change.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator


class Lfu:
    """An LRU list for each number of uses, and a sorted list of these numbers: a few hundred in a large pool.

    Lists replace the usual linked nodes because they leave no reference cycles, which would never be collected.
    """

    __slots__ = ("_different", "_equals", "_uses")

    def __init__(self) -> None:
        self._uses: dict[int, int] = {}
        self._equals: dict[int, OrderedDict[int, None]] = {}
        """Blocks by number of uses, least recently used first; no list is empty."""
        self._different: list[int] = []
        """Distinct numbers of uses, ascending."""

    def __len__(self) -> int:
        return len(self._uses)

    def insert(self, block: int, key: int, size_bytes: int, now: float, hits: int = 0) -> None:
        self._put(block, hits)

    def touch(self, block: int, now: float) -> None:
        uses = self._uses[block]
        self._take(block, uses)
        self._put(block, uses + 1)

    def refresh(self, block: int, now: float) -> None:
        self._equals[self._uses[block]].move_to_end(block)

    def evict(self, block: int, now: float) -> None:
        self._take(block, self._uses.pop(block))

    def remove(self, block: int) -> None:
        self._take(block, self._uses.pop(block))

    def victims(self, now: float) -> Iterator[int]:
        for uses in self._different:
            yield from self._equals[uses]

    def _put(self, block: int, uses: int) -> None:
        self._uses[block] = uses
        equals = self._equals.get(uses)
        if equals is None:
            equals = self._equals[uses] = OrderedDict()
            insort(self._different, uses)
        equals[block] = None

    def _take(self, block: int, uses: int) -> None:
        equals = self._equals[uses]
        del equals[block]
        if not equals:
            del self._equals[uses]
            del self._different[bisect_left(self._different, uses)]

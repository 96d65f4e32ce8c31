"""Least recently used. Callers touch the tail of a prefix first, so ancestors are newer than their descendants and a
prefix is evicted from its end without a tree."""

from collections import OrderedDict
from collections.abc import Iterator


class Lru:
    """Exact LRU policy on a hash map with a linked list."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def insert(self, block: int, key: int, size_bytes: int, now: float, hits: int = 0) -> None:
        self._order[block] = None

    def touch(self, block: int, now: float) -> None:
        self._order.move_to_end(block)

    def refresh(self, block: int, now: float) -> None:
        self._order.move_to_end(block)

    def put_first(self, block: int) -> None:
        """Make a block the next victim."""
        self._order.move_to_end(block, last=False)

    def evict(self, block: int, now: float) -> None:
        del self._order[block]

    def remove(self, block: int) -> None:
        del self._order[block]

    def victims(self, now: float) -> Iterator[int]:
        return iter(self._order)

"""First in, first out: what was stored first goes first, used or not.

Chains are stored tail first, so of blocks that were stored together the head goes last. A chain that grew over several
requests loses its older head before its newer tail: one of the reasons to prefer `lru`.
"""

from collections import OrderedDict
from collections.abc import Iterator


class Fifo:
    """Exact FIFO on a hash map with a linked list."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def insert(self, block: int, key: int, size_bytes: int, now: float, hits: int = 0) -> None:
        self._order[block] = None

    def touch(self, block: int, now: float) -> None:
        pass

    def refresh(self, block: int, now: float) -> None:
        pass

    def evict(self, block: int, now: float) -> None:
        del self._order[block]

    def remove(self, block: int) -> None:
        del self._order[block]

    def victims(self, now: float) -> Iterator[int]:
        return iter(self._order)

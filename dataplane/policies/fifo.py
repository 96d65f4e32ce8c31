"""First in, first out: evict the block that was stored first, used or not.

Chains are stored tail first, so the head is the last victim among blocks that were stored together. A chain that grew
over several requests loses its older head before its newer tail, which is one reason to prefer `lru`.
"""

from collections import OrderedDict
from collections.abc import Iterator


class Fifo:
    """Exact FIFO policy on a hash map with a linked list."""

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

"""Least recently used. Callers touch the tail of a prefix first, so ancestors are newer than their descendants and a
prefix is evicted from its end without a tree."""

from dataplane.policies.fifo import Fifo


class Lru(Fifo):
    """Exact LRU policy on a hash map with a linked list."""

    __slots__ = ()

    def touch(self, block: int, now: float) -> None:
        self._order.move_to_end(block)

    def refresh(self, block: int, now: float) -> None:
        self._order.move_to_end(block)

    def put_first(self, block: int) -> None:
        """Make a block the next victim."""
        self._order.move_to_end(block, last=False)

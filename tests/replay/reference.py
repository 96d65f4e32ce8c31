"""An exact LRU cache of blocks, written without any of Larder's code.

Requests in order, one at a time. A request's hits are its leading blocks that are present. Then it touches its hits
and stores what is missing; the blocks of the running request cannot be evicted; a prefix is touched tail first, so
that ancestors are newer than their descendants.
"""

from collections import OrderedDict
from collections.abc import Sequence


class ExactLru:
    """Room for `capacity` blocks; counts `hits` and `refused`."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.hits = 0
        self.refused = 0
        self._oldest_first: OrderedDict[int, None] = OrderedDict()

    def serve(self, ids: Sequence[int]) -> None:
        present = self._oldest_first
        hits = 0
        while hits < len(ids) and ids[hits] in present:
            hits += 1
        self.hits += hits
        running = set(ids)
        stored = []
        for block in ids:
            if block in present:
                stored.append(block)
            elif len(present) < self.capacity or self._evict_one(running):
                present[block] = None
                stored.append(block)
            else:
                self.refused += 1
        for block in reversed(stored):
            present.move_to_end(block)

    def _evict_one(self, running: set[int]) -> bool:
        for block in self._oldest_first:
            if block not in running:
                del self._oldest_first[block]
                return True
        return False

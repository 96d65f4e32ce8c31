"""What a policy remembers of blocks that it evicted: fingerprints and sizes, oldest first.

Ghosts are bounded by the size of the cache. A policy sees only what it holds, and a request's evictions come all
together, before its blocks are stored. The size of the cache is therefore what was held when the evictions began; but
never more than twice what is held now, so that ghosts shrink with an account that is emptied.
"""

from collections import OrderedDict


class Ghosts:
    """A FIFO of fingerprints with the bytes that their blocks had. About 150 bytes of memory each."""

    __slots__ = ("_sizes", "bytes")

    def __init__(self) -> None:
        self._sizes: OrderedDict[int, int] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, key: int) -> bool:
        return key in self._sizes

    def add(self, key: int, size_bytes: int) -> None:
        """The youngest ghost; one that is there already moves to the end."""
        self.bytes += size_bytes - self._sizes.pop(key, 0)
        self._sizes[key] = size_bytes

    def discard(self, key: int) -> bool:
        """Forget one; whether it was there."""
        size = self._sizes.pop(key, None)
        if size is None:
            return False
        self.bytes -= size
        return True

    def trim(self, most_bytes: float, most: float) -> None:
        """Forget the oldest until at most so many bytes and so many ghosts are left."""
        while self._sizes and (self.bytes > most_bytes or len(self._sizes) > most):
            self.bytes -= self._sizes.popitem(last=False)[1]

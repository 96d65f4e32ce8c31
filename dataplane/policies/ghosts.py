"""Ghosts: the fingerprints and sizes of blocks that a policy evicted, oldest first.

The size of the cache bounds the ghosts. A policy knows only the blocks that it holds, and all evictions of a request
come together, before its blocks are stored. A policy therefore takes the bytes that it held when the evictions began as
the size of the cache, but at most twice the bytes that it holds now, so that ghosts shrink when an account is emptied.
"""

from collections import OrderedDict


class Ghosts:
    """A FIFO of fingerprints with the sizes of their blocks. Each entry takes about 150 bytes of memory."""

    __slots__ = ("_sizes", "bytes")

    def __init__(self) -> None:
        self._sizes: OrderedDict[int, int] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, key: int) -> bool:
        return key in self._sizes

    def add(self, key: int, size_bytes: int) -> None:
        """Add a ghost as the youngest one; a ghost that already exists moves to the end."""
        self.bytes += size_bytes - self._sizes.pop(key, 0)
        self._sizes[key] = size_bytes

    def discard(self, key: int) -> bool:
        """Remove a ghost and return whether it existed."""
        size = self._sizes.pop(key, None)
        if size is None:
            return False
        self.bytes -= size
        return True

    def trim(self, most_bytes: float, most: float) -> None:
        """Remove the oldest ghosts until at most `most_bytes` bytes and `most` ghosts are left."""
        while self._sizes and (self.bytes > most_bytes or len(self._sizes) > most):
            self.bytes -= self._sizes.popitem(last=False)[1]

"""Adaptive replacement (ARC): an LRU list of blocks used once, one of blocks used again, and ghosts of both. When a
block whose key is a ghost is stored, its list was too short, so the boundary between the lists moves.

All sizes are in bytes. The boundary moves when the block is stored, which is after room was made for it.
"""

from collections import OrderedDict
from collections.abc import Iterator

from dataplane.policies.ghosts import Ghosts

_Entry = tuple[int, int]
"""Fingerprint of the key, size in bytes."""


class Arc:
    """ARC eviction policy. The bytes of its ghosts stay below the size of the cache."""

    __slots__ = (
        "_again",
        "_again_ghosts",
        "_before",
        "_bytes",
        "_grown",
        "_once",
        "_once_bytes",
        "_once_ghosts",
        "once_target",
    )

    def __init__(self) -> None:
        self._once: OrderedDict[int, _Entry] = OrderedDict()
        self._again: OrderedDict[int, _Entry] = OrderedDict()
        self._once_ghosts = Ghosts()
        self._again_ghosts = Ghosts()
        self._once_bytes = 0
        self._bytes = 0
        self._before = 0
        """Bytes that were held when the last run of evictions began."""
        self._grown = False
        """Whether a block was stored since the last eviction."""
        self.once_target = 0.0
        """Bytes above which blocks used once are evicted first."""

    def __len__(self) -> int:
        return len(self._once) + len(self._again)

    @property
    def ghosts(self) -> int:
        """Number of evicted blocks that are remembered."""
        return len(self._once_ghosts) + len(self._again_ghosts)

    def insert(self, block: int, key: int, size_bytes: int, now: float, hits: int = 0) -> None:
        self._bytes += size_bytes
        self._grown = True
        if self._came_back(key, size_bytes) or hits:
            self._again[block] = (key, size_bytes)
        else:
            self._once[block] = (key, size_bytes)
            self._once_bytes += size_bytes

    def touch(self, block: int, now: float) -> None:
        entry = self._once.pop(block, None)
        if entry is None:
            self._again.move_to_end(block)
        else:
            self._once_bytes -= entry[1]
            self._again[block] = entry

    def refresh(self, block: int, now: float) -> None:
        order = self._once if block in self._once else self._again
        order.move_to_end(block)

    def evict(self, block: int, now: float) -> None:
        if self._grown:
            self._before, self._grown = self._bytes, False
        entry = self._once.pop(block, None)
        if entry is not None:
            key, size = entry
            self._once_bytes -= size
            self._once_ghosts.add(key, size)
        else:
            key, size = self._again.pop(block)
            self._again_ghosts.add(key, size)
        self._bytes -= size
        self._forget()

    def remove(self, block: int) -> None:
        entry = self._once.pop(block, None)
        if entry is not None:
            self._once_bytes -= entry[1]
        else:
            entry = self._again.pop(block)
        self._bytes -= entry[1]
        if self._once_ghosts.bytes + self._again_ghosts.bytes > 2 * self._bytes:
            self._forget()

    def victims(self, now: float) -> Iterator[int]:
        excess_bytes = self._once_bytes - self.once_target
        once = iter(self._once.items())
        if excess_bytes > 0:
            for block, (_, size) in once:
                yield block
                excess_bytes -= size
                if excess_bytes <= 0:
                    break
        yield from self._again
        for block, _ in once:
            yield block

    def _came_back(self, key: int, size: int) -> bool:
        """Move the boundary if the key is a ghost, and return whether it is one."""
        once, again = self._once_ghosts, self._again_ghosts
        if key in once:
            self.once_target = min(self._bytes, self.once_target + size * max(1.0, again.bytes / once.bytes))
            return once.discard(key)
        if key in again:
            self.once_target = max(0.0, self.once_target - size * max(1.0, once.bytes / again.bytes))
            return again.discard(key)
        return False

    def _forget(self) -> None:
        """Trim ghosts so that blocks used once and their ghosts fit the size of the cache, and all blocks and all
        ghosts fit twice that size."""
        once, again = self._once_ghosts, self._again_ghosts
        cache = min(self._before, 2 * self._bytes)
        most = 2 * len(self)
        if once.bytes + self._once_bytes > cache or len(once) > most:
            once.trim(cache - self._once_bytes, most)
        if again.bytes + once.bytes + self._bytes > 2 * cache or len(again) > most:
            again.trim(2 * cache - self._bytes - once.bytes, most)

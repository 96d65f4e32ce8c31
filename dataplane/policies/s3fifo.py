"""S3-FIFO: a small queue that new blocks enter, a main queue, and ghosts of blocks evicted from the small queue.

The small queue holds 30 % of the bytes. Its oldest block is evicted and leaves a ghost, unless the block was used; a
used block moves to the main queue. A block whose key is a ghost enters the main queue directly. The oldest block of the
main queue is evicted if it has no uses left; otherwise it goes back to the end with one use less (a block counts at
most three uses).

`victims` walks the two queues as evictions would but moves nothing. `evict` first makes the moves that precede the
eviction, so a block moves once per use and an eviction takes constant time on average.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator

from dataplane.policies.ghosts import Ghosts

SMALL_SHARE = 0.3
GHOST_SHARE = 0.9
"""Bytes of the ghosts' blocks as a fraction of the size of the cache."""
MAX_USES = 3


class _Entry:
    __slots__ = ("key", "size", "uses")

    def __init__(self, key: int, size: int, uses: int) -> None:
        self.key = key
        self.size = size
        self.uses = uses


class S3Fifo:
    """S3-FIFO eviction policy: three FIFO queues. The bytes of its ghosts stay below the size of the cache."""

    __slots__ = ("_before", "_bytes", "_ghosts", "_grown", "_main", "_small", "_small_bytes")

    def __init__(self) -> None:
        self._small: OrderedDict[int, _Entry] = OrderedDict()
        self._main: OrderedDict[int, _Entry] = OrderedDict()
        self._ghosts = Ghosts()
        self._small_bytes = 0
        self._bytes = 0
        self._before = 0
        """Bytes that were held when the last run of evictions began."""
        self._grown = False
        """Whether a block was stored since the last eviction."""

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    @property
    def ghosts(self) -> int:
        """Number of evicted blocks that are remembered."""
        return len(self._ghosts)

    def insert(self, block: int, key: int, size_bytes: int, now: float, hits: int = 0) -> None:
        self._bytes += size_bytes
        self._grown = True
        entry = _Entry(key, size_bytes, 0)
        if self._ghosts.discard(key) or hits:
            self._main[block] = entry
        else:
            self._small[block] = entry
            self._small_bytes += size_bytes

    def touch(self, block: int, now: float) -> None:
        entry = self._small.get(block) or self._main[block]
        if entry.uses < MAX_USES:
            entry.uses += 1

    def refresh(self, block: int, now: float) -> None:
        pass

    def evict(self, block: int, now: float) -> None:
        if self._grown:
            self._before, self._grown = self._bytes, False
        self._advance()
        entry = self._small.pop(block, None)
        if entry is not None:
            self._small_bytes -= entry.size
            self._ghosts.add(entry.key, entry.size)
        else:
            entry = self._main.pop(block)
        self._bytes -= entry.size
        self._forget()

    def remove(self, block: int) -> None:
        entry = self._small.pop(block, None)
        if entry is not None:
            self._small_bytes -= entry.size
        else:
            entry = self._main.pop(block)
        self._bytes -= entry.size
        if self._ghosts.bytes > 2 * self._bytes:
            self._forget()

    def victims(self, now: float) -> Iterator[int]:
        small = iter(self._small.items())
        main = iter(self._main.items())
        again: deque[tuple[int, int, int]] = deque()
        small_bytes, total = self._small_bytes, self._bytes
        small_left, main_left = len(self._small), len(self._main)
        while small_left or main_left or again:
            if small_left and (small_bytes > SMALL_SHARE * total or not (main_left or again)):
                block, entry = next(small)
                size, uses = entry.size, entry.uses
                small_left -= 1
                small_bytes -= size
                moved = (block, size, 0)
            else:
                if main_left:
                    block, entry = next(main)
                    size, uses = entry.size, entry.uses
                    main_left -= 1
                else:
                    block, size, uses = again.popleft()
                moved = (block, size, uses - 1)
            if uses:
                again.append(moved)
            else:
                total -= size
                yield block

    def _advance(self) -> None:
        """Make the moves that precede the next eviction, whichever block it evicts."""
        small, main = self._small, self._main
        while True:
            if small and (self._small_bytes > SMALL_SHARE * self._bytes or not main):
                oldest = next(iter(small))
                entry = small[oldest]
                if not entry.uses:
                    return
                del small[oldest]
                self._small_bytes -= entry.size
                entry.uses = 0
                main[oldest] = entry
            else:
                oldest = next(iter(main))
                entry = main[oldest]
                if not entry.uses:
                    return
                entry.uses -= 1
                main.move_to_end(oldest)

    def _forget(self) -> None:
        ghosts = self._ghosts
        most_bytes, most = GHOST_SHARE * min(self._before, 2 * self._bytes), 2 * len(self)
        if ghosts.bytes > most_bytes or len(ghosts) > most:
            ghosts.trim(most_bytes, most)

"""The algorithms once more, as plainly as possible and O(n): caches of `capacity` equal keys, asked one by one.

Each `ask(key)` says whether the key was there; when it was not, one key goes if the cache is full, and the key is
stored.
"""

from collections.abc import Callable


class Recency:
    """LRU, or FIFO when uses do not count."""

    def __init__(self, capacity: int, *, uses_count: bool) -> None:
        self.capacity, self.uses_count, self.keys = capacity, uses_count, list[int]()

    def ask(self, key: int) -> bool:
        hit = key in self.keys
        if hit and self.uses_count:
            self.keys.remove(key)
            self.keys.append(key)
        if not hit:
            if len(self.keys) == self.capacity:
                self.keys.pop(0)
            self.keys.append(key)
        return hit


class Frequency:
    """LFU, the least recently used among equals."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.clock, self.uses = capacity, 0, dict[int, tuple[int, int]]()

    def ask(self, key: int) -> bool:
        self.clock += 1
        if key in self.uses:
            self.uses[key] = (self.uses[key][0] + 1, self.clock)
            return True
        if len(self.uses) == self.capacity:
            del self.uses[min(self.uses, key=lambda each: self.uses[each])]
        self.uses[key] = (0, self.clock)
        return False


class Segments:
    """SLRU with four fifths protected."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.probation, self.protected = capacity, list[int](), list[int]()

    def ask(self, key: int) -> bool:
        if key in self.protected:
            self.protected.remove(key)
            self.protected.append(key)
            return True
        if key in self.probation:
            resident = len(self.probation) + len(self.protected)
            self.probation.remove(key)
            self.protected.append(key)
            if len(self.protected) * 5 > resident * 4 and len(self.protected) > 1:
                self.probation.append(self.protected.pop(0))
            return True
        if len(self.probation) + len(self.protected) == self.capacity:
            (self.probation or self.protected).pop(0)
        self.probation.append(key)
        return False


class Queues:
    """S3-FIFO: small queue of three tenths, promotion at the first re-use, nine tenths of ghosts."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.small, self.main, self.ghosts = list[int](), list[int](), list[int]()
        self.uses = dict[int, int]()

    def ask(self, key: int) -> bool:
        if key in self.uses:
            self.uses[key] = min(3, self.uses[key] + 1)
            return True
        if len(self.uses) == self.capacity:
            self._evict()
        if key in self.ghosts:
            self.ghosts.remove(key)
            self.main.append(key)
        else:
            self.small.append(key)
        self.uses[key] = 0
        return False

    def _evict(self) -> None:
        resident = len(self.uses)
        while True:
            if self.small and (len(self.small) * 10 > resident * 3 or not self.main):
                key = self.small.pop(0)
                if not self.uses[key]:
                    self.ghosts.append(key)
                    break
                self.uses[key] = 0
            else:
                key = self.main.pop(0)
                if not self.uses[key]:
                    break
                self.uses[key] -= 1
            self.main.append(key)
        del self.uses[key]
        while len(self.ghosts) > 0.9 * self.capacity:
            self.ghosts.pop(0)


class Adaptive:
    """ARC, whose border moves after room was made."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.target = capacity, 0.0
        self.once, self.again = list[int](), list[int]()
        self.once_ghosts, self.again_ghosts = list[int](), list[int]()

    def ask(self, key: int) -> bool:
        for order in (self.once, self.again):
            if key in order:
                order.remove(key)
                self.again.append(key)
                return True
        if len(self.once) + len(self.again) == self.capacity:
            self._evict()
        b1, b2 = self.once_ghosts, self.again_ghosts
        if key in b1:
            resident = len(self.once) + len(self.again) + 1
            self.target = min(resident, self.target + max(1.0, len(b2) / len(b1)))
            b1.remove(key)
            self.again.append(key)
        elif key in b2:
            self.target = max(0.0, self.target - max(1.0, len(b1) / len(b2)))
            b2.remove(key)
            self.again.append(key)
        else:
            self.once.append(key)
        return False

    def _evict(self) -> None:
        if self.once and (len(self.once) > self.target or not self.again):
            self.once_ghosts.append(self.once.pop(0))
        else:
            self.again_ghosts.append(self.again.pop(0))
        while len(self.once) + len(self.once_ghosts) > self.capacity:
            self.once_ghosts.pop(0)
        while len(self.once) + len(self.again) + len(self.once_ghosts) + len(self.again_ghosts) > 2 * self.capacity:
            self.again_ghosts.pop(0)


class Ages:
    """Idle seconds over one and the hits (at most seven): the largest goes, of equals the one with fewer hits."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.clock, self.known = capacity, 0.0, dict[int, tuple[int, float]]()

    def ask(self, key: int) -> bool:
        self.clock += 1.0
        if key in self.known:
            self.known[key] = (min(7, self.known[key][0] + 1), self.clock)
            return True
        if len(self.known) == self.capacity:
            del self.known[max(self.known, key=self._worth)]
        self.known[key] = (0, self.clock)
        return False

    def _worth(self, key: int) -> tuple[float, int]:
        hits, used_at = self.known[key]
        return (self.clock - used_at) / (1 + hits), -hits


REFERENCES: dict[str, Callable[[int], Recency | Frequency | Segments | Queues | Adaptive | Ages]] = {
    "lru": lambda capacity: Recency(capacity, uses_count=True),
    "fifo": lambda capacity: Recency(capacity, uses_count=False),
    "lfu": Frequency,
    "slru": Segments,
    "s3fifo": Queues,
    "arc": Adaptive,
    "age_class": Ages,
}

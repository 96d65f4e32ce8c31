"""Second-touch admission under pressure: while victims were used only a short time ago, store only keys seen before.

Most blocks are used once. A cache that is too small and stores all of them evicts reusable blocks before their next
use; it performs better when it stores a block only on the second request. A cache with enough room would lose hits by
that rule, so the gate closes automatically, and only while victims were idle for less than `idle_s` on average.
"""

from collections import deque

FEWEST_KEYS = 64
"""Minimum number of keys in a set of seen keys, for small caches."""
_WEIGHT = 1 / 64
"""Weight of one victim in the moving average."""
_GENERATIONS = 4
"""Number of sets of seen keys. Each set holds as many keys as there are resident blocks; the oldest set is dropped as a
whole."""


class Admission:
    """The admission gate and its seen keys: three to four per resident block, about 60 bytes each.

    Call `admits` for every missing key of a chain, even after a key that is declined, so that all of them count as
    seen; store the leading run of admitted keys. Call `victim` for every block that is evicted to make room.
    A fingerprint identifies a key in a space: the same key in two spaces is two blocks.
    """

    __slots__ = ("_average", "_last_victim_at", "_recent", "_seen", "admitted", "declined", "idle_s")

    def __init__(self, idle_s: float) -> None:
        self.idle_s = idle_s
        """Average idle time of victims in seconds below which the gate closes; may change at any time."""
        self.admitted = 0
        """Number of keys that were admitted, with the gate open or closed."""
        self.declined = 0
        """Number of keys that were declined because they were first seen while the gate was closed."""
        self._average: float | None = None
        self._last_victim_at = 0.0
        self._recent: set[int] = set()
        self._seen: deque[set[int]] = deque([self._recent], _GENERATIONS)

    def victim(self, idle_s: float, now: float) -> None:
        """Record the eviction of a block that was last used `idle_s` seconds ago."""
        average = self.victim_idle_s(now)
        self._average = idle_s if average is None else average + _WEIGHT * (idle_s - average)
        self._last_victim_at = now

    def victim_idle_s(self, now: float) -> float | None:
        """Return the moving average in seconds, but at least the time since the last victim; None before the first
        victim."""
        if self._average is None:
            return None
        return max(self._average, now - self._last_victim_at)

    def closed(self, now: float) -> bool:
        """Return whether the gate admits only keys that were seen before."""
        average = self.victim_idle_s(now)
        return average is not None and average < self.idle_s

    def admits(self, fingerprint: int, resident_blocks: int, now: float) -> bool:
        """Return whether a missing block may be stored. Its key counts as seen from now on."""
        seen = any(fingerprint in keys for keys in self._seen)
        if not seen:
            if len(self._recent) >= max(FEWEST_KEYS, resident_blocks):
                self._recent = set()
                self._seen.append(self._recent)
            self._recent.add(fingerprint)
        if seen or not self.closed(now):
            self.admitted += 1
            return True
        self.declined += 1
        return False

    @property
    def keys(self) -> int:
        """Number of keys that the gate remembers."""
        return sum(map(len, self._seen))

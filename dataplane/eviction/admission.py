"""Second-touch admission under pressure: while what is evicted was used a short time ago, only keys that were seen
before are stored.

Most blocks are used once. A starved cache that stores all of them evicts the ones that would have been used again
before they are; it does better when a block has to be asked for twice. A cache with room would only lose by that, so
the gate closes by itself, and only while victims were idle for less than `idle_s` on average.
"""

from collections import deque

FEWEST_KEYS = 64
"""A small cache remembers at least this many."""
_WEIGHT = 1 / 64
"""Of one victim in the moving average."""
_GENERATIONS = 4
"""Sets of seen keys, each as many keys as blocks are resident; the oldest set is forgotten as a whole."""


class Admission:
    """The gate and what it has seen: three to four times as many keys as blocks are resident, about 60 bytes each.

    Ask `admits` for every missing key of a chain, whatever the answer for the keys before it, so that all of them are
    seen; store the leading run of those that were admitted. Tell `victim` of every block that is evicted to make room.
    A fingerprint stands for key and space: the same key in two spaces is two blocks.
    """

    __slots__ = ("_average", "_last_victim_at", "_recent", "_seen", "admitted", "declined", "idle_s")

    def __init__(self, idle_s: float) -> None:
        self.idle_s = idle_s
        """The gate closes below this; may be changed at any time."""
        self.admitted = 0
        """Keys that were let in, gate open or closed."""
        self.declined = 0
        """Keys that were not: first sightings while the gate was closed."""
        self._average: float | None = None
        self._last_victim_at = 0.0
        self._recent: set[int] = set()
        self._seen: deque[set[int]] = deque([self._recent], _GENERATIONS)

    def victim(self, idle_s: float, now: float) -> None:
        """A block was evicted to make room that was last used `idle_s` seconds ago."""
        average = self.victim_idle_s(now)
        self._average = idle_s if average is None else average + _WEIGHT * (idle_s - average)
        self._last_victim_at = now

    def victim_idle_s(self, now: float) -> float | None:
        """The moving average in seconds; at least the time without a victim; None before the first."""
        if self._average is None:
            return None
        return max(self._average, now - self._last_victim_at)

    def closed(self, now: float) -> bool:
        """Whether only keys that were seen before are let in."""
        average = self.victim_idle_s(now)
        return average is not None and average < self.idle_s

    def admits(self, fingerprint: int, resident_blocks: int, now: float) -> bool:
        """Whether a missing block may be stored; its key counts as seen from now on."""
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
        """How many keys it remembers."""
        return sum(map(len, self._seen))

"""Copies the live records of one half of the id journal into the other, a few at a time, while records are appended.

Appended records come at the end of the source, so the copy reaches them later. Until the caller makes the other half
active, a restart reads the source.
"""

from __future__ import annotations

from collections.abc import Callable

HEAD = 8
"""Bytes of a record's head: its length (32 bits), and its checksum."""


class Compaction:
    """A compaction that has begun."""

    def __init__(
        self, source: memoryview, target: memoryview, end: int, keep: Callable[[memoryview, bool], bool]
    ) -> None:
        """`end` is the offset in bytes at which the source ends now. `keep` takes the body of a record and whether it
        was appended after the compaction began, and returns whether it is copied."""
        self._source = source
        self._target = target
        self._began_at = end
        self._keep = keep
        self._at = 0
        """Offset in bytes of the next record in the source."""
        self.end = 0
        """Offset in bytes at which the target ends."""

    def step(self, end: int, records: int) -> bool:
        """Visit up to `records` records of a source that ends at `end` now. Return whether all have been visited."""
        source, at = self._source, self._at
        for _ in range(records):
            if at >= end:
                break
            length = int.from_bytes(source[at : at + 4], "little")
            after = at + HEAD + -(-length // 8) * 8
            if self._keep(source[at + HEAD : at + HEAD + length], at >= self._began_at):
                self._target[self.end : self.end + after - at] = source[at:after]
                self.end += after - at
            at = after
        self._at = at
        return at >= end

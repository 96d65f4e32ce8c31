"""What became of blocks that are gone: the last cause and time for each of a bounded number of keys.

The table has a fixed size. A key belongs to one place, and a later removal there replaces an earlier one, so noting
costs two stores and no search. A block is named by its 64-bit mark; two blocks have the same mark with a probability of
2^-64, and then one shows the cause of the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np

from dataplane.protocol.codes import Code

PLACES = 1 << 17
"""Number of keys that the table remembers, at most: 2 MiB."""
INVALIDATED = "invalidated"
MEMORY_CAUSES = ("room", "limit", "index", "watermark", INVALIDATED, "corrupt", "hint", "moved")
"""Why blocks leave memory."""
TIER = "tier"
"""A tier evicted the block, after memory had."""
CAUSES = tuple(dict.fromkeys((*MEMORY_CAUSES, TIER, *(code.name.lower() for code in Code))))
_NUMBERS = {cause: number for number, cause in enumerate(CAUSES, 1)}
_REASONS = {INVALIDATED: "invalidated", "corrupt": "corrupt", "hint": "expired"}
_EVICTED = frozenset((*MEMORY_CAUSES, TIER)) - _REASONS.keys()
_MASK = (1 << 64) - 1


class Marked(Protocol):
    """A block, as far as the table reads it."""

    mark: int
    """64-bit fingerprint of its key and space."""


class Removal(NamedTuple):
    """The last removal of a block."""

    reason: str
    """Of `NODE_REASONS`."""
    cause: str
    """Of CAUSES."""
    at: float
    """Unix seconds."""


class Removals:
    """Removed blocks, and blocks whose store was refused, by key and space."""

    def __init__(self, places: int = PLACES) -> None:
        """`places` is a power of two."""
        self._cells = np.zeros(2 * places, np.uint64).data
        self._last = places - 1

    def note(self, blocks: Iterable[Marked], cause: str, now: float) -> None:
        """Remember that blocks were removed."""
        cells, last, word = self._cells, self._last, _word(cause, now)
        for block in blocks:
            mark = block.mark
            at = 2 * (mark & last)
            cells[at] = mark
            cells[at + 1] = word

    def note_keys(self, keys: Iterable[bytes], space: int, cause: str, now: float) -> None:
        """Remember the same of keys of a space."""
        cells, last, word = self._cells, self._last, _word(cause, now)
        for key in keys:
            mark = _mark(key, space)
            at = 2 * (mark & last)
            cells[at], cells[at + 1] = mark, word

    def of(self, key: bytes, space: int) -> Removal | None:
        """Return the last removal of a block; None if it is not known."""
        mark = _mark(key, space)
        at = 2 * (mark & self._last)
        word = self._cells[at + 1]
        if self._cells[at] != mark or not word:
            return None
        cause = CAUSES[(word & 0xFF) - 1]
        return Removal(_REASONS.get(cause, "evicted" if cause in _EVICTED else "refused"), cause, (word >> 8) / 1000)


def _mark(key: bytes, space: int) -> int:
    return int.from_bytes(key[:8], "little") ^ space


def _word(cause: str, now: float) -> int:
    return (int(max(0.0, now) * 1000) << 8 | _NUMBERS[cause]) & _MASK

"""Free ranges of the data and free slots of the table, derived from the table."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from dataplane.ipc.store.errors import StoreCorrupted
from dataplane.ipc.store.layout import ALIGNMENT, FREE, STATE_MASK, Tables, up

_STATE = np.uint64(STATE_MASK)


class FreeSpace:
    """Objects are placed first fit, at the lowest offset, so that pages that have memory are used again."""

    def __init__(self, tables: Tables) -> None:
        """Raises what `derive` raises."""
        self._tables = tables
        self._total = tables.shape.data_bytes
        self.derive()

    def derive(self) -> None:
        """Read the table. Raise StoreCorrupted if objects overlap or leave the data."""
        tables, total = self._tables, self._total
        used = tables.used_slots()
        is_free = (tables.control[:used] & _STATE) == FREE
        self._slots: list[int] = np.flatnonzero(is_free)[::-1].tolist()
        self._unused = used
        """Slots from this one on are free, too."""
        offsets, sizes = tables.offset[:used][~is_free], tables.nbytes[:used][~is_free]
        if (offsets > total).any() or (sizes > total).any():
            raise StoreCorrupted(f"table: expected objects within {total} bytes")
        order = np.argsort(offsets, kind="stable")
        starts = offsets[order].astype(np.int64)
        ends = np.minimum(starts - (-sizes[order].astype(np.int64) // ALIGNMENT) * ALIGNMENT, total)
        if (ends[:-1] > starts[1:]).any() or (starts + sizes[order].astype(np.int64) > total).any():
            raise StoreCorrupted(f"table: expected objects that do not overlap, within {total} bytes")
        before, after = np.concatenate(([0], ends)), np.concatenate((starts, [total]))
        gaps = before < after
        self._starts: list[int] = before[gaps].tolist()
        self._end_by_start: dict[int, int] = dict(zip(self._starts, after[gaps].tolist(), strict=True))

    def take(self, nbytes: int) -> tuple[int, int] | None:
        """Return a slot and an offset for so many bytes, or None if there is no slot or no range."""
        if not self._slots and self._unused == self._tables.shape.objects:
            return None
        for at, start in enumerate(self._starts):
            end = self._end_by_start[start]
            if end - start >= nbytes:
                del self._starts[at], self._end_by_start[start]
                rest_start = start + up(nbytes, ALIGNMENT)
                if rest_start < end:
                    insort(self._starts, rest_start)
                    self._end_by_start[rest_start] = end
                return self._take_slot(), start
        return None

    def _take_slot(self) -> int:
        if self._slots:
            return self._slots.pop()
        self._unused += 1
        return self._unused - 1

    def give_back(self, slot: int, offset: int, nbytes: int) -> None:
        """Add a slot and its range, and join the range with its neighbours."""
        self._slots.append(slot)
        start, end = offset, min(offset + up(nbytes, ALIGNMENT), self._total)
        if start == end:
            return
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == end:
            end = self._end_by_start.pop(self._starts.pop(at))
        if at and self._end_by_start[self._starts[at - 1]] == start:
            start = self._starts[at - 1]
        else:
            self._starts.insert(at, start)
        self._end_by_start[start] = end

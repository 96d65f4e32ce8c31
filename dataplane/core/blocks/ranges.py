"""Allocator of the named segment: free ranges of whole pages, allocated at the lowest offset that fits.

Clients of a gateway map one named segment as a whole, so the segments of the gateway's spaces are ranges of it. Unlike
capacity, ranges must be contiguous: to make room for a large range, several adjacent ones must be freed.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


class Ranges:
    """Free ranges of a named segment of `nbytes` bytes; empty for 0, when there is no named segment."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._free: list[tuple[int, int]] = [(0, nbytes)] if nbytes else []
        """(offset, bytes) in ascending order; adjacent ranges are merged."""

    def copy(self) -> Ranges:
        copy = Ranges(0)
        copy.nbytes, copy._free = self.nbytes, list(self._free)
        return copy

    @property
    def free(self) -> list[tuple[int, int]]:
        """Free (offset, bytes) ranges in ascending order."""
        return list(self._free)

    def largest(self) -> int:
        """Return the size of the largest free range in bytes."""
        return max((nbytes for _, nbytes in self._free), default=0)

    def lowest(self, nbytes: int) -> int | None:
        """Return the offset of the lowest free range of at least `nbytes` bytes, or None."""
        return next((offset for offset, free in self._free if free >= nbytes), None)

    def take(self, offset: int, nbytes: int) -> None:
        """Take a free range. Raise ValueError when it is not free or lies outside the segment."""
        at = bisect_right(self._free, (offset, self.nbytes)) - 1
        begin, free = self._free[at] if at >= 0 else (0, 0)
        if nbytes <= 0 or not begin <= offset <= offset + nbytes <= begin + free:
            raise ValueError(f"{nbytes} bytes at {offset} of the named segment are not free")
        remainders = [(begin, offset - begin), (offset + nbytes, begin + free - offset - nbytes)]
        self._free[at : at + 1] = [part for part in remainders if part[1]]

    def give(self, offset: int, nbytes: int) -> None:
        """Give a range back."""
        insort(self._free, (offset, nbytes))
        at = max(0, bisect_right(self._free, (offset, nbytes)) - 2)
        while at + 1 < len(self._free) and self._free[at][0] <= offset + nbytes:
            (begin, size), (following, following_size) = self._free[at], self._free[at + 1]
            if begin + size == following:
                self._free[at : at + 2] = [(begin, size + following_size)]
            else:
                at += 1

    def cheapest(self, nbytes: int, taken_ranges: Iterable[tuple[int, int, T]]) -> list[T] | None:
        """Return the names of adjacent taken ranges that, together with the free ranges between them, span at least
        `nbytes` bytes, with as few taken bytes as possible. Return None when there is no such run.

        `taken_ranges` lists the ranges that may be freed as (offset, bytes, name).
        """
        ranges: list[tuple[int, int, T | None]] = [*taken_ranges, *((*free, None) for free in self._free)]
        ranges.sort(key=lambda entry: entry[0])
        best: list[T] | None = None
        least = self.nbytes + 1
        first = total = cost = 0
        for last, (offset, size, name) in enumerate(ranges):
            if last and ranges[last - 1][0] + ranges[last - 1][1] != offset:
                first, total, cost = last, 0, 0
            total += size
            cost += 0 if name is None else size
            while total - ranges[first][1] >= nbytes:
                total -= ranges[first][1]
                cost -= 0 if ranges[first][2] is None else ranges[first][1]
                first += 1
            if total >= nbytes and cost < least:
                least = cost
                best = [name for _, _, name in ranges[first : last + 1] if name is not None]
        return best

    def faults(self) -> list[str]:
        """Return the inconsistencies of the free list; empty when there are none."""
        return [
            f"free ranges at {offset} and {following} touch"
            for (offset, nbytes), (following, _) in pairwise(self._free)
            if offset + nbytes >= following
        ]

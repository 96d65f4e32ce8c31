"""Which bytes of the named segment are free: ranges of whole pages, the lowest that fits first.

Clients of a gateway map one named segment as a whole, so the segments of its spaces are ranges of it. Unlike the
capacity, a range has neighbours: to make room for a large one, several that lie side by side must go.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


class Ranges:
    """Free ranges of so many bytes; none when there is no named segment."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._free: list[tuple[int, int]] = [(0, nbytes)] if nbytes else []
        """(offset, bytes), the lowest first; two never touch each other."""

    def copy(self) -> Ranges:
        copy = Ranges(0)
        copy.nbytes, copy._free = self.nbytes, list(self._free)
        return copy

    @property
    def free(self) -> list[tuple[int, int]]:
        """(offset, bytes), the lowest first."""
        return list(self._free)

    def largest(self) -> int:
        """Bytes of the largest free range."""
        return max((nbytes for _, nbytes in self._free), default=0)

    def lowest(self, nbytes: int) -> int | None:
        """Where the lowest free range of so many bytes begins."""
        return next((offset for offset, free in self._free if free >= nbytes), None)

    def take(self, offset: int, nbytes: int) -> None:
        """Take a free range. Raises ValueError when it is not free, or not inside."""
        at = bisect_right(self._free, (offset, self.nbytes)) - 1
        begin, free = self._free[at] if at >= 0 else (0, 0)
        if nbytes <= 0 or not begin <= offset <= offset + nbytes <= begin + free:
            raise ValueError(f"{nbytes} bytes at {offset} of the named segment are not free")
        rest = [(begin, offset - begin), (offset + nbytes, begin + free - offset - nbytes)]
        self._free[at : at + 1] = [part for part in rest if part[1]]

    def give(self, offset: int, nbytes: int) -> None:
        """Give a range back."""
        insort(self._free, (offset, nbytes))
        at = max(0, bisect_right(self._free, (offset, nbytes)) - 2)
        while at + 1 < len(self._free) and self._free[at][0] <= offset + nbytes:
            (begin, size), (following, more) = self._free[at], self._free[at + 1]
            if begin + size == following:
                self._free[at : at + 2] = [(begin, size + more)]
            else:
                at += 1

    def cheapest(self, nbytes: int, taken: Iterable[tuple[int, int, T]]) -> list[T] | None:
        """Neighbours of which as few bytes as possible are taken, and that are so many bytes with the free ones among
        them: what takes them (offset, bytes, name). None when there are none.
        """
        every: list[tuple[int, int, T | None]] = [*taken, *((*free, None) for free in self._free)]
        every.sort(key=lambda each: each[0])
        best: list[T] | None = None
        least = self.nbytes + 1
        first = total = cost = 0
        for last, (offset, size, name) in enumerate(every):
            if last and every[last - 1][0] + every[last - 1][1] != offset:
                first, total, cost = last, 0, 0
            total += size
            cost += 0 if name is None else size
            while total - every[first][1] >= nbytes:
                total -= every[first][1]
                cost -= 0 if every[first][2] is None else every[first][1]
                first += 1
            if total >= nbytes and cost < least:
                least = cost
                best = [each for _, _, each in every[first : last + 1] if each is not None]
        return best

    def faults(self) -> list[str]:
        """What is wrong with the list itself; empty when all is well."""
        return [
            f"free ranges at {offset} and {following} touch"
            for (offset, nbytes), (following, _) in pairwise(self._free)
            if offset + nbytes >= following
        ]

"""Interface of the named segment, which the gateway's clients map."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class NamedPool(Protocol):
    """The named segment."""

    @property
    def name(self) -> str:
        """Return the name that clients receive: `lmcache_l1_pool_...`, without a slash."""

    @property
    def nbytes(self) -> int: ...

    @property
    def identity(self) -> int:
        """Return a number that differs for every file, because clients from before a cold start still map the old
        file."""

    @property
    def problem(self) -> str:
        """Return why new clients cannot open the memory by its name; empty if they can."""

    @property
    def restored(self) -> int:
        """Return how often the name was restored."""

    @property
    def short(self) -> bool:
        """Return whether the machine lacked memory for the last range that was needed."""

    def look(self) -> None:
        """Check the name, restore it if it was removed, and update `problem`."""

    def base(self, segment: int) -> int:
        """Return the byte offset of a gateway space's segment in the named segment. Raise KeyError if there is none."""

    def lacking(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the ranges (base, bytes) that lack some of their pages."""

    def take(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Allocate the pages of ranges. This blocks; do not call it on the loop. Raise OSError on failure."""

    def expect(self) -> None:
        """Prepare for a registering worker, which will store and may address pages directly."""

    def view(self) -> memoryview:
        """Return a writable view of the whole segment."""

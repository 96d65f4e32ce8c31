"""Invalidations in one tier: in force at once, and carried out in slices of bounded work.

A tier may hold millions of blocks, and an invalidation may cover any of them. `start` therefore only stores the
invalidation. From then on, `is_dead` decides on single blocks, and dead blocks are not loaded. Meanwhile `step` walks
over all blocks and returns the dead ones, a bounded number in each call, for the caller to forget.

A tombstone with keys covers the blocks of a prefix and those that were stored behind it: see `Tombstone.among`. Whether
a block is behind the prefix is decided by a walk from the block towards the first block of its chain. The result is
kept for every block that the walk visits, so the walks over a whole tier visit each block once. All blocks are decided
before the first one is forgotten, because a walk needs the blocks in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING

from dataplane.core.tiering.tombstones import Tombstone, compacted
from dataplane.tiers.tier import BlockName

if TYPE_CHECKING:
    from dataplane.core.tiering.contents import TierContents, TierEntry

SLICE_VISITS = 1024
"""Blocks that one step visits; a block counts again when a walk crosses it."""
SLICE_DEAD = 128
"""Number of dead blocks after which a step ends."""
MAX_STARTED = 1024
"""If all invalidations that have not begun exceed this size, those of the tenant with the most are merged into one."""
MAX_WALK = 4096
"""Maximum number of ancestors that `is_dead` visits for one block. A block with more undecided ancestors counts as dead
until it is decided."""


class Verdict(IntEnum):
    """State of a block for a tombstone with keys."""

    UNKNOWN = 0
    ALIVE = 1
    DEAD = 2


class _Invalidation:
    """One tombstone in one tier, until all blocks have been visited."""

    def __init__(self, tombstone: Tombstone, contents: TierContents) -> None:
        self.tombstone = tombstone
        self._contents = contents
        self._verdicts = bytearray()
        """By the numbers of blocks; only for a tombstone with keys."""
        self._tenants = self._tenants_of_prefix()

    def _tenants_of_prefix(self) -> set[str]:
        entries, tombstone = self._contents.entries, self.tombstone
        spaces = [space for space in self._contents.spaces if tombstone.covers_space(space)]
        names = (BlockName(space, key) for space in spaces for key in tombstone.keys or ())
        found = (entries.get(name) for name in names)
        return {each.stored.tenant for each in found if each is not None and tombstone.covers(each.stored)}

    def covers(self, entry: TierEntry) -> bool:
        """Return whether the block is dead, or may be."""
        if not self.tombstone.covers(entry.stored):
            return False
        if self.tombstone.keys is None:
            return True
        path: list[int] = []
        for _ in self._walk(entry, path):
            if len(path) >= MAX_WALK:
                return True
        return self._verdict(entry.number) is not Verdict.ALIVE

    def run(self) -> Iterator[TierEntry | None]:
        """Visit all blocks. Yield None after each visit, and each block that is dead. It may be removed at once."""
        numbered = self._contents.numbered
        if self.tombstone.keys is not None:
            for number in range(len(numbered)):
                entry = numbered[number]
                if entry is not None and self.tombstone.covers(entry.stored):
                    yield from self._walk(entry, [])
                yield None
        for number in range(len(numbered)):
            entry = numbered[number]
            if (
                entry is not None
                and self.tombstone.covers(entry.stored)
                and (self.tombstone.keys is None or self._verdict(number) is Verdict.DEAD)
            ):
                yield entry
            yield None

    def _walk(self, entry: TierEntry, path: list[int]) -> Iterator[None]:
        """Decide on a block that the tombstone covers, apart from the keys, and on its ancestors. Add the numbers of
        the blocks that are visited to `path`, and yield after each."""
        tombstone, entries = self.tombstone, self._contents.entries
        assert tombstone.keys is not None
        at: TierEntry | None = entry
        verdict = Verdict.UNKNOWN
        while verdict is Verdict.UNKNOWN:
            if at is None or not tombstone.covers(at.stored):
                # The block before it is gone, or was stored again: that one may have been behind the prefix.
                verdict = Verdict.DEAD if entry.stored.tenant in self._tenants else Verdict.ALIVE
                break
            verdict = self._verdict(at.number)
            if verdict is Verdict.UNKNOWN:
                path.append(at.number)
                entry, stored = at, at.stored
                if stored.name.key in tombstone.keys or stored.parent == tombstone.last_key:
                    verdict = Verdict.DEAD
                elif not stored.parent or stored.parent in tombstone.keys:
                    verdict = Verdict.ALIVE
                else:
                    at = entries.get(BlockName(stored.name.space, stored.parent))
            yield None
        if path:
            self._grow(max(path) + 1)
        for number in path:
            self._verdicts[number] = verdict

    def _verdict(self, number: int) -> Verdict:
        return Verdict(self._verdicts[number]) if number < len(self._verdicts) else Verdict.UNKNOWN

    def _grow(self, size: int) -> None:
        if size > len(self._verdicts):
            self._verdicts += bytes(max(size, len(self._contents.numbered)) - len(self._verdicts))


class TierInvalidations:
    """The invalidations of one tier that are under way, oldest first."""

    def __init__(self, contents: TierContents) -> None:
        self._contents = contents
        self._waiting: deque[_Invalidation] = deque()
        self._run: Iterator[TierEntry | None] | None = None
        """The walk of the oldest invalidation."""

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self, tombstone: Tombstone) -> None:
        """Put an invalidation in force. Call `step` until nothing is under way."""
        self._waiting.append(_Invalidation(tombstone, self._contents))
        begun = [self._waiting[0]] if self._run is not None else []
        rest = list(self._waiting)[len(begun) :]
        tombstones = [each.tombstone for each in rest]
        remaining = compacted(tombstones, MAX_STARTED)
        if len(remaining) < len(rest) or remaining != tombstones:
            known = {id(each.tombstone): each for each in rest}
            merged = [known.get(id(each)) or _Invalidation(each, self._contents) for each in remaining]
            self._waiting = deque([*begun, *merged])

    def is_dead(self, entry: TierEntry) -> bool:
        """Return whether an invalidation under way covers a block."""
        return any(each.covers(entry) for each in self._waiting)

    def step(self) -> list[TierEntry]:
        """Visit the next blocks, at most SLICE_VISITS, and return those that are dead. The caller forgets them."""
        dead: list[TierEntry] = []
        visits = 0
        while self._waiting and visits < SLICE_VISITS and len(dead) < SLICE_DEAD:
            if self._run is None:
                self._run = self._waiting[0].run()
            for found in self._run:
                if found is not None:
                    dead.append(found)
                else:
                    visits += 1
                if visits >= SLICE_VISITS or len(dead) >= SLICE_DEAD:
                    return dead
            self._run = None
            self._waiting.popleft()
        return dead

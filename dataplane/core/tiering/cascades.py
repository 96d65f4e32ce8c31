"""Copies of blocks that a tier evicts soon to the next tier in the order whose `spill` is `cascade`.

Nothing waits for these copies: the tier evicts when it needs room, and a block that was not copied in time is counted
as refused. The copies take turns with those of moves and drains.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.jobs import CopyRequest, JobReason, JobTable
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.stored_blocks import BlockName

EVICTED = "evicted"
"""Why a block was not copied: the tier before evicted it first."""
SOON_BLOCKS, SOON_PART = 256, 4
"""Number of blocks at the end of a tier's eviction order that are copied in advance: at most so many, and at most this
part of the tier's blocks."""
GROWN_PART = 16
"""A hurried choice follows when the source holds more or less than before by this part of its room, or when a quarter
of the window was used or evicted."""
IDLE_S = 1.0
RETRY_S = 1.0
LASTING = frozenset({"budget", "limit", "size"})
"""Reasons that hold until the block is evicted. After others, a copy is tried again, RETRY_S seconds later."""


class Cascade:
    """The copies from one tier to the next one. Like those of spills, they may evict any block of the target."""

    def __init__(self, source: TierState, target: TierState) -> None:
        self.source, self.target = source, target
        self.copies = CopyRequest(JobReason.CASCADE, source, target)
        self.refused: dict[BlockName, float] = {}
        """Blocks whose copy was refused, and the time when it is tried again."""
        self._looked_at = -inf
        self._reordered = self._used_bytes = 0
        """State of the source when blocks were chosen last."""

    @property
    def window(self) -> int:
        """The number of blocks that are copied in advance."""
        return min(SOON_BLOCKS, 1 + len(self.source.contents) // SOON_PART)

    def looks_again(self, now: float, *, hurried: bool) -> bool:
        """Return whether blocks are to be chosen now: after blocks of the source were stored, used or evicted, and
        otherwise every IDLE_S seconds; with `hurried`, only after many were."""
        contents = self.source.contents
        if not self.source.serves or not self.target.serves or self.source.listed_blocks is not None:
            return False
        reordered = contents.evicted_blocks + contents.uses
        moved = reordered - self._reordered
        grown = abs(contents.used_bytes - self._used_bytes)
        if hurried:
            looks = 4 * moved >= self.window or GROWN_PART * grown >= contents.room_bytes
        else:
            looks = bool(moved or grown) or now >= self._looked_at + IDLE_S
        if looks:
            self._looked_at, self._reordered, self._used_bytes = now, reordered, contents.used_bytes
        return looks


class Cascades:
    """The cascades of all tiers of a node."""

    def __init__(self, catalog: Catalog, table: JobTable) -> None:
        self._catalog, self._table = catalog, table
        self._cascades: dict[TierState, Cascade] = {}
        """By source."""

    def target(self, source: TierState) -> TierState | None:
        """Return the tier that takes the blocks that a tier evicts; None if there is none."""
        for tier in self._catalog.tiers:
            if tier.spec.spill == "cascade" and tier.spec.order > source.spec.order:
                return tier
        return None

    def hurry(self, now: float) -> None:
        """Choose blocks of tiers that have just begun to serve, or have evicted many since the last `step`. Call it
        before blocks are copied to tiers."""
        for cascade in self._current():
            if cascade.looks_again(now, hurried=True):
                self._choose(cascade, now)

    def step(self, now: float) -> None:
        """Take the outcomes of copies, and choose blocks that tiers evict soon."""
        self._count_evicted()
        for source, cascade in list(self._cascades.items()):
            if source not in self._catalog.tiers or self.target(source) is not cascade.target:
                self._table.end(cascade.copies)
                del self._cascades[source]
        for cascade in self._current():
            self._look_at_copies(cascade, now)
            if cascade.looks_again(now, hurried=False):
                self._choose(cascade, now)

    def _current(self) -> Iterator[Cascade]:
        """Iterate over the cascades of all tiers."""
        for source in self._catalog.tiers:
            target = self.target(source)
            if target is not None:
                cascade = self._cascades.get(source)
                yield cascade or self._cascades.setdefault(source, Cascade(source, target))

    def _count_evicted(self) -> None:
        """Count blocks that tiers evicted without a copy. A block that is being copied is counted if that fails."""
        for source in self._catalog.tiers:
            names, source.evictions = source.evictions, []
            cascade = self._cascades.get(source)
            if cascade is None:
                continue
            for name in names:
                if name not in cascade.copies.copying and not self._is_elsewhere(cascade, name):
                    cascade.target.refuse(EVICTED, name)

    def _look_at_copies(self, cascade: Cascade, now: float) -> None:
        target = cascade.target
        for name, _, reason in self._table.take_ended(cascade.copies):
            if name not in target.contents.entries and name not in cascade.source.contents.entries:
                target.refuse(EVICTED, name)
            elif name not in target.contents.entries:
                cascade.refused[name] = inf if reason in LASTING else now + RETRY_S

    def _choose(self, cascade: Cascade, now: float) -> None:
        """Copy blocks that the source evicts soon and no other tier holds. Blocks that are used in memory are left,
        because the source does not evict them."""
        soon = cascade.source.contents.soon_evicted(now, cascade.window)
        refused, cascade.refused = cascade.refused, {}
        for entry in soon:
            name = entry.stored.name
            retry_at = refused.get(name, 0.0)
            if retry_at > now:
                cascade.refused[name] = retry_at
                continue
            if name in cascade.copies.copying or self._is_elsewhere(cascade, name):
                continue
            if self._catalog.is_used_in_memory(entry):
                continue
            self._table.add(cascade.copies, name)
        if cascade.copies.waiting:
            self._catalog.wake()

    def _is_elsewhere(self, cascade: Cascade, name: BlockName) -> bool:
        """Return whether a tier other than the source holds a block."""
        found_block = self._catalog.existence.found(name)
        if found_block is not None and found_block.tier is not cascade.source:
            return True
        return any(tier.entry_of(name) is not None for tier in self._catalog.tiers if tier is not cascade.source)

"""Drains: a tier whose `spill` is `drain` hands the blocks that it alone holds to another tier.

A drain walks over all blocks of its tier, in passes, because the other tier may evict blocks again. Its copies take
turns with those of moves, and evict no block of the other tier that was stored or used since the drain began.
"""

from __future__ import annotations

from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.jobs import CopyRequest, JobReason, JobTable
from dataplane.core.tiering.tier_state import TAKES_NOTHING, TierState
from dataplane.protocol.stored_blocks import BlockName

STEP_BLOCKS = 1024
"""Maximum number of blocks that one step looks at."""
MAX_OUTSTANDING = 1024
"""Maximum number of blocks that wait for their copy."""
PASS_S = 5.0
"""Pause between two passes."""


class TierDrain:
    """The drain of one tier."""

    def __init__(self, source: TierState, target: TierState, now: float) -> None:
        self.source, self.target = source, target
        self.copies = CopyRequest(JobReason.DRAIN, source, target, now)
        self.at = 0
        """Number of the next block to look at in `TierContents.numbered`."""
        self.refused_blocks = 0
        """Blocks of this pass that the target did not take."""
        self.left_blocks = len(source.contents)
        """The most blocks that only the source may hold."""
        self.begins_at = now
        """When the next pass begins."""

    def count(self, unseen: int) -> None:
        """Update the number of blocks that are left, `unseen` of which this pass has not looked at yet."""
        undone = len(self.copies.copying) + self.refused_blocks
        self.left_blocks = max(undone, min(self.left_blocks, undone + unseen, len(self.source.contents)))


class Drains:
    """The drains of all tiers of a node."""

    def __init__(self, catalog: Catalog, table: JobTable) -> None:
        self._catalog, self._table = catalog, table
        self._drains: dict[TierState, TierDrain] = {}

    def left(self, tier: TierState) -> int | None:
        """Return how many blocks of a tier must still be copied, at most; None if the tier does not drain."""
        if tier.spec.spill != "drain":
            return None
        drain = self._drains.get(tier)
        return len(tier.contents) if drain is None else drain.left_blocks

    def target(self, source: TierState) -> TierState | None:
        """Return the tier that takes the blocks: the next one in the order, or else the first one."""
        takers = [tier for tier in self._catalog.tiers if tier.spec.spill not in TAKES_NOTHING]
        after = (tier for tier in takers if tier.spec.order > source.spec.order)
        return next(after, next(iter(takers), None))

    def step(self, now: float) -> None:
        """Do the next part of each drain."""
        for source, drain in list(self._drains.items()):
            gone = source not in self._catalog.tiers or source.spec.spill != "drain"
            if gone or self.target(source) is not drain.target:
                self._table.end(drain.copies)
                del self._drains[source]
        for source in self._catalog.tiers:
            target = self.target(source) if source.spec.spill == "drain" else None
            if target is not None:
                self._step(self._drains.setdefault(source, TierDrain(source, target, now)), now)

    def _step(self, drain: TierDrain, now: float) -> None:
        for name, _, _ in self._table.take_ended(drain.copies):
            if name in drain.source.contents.entries and name not in drain.target.contents.entries:
                drain.refused_blocks += 1
        numbered = drain.source.contents.numbered
        ready = drain.source.serves and drain.target.serves and drain.source.listed_blocks is None
        if ready and now >= drain.begins_at:
            end = min(len(numbered), drain.at + STEP_BLOCKS)
            while drain.at < end and len(drain.copies.copying) < MAX_OUTSTANDING:
                entry = numbered[drain.at]
                drain.at += 1
                if entry is not None and not self._is_elsewhere(entry.stored.name):
                    self._table.add(drain.copies, entry.stored.name)
            if drain.copies.copying:
                self._catalog.wake()
        drain.count(len(numbered) - drain.at)
        if ready and drain.at >= len(numbered) and not drain.copies.copying:
            drain.at, drain.refused_blocks, drain.begins_at = 0, 0, now + PASS_S

    def _is_elsewhere(self, name: BlockName) -> bool:
        """Return whether a tier that does not drain holds a block."""
        return any(tier.entry_of(name) is not None for tier in self._catalog.tiers if tier.spec.spill != "drain")

"""Proposes blocks of memory to tiers: new blocks, used ones, and those that are soon evicted, as their records say."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import islice

from dataplane.core.blocks.blocks import Block
from dataplane.core.eviction.victim_iterator import VictimIterator
from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.copies import Copies
from dataplane.core.tiering.jobs import JobReason

EVICT_AHEAD = 256
"""Number of blocks at the end of the eviction order that `look_ahead` examines."""
EVICT_ABOVE = 0.8
"""Fraction of the pool above which blocks that are soon evicted are copied to tiers with spill `evict`."""


class Spills:
    """Blocks of memory that tiers should hold."""

    def __init__(self, catalog: Catalog, copies: Copies) -> None:
        self._catalog, self._copies, self._pool = catalog, copies, catalog.pool

    def stored(self, blocks: Sequence[Block]) -> None:
        """Propose blocks that became READY."""
        self._wait(blocks, "commit")

    def used(self, block: Block) -> None:
        """Propose a block that was used for the first time since it was stored."""
        self._wait((block,), "second_touch")

    def step(self, now: float) -> None:
        """Propose blocks that are soon evicted, for tiers with spill `evict`."""
        pool = self._pool
        if not any(tier.spec.spill == "evict" for tier in self._catalog.tiers):
            return
        if pool.used_bytes < EVICT_ABOVE * pool.slabs.capacity_bytes:
            return
        search = VictimIterator(pool.order, pool.table.blocks, None, now)
        with closing(search.candidates()) as candidates:
            soon = list(islice(candidates, EVICT_AHEAD))
        self._wait(soon, "evict")

    def _wait(self, blocks: Sequence[Block], why: str) -> None:
        targets = [tier for tier in self._catalog.tiers if tier.spec.spill == why]
        for tier in targets:
            self._copies.propose(tier, JobReason.SPILL, blocks)
        if targets:
            self._catalog.wake()

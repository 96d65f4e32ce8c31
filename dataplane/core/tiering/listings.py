"""Listings of shared tiers: the blocks that this node wrote before it started.

A listing finds blocks in the order of their names, and charges them at once, so that usage and quotas count them. At
the end, the blocks are sorted by age, which gives the order in which they are evicted. Until then, nothing is evicted:
see `TierState.listed_blocks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from dataplane.core.tiering.contents import LISTED_AT
from dataplane.protocol.stored_blocks import CODEC_NAMES, StoredBlock
from dataplane.protocol.tiers import Compress

if TYPE_CHECKING:
    from dataplane.core.tiering.tier_state import TierState
    from dataplane.core.tiering.tiering import Tiering

SORTED_AT_ONCE = 128
MAX_AHEAD_NS = 24 * 3600 * 10**9
"""Blocks whose sequence is further in the future are not counted, because the node continues with a higher sequence
than all counted blocks have."""


class Listings:
    """Adds the blocks that listings of shared tiers find."""

    def __init__(self, tiering: Tiering) -> None:
        self._tiering = tiering

    def begin(self, tier: TierState) -> None:
        """Begin to list a tier, before it serves."""
        tier.listed_blocks = 0

    def found(self, tier: TierState, blocks: Iterable[StoredBlock], now: float) -> list[StoredBlock]:
        """Add the blocks that this node wrote. Return the blocks that were not known before."""
        assert tier.listed_blocks is not None
        tiering = self._tiering
        newest = int(now * 1e9) + MAX_AHEAD_NS
        added: list[StoredBlock] = []
        for listed in blocks:
            stored = listed
            if (
                stored.writer != tiering.writer
                or stored.sequence > newest
                or stored.length > tiering.pool.slabs.capacity_bytes  # no block of this node is that large
                or stored.name in tier.contents.entries
                or stored.name in tier.forgotten
                or tiering.spills.is_under_way(tier, stored.name)
            ):
                continue
            nbytes, encoding = stored.length, stored.encoding
            compress: Compress = "none"
            if encoding is not None:
                if encoding.codec not in CODEC_NAMES:
                    continue  # a later release wrote it
                nbytes, compress = encoding.nbytes, CODEC_NAMES[encoding.codec]
                stored = msgspec.structs.replace(stored, encoding=None)
            entry = tier.contents.add(stored, tier.stored_size(nbytes), LISTED_AT, compress)
            tiering.pinned_chains.mark(tier, entry, LISTED_AT)
            tiering.existence.stored(stored.name)
            added.append(stored)
        tier.listed_blocks += len(added)
        tiering.list_blocks(tier, added)
        return added

    def ending(
        self, tier: TierState, newest_first: Sequence[StoredBlock], dead: Sequence[StoredBlock]
    ) -> Iterator[None]:
        """End a listing, some blocks in each step: sort the blocks that it found into the order of eviction, and delete
        the dead ones. Later, blocks that exceed the budget are evicted."""
        tiering, contents = self._tiering, tier.contents
        if newest_first:
            tiering.pool.sweeps.continue_after(newest_first[0].sequence)
        for at in range(0, len(newest_first), SORTED_AT_ONCE):
            for stored in newest_first[at : at + SORTED_AT_ONCE]:
                contents.put_first(stored)
            yield
        for at in range(0, len(dead), SORTED_AT_ONCE):
            tiering.forget_listed(tier, dead[at : at + SORTED_AT_ONCE])
            yield
        tier.listed_blocks = None
        tier.forgotten.clear()
        # The mover brings the tier back within its budget, as after the budget was lowered.
        contents.budget_bytes = max(contents.budget_bytes, contents.used_bytes)
        tiering.share_out()

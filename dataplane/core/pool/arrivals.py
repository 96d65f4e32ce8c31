"""Blocks that were loaded from tiers and not acquired since. The first acquire of a block counts for its tier."""

from __future__ import annotations

from collections.abc import Iterable

from dataplane.core.blocks.blocks import Block
from dataplane.core.tenants.usage import UsageTable


class TierArrivals:
    """The blocks, and the tiers that they came from. It is empty on a node without tiers."""

    def __init__(self, usage: UsageTable) -> None:
        self._usage = usage
        self._tiers: dict[Block, str] = {}

    def __len__(self) -> int:
        return len(self._tiers)

    def add(self, blocks: Iterable[Block], tier: str) -> None:
        """Note blocks that were loaded from the tier of this name."""
        self._tiers.update(dict.fromkeys(blocks, tier))

    def acquired(self, first: Block, blocks: Iterable[Block]) -> None:
        """Count the blocks of an acquired chain that a tier served, for the tenant and space of its first block, which
        the whole chain counts for."""
        for block in blocks:
            tier = self._tiers.pop(block, None)
            if tier is not None:
                self._usage.served_by_tier(first.tenant, first.space, block.nbytes, tier)

    def removed(self, blocks: Iterable[Block]) -> None:
        """Forget blocks that are removed from memory."""
        for block in blocks:
            self._tiers.pop(block, None)

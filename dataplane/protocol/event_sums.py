"""Sums of block traffic: events about the same tenant and reason are merged into one that counts all their blocks."""

from typing import get_args

import msgspec

from dataplane.protocol.event import name_of
from dataplane.protocol.events import BlocksEvicted, BlocksRefused, BlocksStored, ReservationAborted

BlockTraffic = BlocksStored | BlocksEvicted | BlocksRefused | ReservationAborted
"""All subclasses of `BlockEvent`."""
BLOCK_TRAFFIC: tuple[type[BlockTraffic], ...] = get_args(BlockTraffic)


class EventSums:
    """Sums since the last `take`, by node."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], tuple[str, BlockTraffic]] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, event: BlockTraffic, node: str = "") -> None:
        group = (node, name_of(event), event.tenant, getattr(event, "reason", ""), getattr(event, "space", ""))
        existing = self._sums.get(group)
        if existing is None:
            self._sums[group] = (node, msgspec.structs.replace(event))
            return
        total = existing[1]
        total.at = event.at
        total.blocks += event.blocks
        total.bytes += event.bytes
        total.events += event.events
        if not (isinstance(total, BlocksEvicted) or isinstance(event, BlocksEvicted)):
            total.client = total.client if total.client == event.client else 0

    def take(self) -> list[tuple[str, BlockTraffic]]:
        """Return the sums with their nodes, and reset them."""
        sums = list(self._sums.values())
        self._sums.clear()
        return sums

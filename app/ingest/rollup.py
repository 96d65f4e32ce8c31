"""Busy events summed up: a node under load stores and evicts thousands of times a second, and nobody reads that.

Events of one kind about one tenant (and reason) become one fact per window, with sums and the number of events.
"""

from typing import Any

import msgspec

from app.observe.facts import FactHub
from dataplane.protocol.events import (
    BlocksEvicted,
    BlocksRefused,
    BlocksStored,
    Event,
    ReservationAborted,
    name_of,
)

BUSY = (BlocksStored, BlocksEvicted, BlocksRefused, ReservationAborted)
_SUMMED = ("blocks", "bytes")
_DROPPED = ("at", "client", *_SUMMED)


class Rollup:
    """Sums since the last `flush`."""

    def __init__(self, hub: FactHub) -> None:
        self._hub = hub
        self._sums: dict[tuple[str, ...], dict[str, Any]] = {}

    def add(self, node: str, event: Event) -> bool:
        """Take a busy event; False when it is not one and should be told as it is."""
        if not isinstance(event, BUSY):
            return False
        fields = msgspec.structs.asdict(event)
        kept = {name: value for name, value in fields.items() if name not in _DROPPED}
        group = (node, name_of(event), *map(str, kept.values()))
        sums = self._sums.setdefault(group, {**kept, "blocks": 0, "bytes": 0, "events": 0, "at": event.at})
        sums["blocks"] += event.blocks
        sums["bytes"] += event.bytes
        sums["events"] += 1
        sums["at"] = event.at
        return True

    def flush(self) -> None:
        for (node, name, *_), fields in self._sums.items():
            self._hub.publish(name, node, **fields)
        self._sums.clear()

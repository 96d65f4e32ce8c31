"""Aggregation of frequent events: a busy node stores and evicts thousands of times per second.

Events of one kind for one tenant (and reason) become one event per window, with sums and the number of events.
"""

from typing import Any

import msgspec

from app.observe.events import EventBus
from dataplane.protocol.events import (
    BlocksEvicted,
    BlocksRefused,
    BlocksStored,
    Event,
    ReservationAborted,
    name_of,
)

FREQUENT = (BlocksStored, BlocksEvicted, BlocksRefused, ReservationAborted)
_SUMMED = ("blocks", "bytes")
_DROPPED = ("at", "client", *_SUMMED)


class Rollup:
    """Sums since the last `flush`."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._sums: dict[tuple[str, ...], dict[str, Any]] = {}

    def add(self, node: str, event: Event) -> bool:
        """Add a frequent event. Return False for any other event, which is then published individually."""
        if not isinstance(event, FREQUENT):
            return False
        fields = msgspec.structs.asdict(event)
        group_fields = {name: value for name, value in fields.items() if name not in _DROPPED}
        group = (node, name_of(event), *map(str, group_fields.values()))
        sums = self._sums.setdefault(
            group, {**group_fields, "blocks": 0, "bytes": 0, "events": 0, "at": event.at}
        )
        sums["blocks"] += event.blocks
        sums["bytes"] += event.bytes
        sums["events"] += 1
        sums["at"] = event.at
        return True

    def flush(self) -> None:
        for (node, name, *_), fields in self._sums.items():
            self._bus.publish(name, node, **fields)
        self._sums.clear()

"""Aggregation of block traffic: a busy node stores and evicts thousands of times per second.

Events of one kind for one tenant (and reason) become one event per window, with sums and the number of events.
"""

from app.observe.events import EventBus
from dataplane.protocol.event_sums import BLOCK_TRAFFIC, EventSums
from dataplane.protocol.events import Event


class Rollup:
    """Sums since the last `flush`."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._sums = EventSums()

    def add(self, node: str, event: Event) -> bool:
        """Add block traffic. Return False for any other event, which is then published individually."""
        if not isinstance(event, BLOCK_TRAFFIC):
            return False
        self._sums.add(event, node)
        return True

    def flush(self) -> None:
        for node, event in self._sums.take():
            self._bus.publish(event, node=node, at=event.at)

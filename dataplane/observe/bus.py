"""Event bus: delivers events to subscribers; bounded, never blocks, and counts dropped events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import structlog

from dataplane.protocol.events import Event

Subscriber = Callable[[Event], None]
MAX_QUEUED = 65_536

log = structlog.stdlib.get_logger()


class EventFanout:
    """Queues events, up to a limit, until `deliver`. An exception of a subscriber is counted, and delivery
    continues."""

    def __init__(self) -> None:
        self._queue: deque[Event] = deque()
        self._subscribers: list[Subscriber] = []
        self.dropped = 0
        self.subscriber_errors = 0

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    def publish(self, events: Iterable[Event]) -> None:
        """Queue events; events beyond the limit are dropped and counted."""
        for event in events:
            if len(self._queue) >= MAX_QUEUED:
                self.dropped += 1
            else:
                self._queue.append(event)

    def deliver(self) -> None:
        """Deliver every queued event to every subscriber."""
        while self._queue:
            event = self._queue.popleft()
            for subscriber in self._subscribers:
                try:
                    subscriber(event)
                except Exception:
                    self.subscriber_errors += 1
                    log.exception("bus.subscriber_failed", event_name=type(event).__name__)

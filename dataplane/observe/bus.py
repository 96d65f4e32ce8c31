"""Event bus: delivers events to subscribers; bounded, never blocks, and counts dropped events by name.

Block traffic beyond a rate is summed up over a second, and dropped before all other events when the queue is full;
refusals last of it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from math import inf

import structlog

from dataplane.protocol.event import name_of
from dataplane.protocol.event_sums import BLOCK_TRAFFIC, BlockTraffic, EventSums
from dataplane.protocol.events import Event

Subscriber = Callable[[Event], None]
MAX_QUEUED = 65_536
RESERVED = 8_192
"""Number of queue entries that block traffic may not use; refusals may use half of them."""
SUM_S = 1.0
MAX_SUMS = 4_096

log = structlog.stdlib.get_logger()


class EventFanout:
    """Queues events, up to a limit, until `deliver`. An exception of a subscriber is counted, and delivery
    continues."""

    def __init__(self, block_events_per_s: float) -> None:
        """Further events of block traffic within a second are summed up by tenant and reason."""
        self._block_events_per_s = block_events_per_s
        self._queue: deque[Event] = deque()
        self._sums = EventSums()
        self._window_ends = -inf
        self._passed = 0
        """Events of block traffic that were queued individually in this window."""
        self._subscribers: list[Subscriber] = []
        self.dropped: Counter[str] = Counter()
        """Dropped events by name."""

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    def publish(self, event: Event) -> None:
        """Queue an event; events beyond the limit are dropped and counted."""
        if not isinstance(event, BLOCK_TRAFFIC):
            self._add(event, MAX_QUEUED)
            return
        if event.at >= self._window_ends:
            self._end_window(event.at)
        if self._passed < self._block_events_per_s:
            self._passed += 1
            self._add(event, _queue_limit(event))
            return
        self._sums.add(event)
        if len(self._sums) >= MAX_SUMS:
            self._add_sums()

    def deliver(self, now: float = inf) -> None:
        """Deliver every queued event to every subscriber, and the sums of a window that has ended."""
        if self._sums and now >= self._window_ends:
            self._add_sums()
        while self._queue:
            event = self._queue.popleft()
            for subscriber in self._subscribers:
                try:
                    subscriber(event)
                except Exception:
                    log.exception("bus.subscriber_failed", event_name=type(event).__name__)

    def _end_window(self, now: float) -> None:
        self._add_sums()
        self._window_ends, self._passed = now + SUM_S, 0

    def _add_sums(self) -> None:
        for _, event in self._sums.take():
            self._add(event, _queue_limit(event))

    def _add(self, event: Event, limit: int) -> None:
        if len(self._queue) >= limit:
            self.dropped[name_of(event)] += 1
        else:
            self._queue.append(event)


def _queue_limit(event: BlockTraffic) -> int:
    """Return the number of queue entries up to which an event of block traffic may be queued."""
    return MAX_QUEUED - (RESERVED // 2 if event.stored else RESERVED)

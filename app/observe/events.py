"""The event bus: reports of nodes, changes of records, answers to pushes.

Publishing never blocks. Each subscriber has a bounded backlog; one that does not keep up loses its oldest events, and
the bus counts them. `touch` marks the overview as changed without publishing an event.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

BACKLOG = 256
RECENT = 20


class LarderEvent(msgspec.Struct, frozen=True):
    """An event."""

    name: str
    """Event name, e.g. `engine.attached`, `quota.changed`, `push.nacked`."""
    at: float
    """Unix seconds."""
    seq: int
    """Sequence number of the event since the start of this management plane."""
    node: str
    """Node on which it happened, or that was changed; empty for the management plane."""
    fields: dict[str, Any]
    actor: str = ""
    """Who caused it, as in the audit log; empty if no request did."""


class Subscription:
    """The backlog of one subscriber. `closed` becomes true when the bus closes."""

    def __init__(self) -> None:
        self._backlog: deque[LarderEvent] = deque(maxlen=BACKLOG)
        self._signal = asyncio.Event()
        self.dropped = 0
        self.closed = False

    def offer(self, event: LarderEvent | None) -> None:
        if event is not None:
            self.dropped += len(self._backlog) == BACKLOG
            self._backlog.append(event)
        self._signal.set()

    def take(self) -> list[LarderEvent]:
        """Return and remove all events of the backlog."""
        events = list(self._backlog)
        self._backlog.clear()
        return events

    async def wait(self, timeout_s: float) -> bool:
        """Wait until an event arrives or the bus closes. Return False after `timeout_s` seconds without either."""
        try:
            async with asyncio.timeout(max(timeout_s, 0.001)):
                await self._signal.wait()
        except TimeoutError:
            return False
        self._signal.clear()
        return True


class EventBus:
    """Delivers published events to all subscribers."""

    def __init__(self) -> None:
        self._subscribers: set[Subscription] = set()
        self._seq = 0
        self._closed = False
        self.version = 0
        """Counter of events and touches: an unchanged value means an unchanged overview."""
        self.dropped = 0
        self.recent: deque[LarderEvent] = deque(maxlen=RECENT)
        self.ring: deque[LarderEvent] = deque(maxlen=BACKLOG)
        """Latest events, for subscribers that reconnect."""
        self.boot = os.urandom(4).hex()
        """Random id of this process, because sequence numbers are valid only within one process."""
        self.keep: Callable[[LarderEvent], None] = lambda event: None
        """Callback that stores each event of this process; it must not block or raise."""

    def publish(
        self, name: str, node: str = "", actor: str = "", /, *, at: float | None = None, **fields: Any
    ) -> None:
        """Publish an event of this management plane and store it."""
        self.keep(self._tell(name, node, actor, at, fields))

    def relay(self, name: str, node: str, at: float, fields: dict[str, Any], actor: str = "") -> None:
        """Publish an event of another management plane, which stores it."""
        self._tell(name, node, actor, at, fields)

    def _tell(
        self, name: str, node: str, actor: str, at: float | None, fields: dict[str, Any]
    ) -> LarderEvent:
        self._seq += 1
        event = LarderEvent(name, time.time() if at is None else at, self._seq, node, fields, actor)
        self.recent.append(event)
        self.ring.append(event)
        self._offer(event)
        return event

    def after(self, boot: str, seq: int) -> list[LarderEvent]:
        """Return the events of the ring that follow `seq`; the whole ring if `boot` is the id of another process."""
        return [event for event in self.ring if boot != self.boot or event.seq > seq]

    def touch(self) -> None:
        """Mark the overview as changed. This wakes no subscriber: nodes report so often that subscribers would be awake
        all the time."""
        self.version += 1

    def _offer(self, event: LarderEvent) -> None:
        self.version += 1
        for subscriber in self._subscribers:
            subscriber.offer(event)

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        subscriber = Subscription()
        subscriber.closed = self._closed
        self._subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)
            self.dropped += subscriber.dropped

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def listeners(self) -> int:
        return len(self._subscribers)

    def close(self) -> None:
        """End every subscription, so that open streams do not delay the shutdown."""
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.closed = True
            subscriber.offer(None)

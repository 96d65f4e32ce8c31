"""The event bus: reports of nodes, changes of records, results of pushes.

Publishing never blocks. Each subscriber has a bounded backlog; one that does not keep up loses block traffic first,
refusals last of it, and then its oldest events, and the bus counts them by name. `touch` marks the overview as changed
without publishing an event.
"""

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from app.observe.catalogue import CATALOGUE, DROPPED_FIRST, PlaneEvent
from dataplane.protocol.event import name_of
from dataplane.protocol.events import Event

BACKLOG = 256
RECENT = 20


class LarderEvent(msgspec.Struct, frozen=True):
    """An event."""

    name: str
    """Event name, e.g. `engine.attached`, `quota.created`, `push.nacked`."""
    at: float
    """Unix seconds."""
    seq: int
    """Sequence number of the event since the start of this management plane."""
    node: str
    """Node on which it happened, or that was changed; empty for the management plane."""
    fields: dict[str, Any]
    actor: str = ""
    """Who caused it, as in the audit log; empty if no request did."""


class EventQueue:
    """A bounded queue of events, oldest first. When it is full, it drops block traffic before other events, refusals
    last of it, and counts by name what it drops."""

    def __init__(self, limit: int, dropped: Counter[str], *, keep_oldest: bool) -> None:
        """`keep_oldest`: without block traffic, drop the newest event of a full queue, not the oldest."""
        self._limit = limit
        self._dropped = dropped
        self._victim = -1 if keep_oldest else 0
        self._events: deque[LarderEvent] = deque()

    def __len__(self) -> int:
        return len(self._events)

    def push(self, event: LarderEvent) -> None:
        self._events.append(event)
        if len(self._events) > self._limit:
            traffic = (at for names in DROPPED_FIRST for at, each in enumerate(self._events) if each.name in names)
            victim = next(traffic, self._victim)
            name = self._events[victim].name
            self._dropped[name if name in CATALOGUE else "other"] += 1
            del self._events[victim]

    def take(self, most: int | None = None) -> list[LarderEvent]:
        """Return and remove the oldest events, at most `most`."""
        return [self._events.popleft() for _ in range(min(len(self._events), most or len(self._events)))]

    def put_back(self, events: list[LarderEvent]) -> None:
        """Put events that `take` returned back at the front of the queue."""
        self._events.extendleft(reversed(events))


class Subscription:
    """The backlog of one subscriber. `closed` becomes true when the bus closes."""

    def __init__(self, dropped: Counter[str]) -> None:
        """`dropped` counts the events that are lost, by name."""
        self._backlog = EventQueue(BACKLOG, dropped, keep_oldest=False)
        self._signal = asyncio.Event()
        self.closed = False

    def offer(self, event: LarderEvent | None) -> None:
        if event is not None:
            self._backlog.push(event)
        self._signal.set()

    def take(self) -> list[LarderEvent]:
        """Return and remove all events of the backlog."""
        return self._backlog.take()

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

    def __init__(self, keep: Callable[[LarderEvent], None], watch: Callable[[LarderEvent], None]) -> None:
        """`keep` stores each event of this process, and `watch` reads each event; they must not block or raise."""
        self._keep = keep
        self._watch = watch
        self._subscribers: set[Subscription] = set()
        self._seq = 0
        self._closed = False
        self.version = 0
        """Number of events and touches: as long as it is unchanged, so is the overview."""
        self.dropped: Counter[str] = Counter()
        """Events that slow subscribers lost, by name."""
        self.recent: deque[LarderEvent] = deque(maxlen=RECENT)
        self.ring: deque[LarderEvent] = deque(maxlen=BACKLOG)
        """Latest events, for subscribers that reconnect."""
        self.boot = os.urandom(4).hex()
        """Random id of this process, because sequence numbers are valid only within one process."""

    def publish(self, event: PlaneEvent | Event, *, node: str = "", actor: str = "", at: float | None = None) -> None:
        """Publish an event of this management plane, or one that a node sent to it, and store it."""
        self._keep(self._deliver(name_of(event), node, actor, at, fields_of(event)))

    def relay(self, name: str, node: str, at: float, fields: dict[str, Any], actor: str = "") -> None:
        """Publish an event of another management plane, which stores it."""
        self._deliver(name, node, actor, at, fields)

    def _deliver(self, name: str, node: str, actor: str, at: float | None, fields: dict[str, Any]) -> LarderEvent:
        self._seq += 1
        event = LarderEvent(name, time.time() if at is None else at, self._seq, node, fields, actor)
        self.recent.append(event)
        self.ring.append(event)
        self._watch(event)
        self._offer(event)
        return event

    def after(self, boot: str, seq: int) -> list[LarderEvent]:
        """Return the events of the ring that follow `seq`; the whole ring if `boot` is the id of another process."""
        return [event for event in self.ring if boot != self.boot or event.seq > seq]

    def touch(self) -> None:
        """Mark the overview as changed. Does not wake subscribers, because nodes report several times a second."""
        self.version += 1

    def _offer(self, event: LarderEvent) -> None:
        self.version += 1
        for subscriber in self._subscribers:
            subscriber.offer(event)

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        subscriber = Subscription(self.dropped)
        subscriber.closed = self._closed
        self._subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)

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


def fields_of(event: PlaneEvent | Event) -> dict[str, Any]:
    """Return the fields of an event, without its node and time, which the bus adds."""
    fields = msgspec.structs.asdict(event)
    fields.pop("at", None)
    fields.pop("node", None)
    return fields

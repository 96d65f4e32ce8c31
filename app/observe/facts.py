"""Facts for people who watch: what nodes reported, what records changed, how pushes were answered.

A bounded fan-out that never blocks who publishes: a subscriber that does not keep up loses its oldest facts, and they
are counted. `touch` says that the overview is no longer what it was without being a fact of its own.
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


class Fact(msgspec.Struct, frozen=True):
    """Something that happened."""

    name: str
    """e.g. `engine.attached`, `quota.changed`, `push.nacked`."""
    at: float
    """Unix seconds."""
    seq: int
    """Counts the facts of this management plane since its start."""
    node: str
    """Node it happened on; empty for the management plane."""
    fields: dict[str, Any]


class Subscriber:
    """One listener's backlog. Ends when the hub closes."""

    def __init__(self) -> None:
        self._backlog: deque[Fact] = deque(maxlen=BACKLOG)
        self._signal = asyncio.Event()
        self.dropped = 0
        self.closed = False

    def offer(self, fact: Fact | None) -> None:
        if fact is not None:
            self.dropped += len(self._backlog) == BACKLOG
            self._backlog.append(fact)
        self._signal.set()

    def take(self) -> list[Fact]:
        """Everything that waits."""
        facts = list(self._backlog)
        self._backlog.clear()
        return facts

    async def wait(self, timeout_s: float) -> bool:
        """Until something was offered or the hub closed; False when the time was over before."""
        try:
            async with asyncio.timeout(max(timeout_s, 0.001)):
                await self._signal.wait()
        except TimeoutError:
            return False
        self._signal.clear()
        return True


class FactHub:
    """Where facts are published and subscribed to."""

    def __init__(self) -> None:
        self._subscribers: set[Subscriber] = set()
        self._seq = 0
        self._closed = False
        self.version = 0
        """Grows with every fact and touch: equal means that the overview is still what it was."""
        self.dropped = 0
        self.recent: deque[Fact] = deque(maxlen=RECENT)
        self.ring: deque[Fact] = deque(maxlen=BACKLOG)
        """What a listener that was away for a moment can still get."""
        self.boot = os.urandom(4).hex()
        """Of this process: sequence numbers of another one mean nothing here."""
        self.keep: Callable[[Fact], None] = lambda fact: None
        """Called with every fact of this process; must not block or raise."""

    def publish(self, name: str, node: str = "", /, *, at: float | None = None, **fields: Any) -> None:
        """Something happened here."""
        self.keep(self._tell(name, node, at, fields))

    def relay(self, name: str, node: str, at: float, fields: dict[str, Any]) -> None:
        """Something happened at another management plane, which keeps it."""
        self._tell(name, node, at, fields)

    def _tell(self, name: str, node: str, at: float | None, fields: dict[str, Any]) -> Fact:
        self._seq += 1
        fact = Fact(name, time.time() if at is None else at, self._seq, node, fields)
        self.recent.append(fact)
        self.ring.append(fact)
        self._offer(fact)
        return fact

    def after(self, boot: str, seq: int) -> list[Fact]:
        """Of what is still there, all that came after a fact; everything, when that was of another process."""
        return [fact for fact in self.ring if boot != self.boot or fact.seq > seq]

    def touch(self) -> None:
        """The overview is another one. Wakes nobody: nodes tell so much that all would be awake all the time."""
        self.version += 1

    def _offer(self, fact: Fact) -> None:
        self.version += 1
        for subscriber in self._subscribers:
            subscriber.offer(fact)

    @contextmanager
    def subscribe(self) -> Iterator[Subscriber]:
        subscriber = Subscriber()
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
        """End every subscription, so that open streams do not keep the process alive."""
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.closed = True
            subscriber.offer(None)

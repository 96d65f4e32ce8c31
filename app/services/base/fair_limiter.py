"""Limits concurrent work fairly among callers: no caller takes all turns or fills the queue."""

import asyncio
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.errors import TooManyRequests


@dataclass(frozen=True)
class Bounds:
    each_at_once: int
    """Turns of one caller at the same time; a number below `at_once` leaves one for another caller."""
    at_once: int = sys.maxsize
    """Turns that may run at the same time."""
    waiting: int = 0
    each_waiting: int = 0


class FairLimiter:
    """Grants turns round-robin over callers, and in the order of arrival within a caller. `what` is the plural of the
    limited work, for messages."""

    def __init__(self, resource: str, bounds: Bounds) -> None:
        self._resource = resource
        self._bounds = bounds
        self._running: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Waiting turns by caller; the caller whose turn is next comes first."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def callers(self) -> int:
        """Number of callers that have at least one turn."""
        return len(self._running)

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it for the duration of the block. Raises TooManyRequests."""
        if not self.begin(caller):
            await self._wait(caller)
        try:
            yield
        finally:
            self.end(caller)

    def begin(self, caller: str) -> bool:
        """Take a turn if one is free for this caller, and return whether one was; `end` must follow."""
        # A caller that already waits has as many turns as one caller may have, or none is free.
        if caller in self._queues or not self._may(caller):
            return False
        self._running[caller] += 1
        return True

    async def _wait(self, caller: str) -> None:
        queued = len(self._queues.get(caller, ()))
        if queued >= self._bounds.each_waiting:
            raise TooManyRequests(f"{queued} {self._resource} of yours are waiting already; try again in a moment")
        if self.waiting >= self._bounds.waiting:
            raise TooManyRequests(f"{self.waiting} {self._resource} are waiting already; try again in a moment")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn was granted at the same moment
                self.end(caller)
            elif turn in self._queues.get(caller, ()):
                self._take(caller, turn)
            raise

    def _may(self, caller: str) -> bool:
        return self._running.total() < self._bounds.at_once and self._running[caller] < self._bounds.each_at_once

    def _take(self, caller: str, turn: asyncio.Future[None]) -> None:
        """Remove a turn from the queue, and move its caller behind the others."""
        self._queues[caller].remove(turn)
        if self._queues[caller]:
            self._queues.move_to_end(caller)
        else:
            del self._queues[caller]

    def end(self, caller: str) -> None:
        """Give a turn back, and pass it on to the next caller."""
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        while (follower := next((name for name in self._queues if self._may(name)), None)) is not None:
            turn = self._queues[follower][0]
            self._take(follower, turn)
            if not turn.cancelled():  # else the waiting task was cancelled and is about to notice
                self._running[follower] += 1
                turn.set_result(None)

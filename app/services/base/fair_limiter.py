"""Limits concurrent work fairly among callers: no caller takes all turns or fills the queue."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    at_once: int
    """Turns that may run at the same time."""
    each_at_once: int
    """Turns of one caller at the same time; a number below `at_once` leaves one for another caller."""
    waiting: int
    each_waiting: int


class LimiterFull(Exception):
    """The queue is full. `waiting` is its length; `own`: only the caller's own part is full."""

    def __init__(self, waiting: int, *, own: bool) -> None:
        super().__init__(f"{waiting} wait already")
        self.waiting = waiting
        self.own = own


class FairLimiter:
    """Grants turns round-robin over callers, and in the order of arrival within a caller."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._running: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Waiting turns by caller; the caller whose turn is next comes first."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """Hold a turn for the duration of the block. Raises LimiterFull."""
        await self._begin(who)
        try:
            yield
        finally:
            self._end(who)

    async def _begin(self, who: str) -> None:
        # A caller that already waits has as many turns as one caller may have, or none is free.
        if who not in self._queues and self._may(who):
            self._running[who] += 1
            return
        own = len(self._queues.get(who, ()))
        if own >= self._bounds.each_waiting:
            raise LimiterFull(own, own=True)
        if self.waiting >= self._bounds.waiting:
            raise LimiterFull(self.waiting, own=False)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(who, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn was granted at the same moment
                self._end(who)
            elif turn in self._queues.get(who, ()):
                self._take(who, turn)
            raise

    def _may(self, who: str) -> bool:
        return self._running.total() < self._bounds.at_once and self._running[who] < self._bounds.each_at_once

    def _take(self, who: str, turn: asyncio.Future[None]) -> None:
        """Remove a turn from the queue, and move its caller behind the others."""
        self._queues[who].remove(turn)
        if self._queues[who]:
            self._queues.move_to_end(who)
        else:
            del self._queues[who]

    def _end(self, who: str) -> None:
        self._running[who] -= 1
        if not self._running[who]:
            del self._running[who]
        while (follower := next((name for name in self._queues if self._may(name)), None)) is not None:
            turn = self._queues[follower][0]
            self._take(follower, turn)
            if not turn.cancelled():  # else the waiting task was cancelled and is about to notice
                self._running[follower] += 1
                turn.set_result(None)

"""Turns at something that few can do at once, shared out by caller: nobody takes all of them or fills the queue."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    at_once: int
    """Turns at one time."""
    each_at_once: int
    """Of these, those of one caller; fewer, so that there is one for somebody else."""
    waiting: int
    each_waiting: int


class Full(Exception):
    """No more can wait. Says how many wait already, and whether they are all of the caller's."""

    def __init__(self, waiting: int, *, own: bool) -> None:
        super().__init__(f"{waiting} wait already")
        self.waiting = waiting
        self.own = own


class FairTurns:
    """`turn` for each; who waits gets theirs by turns of callers, and within one of them in the order of asking."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._running: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Of callers who wait; whose turn is next comes first."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """Raises Full."""
        await self._begin(who)
        try:
            yield
        finally:
            self._end(who)

    async def _begin(self, who: str) -> None:
        # Whoever waits while a turn is free has all that one caller may have.
        if who not in self._queues and self._may(who):
            self._running[who] += 1
            return
        own = len(self._queues.get(who, ()))
        if own >= self._bounds.each_waiting:
            raise Full(own, own=True)
        if self.waiting >= self._bounds.waiting:
            raise Full(self.waiting, own=False)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(who, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came at the same moment
                self._end(who)
            elif turn in self._queues.get(who, ()):
                self._take(who, turn)
            raise

    def _may(self, who: str) -> bool:
        return self._running.total() < self._bounds.at_once and self._running[who] < self._bounds.each_at_once

    def _take(self, who: str, turn: asyncio.Future[None]) -> None:
        """Out of the queue; others have their turn before the next of the same caller."""
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
            if not turn.cancelled():  # else who waited for it is about to find out
                self._running[follower] += 1
                turn.set_result(None)

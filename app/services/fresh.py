"""Values of a slow source that are kept for a moment: at most so old, at most so many, and each is asked for once."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class Fresh(Generic[V]):
    """`get` answers with what the source said at most `seconds` ago; those who ask together share one question."""

    def __init__(self, load: Callable[[str], Awaitable[V]], seconds: float, most: int) -> None:
        self._load = load
        self._seconds = seconds
        self._most = most
        self._held: OrderedDict[str, tuple[V, float]] = OrderedDict()
        self._asked: dict[str, asyncio.Task[V]] = {}

    async def get(self, key: str) -> V:
        """Raises what the source raises; that is not kept."""
        held = self._held.get(key)
        if held is not None and time.monotonic() < held[1]:
            return held[0]
        task = self._asked.get(key)
        if task is None:
            task = asyncio.create_task(self._ask(key))
            task.add_done_callback(_taken)
            self._asked[key] = task
        return await asyncio.shield(task)  # the others wait for it, too

    def forget(self, key: str) -> None:
        """What was said, or is being said, is not true any more."""
        self._held.pop(key, None)
        self._asked.pop(key, None)

    async def _ask(self, key: str) -> V:
        # The value is as old as the question: what changed while the answer was on its way may not be in it.
        asked = time.monotonic()
        mine = asyncio.current_task()
        try:
            value = await self._load(key)
            if self._asked.get(key) is mine:
                self._held[key] = (value, asked + self._seconds)
                self._held.move_to_end(key)
                while len(self._held) > self._most:
                    self._held.popitem(last=False)
            return value
        finally:
            if self._asked.get(key) is mine:
                del self._asked[key]


def _taken(task: "asyncio.Task[V]") -> None:
    """An error that nobody waited for any more is no error of the loop."""
    if not task.cancelled():
        task.exception()

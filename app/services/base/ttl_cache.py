"""A cache for values of a slow source, bounded in age and number; concurrent requests for a key share one load."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class TTLCache(Generic[V]):
    """`get` returns a value that was loaded at most `seconds` ago; concurrent callers share one load."""

    def __init__(self, load: Callable[[str], Awaitable[V]], seconds: float, most: int) -> None:
        self._load = load
        self._seconds = seconds
        self._most = most
        self._held: OrderedDict[str, tuple[V, float]] = OrderedDict()
        self._asked: dict[str, asyncio.Task[V]] = {}

    async def get(self, key: str) -> V:
        """Return the value, loaded if necessary. Raises what `load` raises; errors are not cached."""
        held = self._held.get(key)
        if held is not None and time.monotonic() < held[1]:
            return held[0]
        task = self._asked.get(key)
        if task is None:
            task = asyncio.create_task(self._ask(key))
            task.add_done_callback(_taken)
            self._asked[key] = task
        return await asyncio.shield(task)  # other callers wait for the same task

    def forget(self, key: str) -> None:
        """Drop the value, and ignore the result of a load in progress."""
        self._held.pop(key, None)
        self._asked.pop(key, None)

    async def _ask(self, key: str) -> V:
        # The value is as old as the start of the load: changes during the load may be missing from it.
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
    """Retrieve the error of a load that no caller waits for, so that the event loop does not log it."""
    if not task.cancelled():
        task.exception()

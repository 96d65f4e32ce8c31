"""A cache for values of a slow source, bounded in age and number; concurrent requests for a key share one load."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from cachetools import TLRUCache

V = TypeVar("V")
FRESH_S = 1.0
"""Largest age of a value, in seconds."""


class LoadingCache(Generic[V]):
    """`get` returns a value that was loaded at most `seconds` ago."""

    def __init__(self, load: Callable[[str], Awaitable[V]], max_entries: int, seconds: float = FRESH_S) -> None:
        self._load = load
        # The value is as old as the start of the load: changes during the load may be missing from it.
        self._loaded: TLRUCache[str, tuple[V, float]] = TLRUCache(
            max_entries, lambda _, loaded, now: loaded[1] + seconds, time.monotonic
        )
        self._loads: dict[str, asyncio.Task[V]] = {}

    async def get(self, key: str) -> V:
        """Return the value, loaded if necessary. Raises what `load` raises; errors are not cached."""
        if (loaded := self._loaded.get(key)) is not None:
            return loaded[0]
        task = self._loads.get(key)
        if task is None:
            task = self._loads[key] = asyncio.create_task(self._run(key))
            task.add_done_callback(_retrieve_error)
        return await asyncio.shield(task)  # other callers wait for the same task

    def forget(self, key: str) -> None:
        """Drop the value, and ignore the result of a load in progress."""
        self._loaded.pop(key, None)
        self._loads.pop(key, None)

    async def _run(self, key: str) -> V:
        started, task = time.monotonic(), asyncio.current_task()
        try:
            value = await self._load(key)
            if self._loads.get(key) is task:
                self._loaded[key] = (value, started)
            return value
        finally:
            if self._loads.get(key) is task:
                del self._loads[key]


def _retrieve_error(task: "asyncio.Task[V]") -> None:
    """Retrieve the error of a load that no caller waits for, so that the event loop does not log it."""
    if not task.cancelled():
        task.exception()

"""Notify waiters that state has changed. Carries no payload: waiters read the state again."""

import asyncio
import time
from collections.abc import Callable


class ChangeSignal:
    """`notify` wakes all current waiters.

    Check the state, then wait, without an await in between. If the check itself awaits, read `count` before it and pass
    that value to `wait` as `since`, so that a notification in between is not lost.
    """

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()
        self.count = 0

    def notify(self) -> None:
        self.count += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_s: float, since: int | None = None) -> bool:
        """Return True if notified (also if notified since `since`), False on timeout."""
        if since is not None and since != self.count:
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            done, _ = await asyncio.wait({waiter}, timeout=max(timeout_s, 0))
        finally:
            self._waiters.discard(waiter)
        return bool(done)

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `holds()` is true, at most `timeout_s` seconds, and return its last result."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return False
            await self.wait(remaining_s)
        return True

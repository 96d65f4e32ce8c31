"""A wake-up for everyone who waits for a state to change. Carries nothing: look at the state again."""

import asyncio
import time
from collections.abc import Callable


class Pulse:
    """`beat` wakes all that wait now.

    Check the state first, then wait, without an await in between; where the check itself awaits, take `count` before
    it and wait `since` that: a beat in between is not lost.
    """

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()
        self.count = 0

    def beat(self) -> None:
        self.count += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_s: float, since: int | None = None) -> bool:
        """True when it beat (or had since then), False when the time was over."""
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
        """Wait until `holds()`, at most `timeout_s`; its last answer."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            await self.wait(left)
        return True

"""A wake-up for everyone who waits for a state to change. Carries nothing: look at the state again."""

import asyncio
import time
from collections.abc import Callable


class Pulse:
    """`beat` wakes all that wait now. Check the state first, then wait, without an await in between."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def beat(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_s: float) -> bool:
        """True when it beat, False when the time was over."""
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

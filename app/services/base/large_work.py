"""Work on large requests in a thread: one piece of work at a time, with callers taking turns.

A body of a million tokens takes tens of milliseconds of the interpreter and more memory than its bytes. Twenty of them
at once would keep every other request waiting, because threads that compute share one interpreter. The memory that such
work has used goes back to the system soon after the last piece of work; glibc alone would keep it.
"""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from app.services.base.fair_limiter import Bounds, FairLimiter
from app.services.base.yielding import in_thread
from dataplane.base.allocator import trim_memory

BOUNDS = Bounds(at_once=1, each_at_once=1, waiting=256, each_waiting=64)
TRIM_AFTER_S = 0.5
"""Time from the end of the last piece of work to the return of its memory; the request still holds the result."""
T = TypeVar("T")
P = ParamSpec("P")


class LargeWork:
    def __init__(self) -> None:
        self._limiter = FairLimiter("large requests", BOUNDS)
        self._trim: asyncio.TimerHandle | None = None

    async def run(self, share: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a thread when it is the caller's turn (`Principal.share`), and return its result. Raises
        TooManyRequests."""
        try:
            async with self._limiter.turn(share):
                return await in_thread(work, *args, **kwargs)
        finally:
            self._trim_soon()

    def _trim_soon(self) -> None:
        if self._trim is not None:
            self._trim.cancel()
        loop = asyncio.get_running_loop()
        self._trim = loop.call_later(TRIM_AFTER_S, lambda: loop.run_in_executor(None, trim_memory))

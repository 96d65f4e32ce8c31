"""Work on large requests in a thread: one piece of work at a time, with callers taking turns.

A body with the most token ids takes a dozen milliseconds of the interpreter. Twenty of them at once would keep every
other request waiting, because threads that compute share one interpreter.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from app.services.base.fair_limiter import Bounds, FairLimiter
from app.services.base.yielding import in_thread

BOUNDS = Bounds(at_once=1, each_at_once=1, waiting=256, each_waiting=64)
T = TypeVar("T")
P = ParamSpec("P")


class LargeWork:
    def __init__(self) -> None:
        self._limiter = FairLimiter("large requests", BOUNDS)

    async def run(self, share: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a thread when it is the caller's turn (`Principal.share`), and return its result. Raises
        TooManyRequests."""
        async with self._limiter.turn(share):
            return await in_thread(work, *args, **kwargs)

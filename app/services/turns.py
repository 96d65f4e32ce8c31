"""How a thread with much to do lets others have the interpreter, and ends when nobody waits for it any more.

A thread that computes gives it up when somebody has waited 5 ms. A request is answered in a dozen steps that each need
it again, so beside such a thread it takes a dozen times 5 ms; with pauses it takes what it always takes. Nobody stops a
thread from outside: at its pauses it looks whether it is still wanted.
"""

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

PAUSE_S = 0.0001
"""Long enough for who waits to wake up."""
T = TypeVar("T")
P = ParamSpec("P")


class Abandoned(Exception):
    """The work was given up half way: nobody waits for what would come of it."""


class _Wanted:
    """Whether somebody waits for a thread's work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = False
        self._calls: list[Callable[[], object]] = []

    def check(self) -> None:
        """Raises Abandoned."""
        if self._over:
            raise Abandoned

    def at_end(self, call: Callable[[], object]) -> None:
        """Called when the work is given up; at once when it is already."""
        with self._lock:
            self._calls.append(call)
            over = self._over
        if over:
            call()

    def end(self) -> None:
        with self._lock:
            self._over = True
            calls = list(self._calls)
        for call in calls:
            call()


_wanted: contextvars.ContextVar[_Wanted | None] = contextvars.ContextVar("wanted", default=None)


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`asyncio.to_thread`, but when who waits is cancelled, the work is given up at its next pause, and this ends when
    the work has."""
    wanted, context = _Wanted(), contextvars.copy_context()
    context.run(_wanted.set, wanted)

    def run() -> T:
        wanted.check()  # it may have waited long for a thread
        return work(*args, **kwargs)

    future = asyncio.get_running_loop().run_in_executor(None, lambda: context.run(run))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        wanted.end()
        await asyncio.wait({future})
        future.exception()  # nobody is told what it was
        raise


def giving_way(items: Iterable[T], every: int) -> Iterator[T]:
    """The items, with a pause after each so many of them. For threads only: the event loop would stand still. Raises
    Abandoned in a thread of `in_thread`."""
    wanted = _wanted.get()
    for number, item in enumerate(items, 1):
        yield item
        if number % every == 0:
            if wanted is not None:
                wanted.check()
            time.sleep(PAUSE_S)


def awaited(future: "concurrent.futures.Future[T]") -> T:
    """What comes of something that the event loop does for a thread; given up with the thread's work. Raises
    Abandoned."""
    wanted = _wanted.get()
    if wanted is not None:
        wanted.at_end(future.cancel)
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise Abandoned from None

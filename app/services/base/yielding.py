"""Lets a computing thread yield the interpreter to others, and stop when its result is no longer needed.

CPython switches away from a computing thread only after another one has waited 5 ms. A request takes a dozen steps that
each need the interpreter, so beside such a thread it takes a dozen times 5 ms; with pauses it takes its normal time. A
thread cannot be cancelled from outside, so it checks at its pauses whether its result is still needed.
"""

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

PAUSE_S = 0.0001
"""Seconds; long enough for a waiting thread to wake up."""
T = TypeVar("T")
P = ParamSpec("P")


class WorkAbandoned(Exception):
    """The work was abandoned halfway because no caller waits for its result."""


class _Cancellation:
    """Whether a caller still waits for the result of a thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._abandoned = False
        self._calls: list[Callable[[], object]] = []

    def check(self) -> None:
        """Raise WorkAbandoned if no caller waits."""
        if self._abandoned:
            raise WorkAbandoned

    def on_abandon(self, call: Callable[[], object]) -> None:
        """Call `call` when the work is abandoned; at once if it already is."""
        with self._lock:
            self._calls.append(call)
            abandoned = self._abandoned
        if abandoned:
            call()

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            calls = list(self._calls)
        for call in calls:
            call()


_cancellation: contextvars.ContextVar[_Cancellation | None] = contextvars.ContextVar("cancellation", default=None)


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` like `asyncio.to_thread`, but abandon it at its next pause if the caller is cancelled. Return only
    after the thread has ended."""
    cancellation, context = _Cancellation(), contextvars.copy_context()
    context.run(_cancellation.set, cancellation)

    def run() -> T:
        cancellation.check()  # the work may have waited long for a thread
        return work(*args, **kwargs)

    future = asyncio.get_running_loop().run_in_executor(None, lambda: context.run(run))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        cancellation.abandon()
        await asyncio.wait({future})
        future.exception()  # retrieved so that the event loop does not log it
        raise


def with_pauses(items: Iterable[T], every: int) -> Iterator[T]:
    """Yield the items, with a pause after every `every` of them. For threads only: a pause would block the event loop.
    Raises WorkAbandoned in a thread of `in_thread`."""
    cancellation = _cancellation.get()
    for number, item in enumerate(items, 1):
        yield item
        if number % every == 0:
            if cancellation is not None:
                cancellation.check()
            time.sleep(PAUSE_S)


def awaited(future: "concurrent.futures.Future[T]") -> T:
    """Return the result of a future of the event loop, from a thread; cancel it if the thread's work is abandoned.
    Raises WorkAbandoned."""
    cancellation = _cancellation.get()
    if cancellation is not None:
        cancellation.on_abandon(future.cancel)
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise WorkAbandoned from None

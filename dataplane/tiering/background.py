"""Work off the event loop: single calls on threads of their own, and long work on the loop in short slices."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import structlog

from dataplane.io.loop import Loop
from dataplane.tiers.registry import ParameterError
from dataplane.tiers.tier import TierError

log = structlog.stdlib.get_logger()
SLICE_S = 0.002
"""About how many seconds work on the loop runs before it yields to other work."""
T = TypeVar("T")


class Background:
    """Runs each call on a thread of its own, and reports its end on the loop. A call that hangs delays neither other
    calls nor the end of the process."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._closed = False
        self._undivided_until = 0.0
        """Until this time, work on the loop is not divided into slices, because no engine is served yet."""

    def run(
        self, name: str, work: Callable[[], T], done: Callable[[T | Exception], None] = lambda result: None
    ) -> None:
        """Run `work` on a thread, then `done` on the loop with its result or its exception."""
        threading.Thread(target=self._run, args=(work, done), name=name, daemon=True).start()

    def _run(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        result: T | Exception
        try:
            result = work()
        except (TierError, ParameterError) as error:
            result = error
        except Exception as error:  # a defect of a tier must not end the data plane
            log.exception("tier.call_crashed")
            result = error
        self._loop.call_from_thread(partial(self._report, done, result))

    def _report(self, done: Callable[[T], None], result: T) -> None:
        if not self._closed:
            done(result)

    def wait(self, holds: Callable[[], bool], timeout_s: float) -> None:
        """Report calls that end until `holds`, for a bounded time. For the start, before the loop runs."""
        self._undivided_until = time.monotonic() + timeout_s
        self._loop.wait_for_calls(holds, timeout_s)
        self._undivided_until = 0.0

    def in_slices(self, work: Iterator[None], done: Callable[[], None]) -> None:
        """Run `work` on the loop, a few steps at a time, then call `done`."""

        def step() -> None:
            if self._closed:
                return
            until = max(time.monotonic() + SLICE_S, self._undivided_until)
            for _ in work:
                if time.monotonic() >= until:
                    self._loop.once(0.0, step)
                    return
            done()

        step()

    def close(self) -> None:
        """Stop reporting. Threads that still run end with the process."""
        self._closed = True

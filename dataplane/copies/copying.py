"""Threads that run copies, and report their results on the loop.

Copies that wait for their engine's device run on one thread per engine, in the order in which they were requested, so
that a slow forward pass of one engine does not delay the copies of others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import structlog

from dataplane.io.loop import Loop

THREADS = 2
MAX_WAITING = 1024
"""Limit of copies that wait or run. Further copies are refused, except the first one of a lane, so that engines that
wait forever do not keep others from copying."""

log = structlog.stdlib.get_logger()


class CopyFailed(Exception):
    """A copy that failed or is incomplete; the message says why."""


Work = Callable[[], None]
Done = Callable[[CopyFailed | None], None]


@dataclass(eq=False, slots=True)
class _Lane:
    """Work that runs in order."""

    pool: ThreadPoolExecutor
    running: int = 0


class CopyThreads:
    """Runs copies on threads, and calls back on the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._pool: _Lane | None = None
        """Work without a lane."""
        self._lanes: WeakKeyDictionary[object, _Lane] = WeakKeyDictionary()
        self._closing = threading.Event()
        self._running = 0

    @property
    def closing(self) -> bool:
        """Whether the data plane is closing, so that the results of running copies are not needed."""
        return self._closing.is_set()

    def submit(self, work: Work, done: Done, lane: object | None = None) -> bool:
        """Run `work` off the loop, then `done` on the loop with the failure, if any. Return False if too much work is
        waiting; then neither is called.

        All work of one `lane` runs on one thread, which ends when the lane is garbage-collected.
        """
        chosen = self._pool if lane is None else self._lanes.get(lane)
        if self._running >= MAX_WAITING and (lane is None or (chosen is not None and chosen.running)):
            return False
        if chosen is None:
            threads, name = (THREADS, "copy") if lane is None else (1, "device-copy")
            chosen = _Lane(ThreadPoolExecutor(threads, name))
        try:
            chosen.pool.submit(self._run, chosen, work, done)
        except RuntimeError as error:  # the machine refuses to start another thread
            if not chosen.running:
                chosen.pool.shutdown(wait=False, cancel_futures=True)
                log.warning("copy.no_thread", reason=str(error), effect="a copy is refused")
                return False
        if lane is None:
            self._pool = chosen
        else:
            self._lanes[lane] = chosen
        chosen.running += 1
        self._running += 1
        return True

    def _run(self, lane: _Lane, work: Work, done: Done) -> None:
        failed: CopyFailed | None = None
        try:
            work()
        except CopyFailed as error:
            # Without the traceback: it refers to this frame, and the cycle would keep the pool's memory mapped.
            failed = CopyFailed(*error.args)
        except Exception as error:  # a bug here must not keep the engine waiting for its answer
            log.exception("copy.crashed")
            failed = CopyFailed(f"{type(error).__name__}: {error}")
        self._loop.call_from_thread(partial(self._report, lane, done, failed))

    def _report(self, lane: _Lane, done: Done, failed: CopyFailed | None) -> None:
        if self.closing:
            return
        self._running -= 1
        lane.running -= 1
        done(failed)

    def close(self) -> None:
        """Wait for the copies that run; waiting ones are not started."""
        self._closing.set()
        for lane in filter(None, (self._pool, *self._lanes.values())):
            lane.pool.shutdown(wait=True, cancel_futures=True)

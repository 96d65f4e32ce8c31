"""Copies run on threads of their own; their ends are heard of on the loop.

Copies that wait for their engine's device run on a thread for each engine, in the order in which they came: the others'
are not held up by a forward pass that takes its time.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

import structlog

from dataplane.transport.lmcache.copies import CopyFailed
from dataplane.transport.loop import Loop

THREADS = 2
MAX_WAITING = 1024
"""Copies that wait for a thread; more are refused."""

log = structlog.stdlib.get_logger()

Work = Callable[[], None]
Done = Callable[[CopyFailed | None], None]


class Copying:
    """Runs copies, and calls back on the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._pool: ThreadPoolExecutor | None = None
        self._lanes: WeakKeyDictionary[object, ThreadPoolExecutor] = WeakKeyDictionary()
        self._closing = threading.Event()
        self._ended: deque[tuple[Done, CopyFailed | None]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._running = 0
        loop.register(self._wake, self._hear)

    @property
    def closing(self) -> bool:
        """Nobody waits for the copies that run."""
        return self._closing.is_set()

    def submit(self, work: Work, done: Done, lane: object | None = None) -> bool:
        """Run `work` off the loop, then `done` on it, with what failed. False: too many wait, and neither is called.

        All work of one `lane` runs on one thread, which goes when the lane does.
        """
        if self._running >= MAX_WAITING:
            return False
        if lane is None:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, "lmcache-copy")
            pool = self._pool
        else:
            pool = self._lanes.get(lane) or self._lanes.setdefault(
                lane, ThreadPoolExecutor(1, "lmcache-device-copy")
            )
        self._running += 1
        pool.submit(self._run, work, done)
        return True

    def _run(self, work: Work, done: Done) -> None:
        failed: CopyFailed | None = None
        try:
            work()
        except CopyFailed as error:
            failed = error
        except Exception as error:  # a fault of ours must not keep the engine waiting for its answer
            log.exception("lmcache.copy_crashed")
            failed = CopyFailed(f"{type(error).__name__}: {error}")
        self._ended.append((done, failed))
        os.eventfd_write(self._wake, 1)

    def _hear(self) -> None:
        os.eventfd_read(self._wake)
        while self._ended:
            done, failed = self._ended.popleft()
            self._running -= 1
            done(failed)

    def close(self) -> None:
        """Wait for the copies that run; what waits is not begun."""
        self._closing.set()
        for pool in filter(None, (self._pool, *self._lanes.values())):
            pool.shutdown(wait=True, cancel_futures=True)
        self._loop.unregister(self._wake)
        os.close(self._wake)

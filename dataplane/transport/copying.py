"""Copies run on threads of their own; their ends are heard of on the loop.

Copies that wait for their engine's device run on a thread for each engine, in the order in which they came: the others'
are not held up by a forward pass that takes its time.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

import structlog

from dataplane.devices.runtime import Device, Runtime
from dataplane.transport.loop import Loop

THREADS = 2
MAX_WAITING = 1024
"""Copies that wait for a thread; more are refused."""
EVENT_WAIT_S = 30.0
"""How long an engine's forward pass may take after it asked for a copy."""
_LOOK_S, _LONGEST_LOOK_S = 0.00005, 0.001

log = structlog.stdlib.get_logger()


class CopyFailed(Exception):
    """A copy that did not happen, or not whole: the sentence says why."""


def wait_for_engine(
    runtime: Runtime,
    device: Device,
    event: bytes,
    ended: Callable[[], bool],
    close: Callable[[Callable[[], None]], None],
) -> None:
    """Until an engine came as far as its interprocess event: nothing is enqueued for one that never does.

    `close` lets the opened event go. Raises CopyFailed, also when `ended` says that nobody waits any more, and
    DeviceError.
    """
    opened = runtime.open_event(device, event)
    try:
        deadline, pause = time.monotonic() + EVENT_WAIT_S, _LOOK_S
        while not opened.query():
            if ended():
                raise CopyFailed("the engine is gone")
            if time.monotonic() > deadline:
                raise CopyFailed(f"the engine's event did not come within {EVENT_WAIT_S:g} s")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_S)
    finally:
        close(opened.close)


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
                self._pool = ThreadPoolExecutor(THREADS, "copy")
            pool = self._pool
        else:
            pool = self._lanes.get(lane) or self._lanes.setdefault(lane, ThreadPoolExecutor(1, "device-copy"))
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
            log.exception("copy.crashed")
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

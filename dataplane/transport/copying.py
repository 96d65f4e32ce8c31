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
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import structlog

from dataplane.devices.runtime import Device, Runtime
from dataplane.transport.loop import Loop

THREADS = 2
MAX_WAITING = 1024
"""Copies that wait or run; more are refused, but for the first one of a lane: engines that wait for ever keep nobody
else from copying."""
EVENT_WAIT_S = 30.0
"""How long an engine's forward pass may take after it asked for a copy."""
_LOOK_S, _LONGEST_LOOK_S = 0.00005, 0.02
_LOOK_RATIO = 0.05
"""How much longer than it must a copy waits for an event: many that wait long are not to keep a processor busy."""

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
        began = time.monotonic()
        while not opened.query():
            if ended():
                raise CopyFailed("the engine is gone")
            waited = time.monotonic() - began
            if waited > EVENT_WAIT_S:
                raise CopyFailed(f"the engine's event did not come within {EVENT_WAIT_S:g} s")
            time.sleep(min(max(_LOOK_S, _LOOK_RATIO * waited), _LONGEST_LOOK_S))
    finally:
        close(opened.close)


Work = Callable[[], None]
Done = Callable[[CopyFailed | None], None]


@dataclass(eq=False, slots=True)
class _Lane:
    """Work that is done in order."""

    pool: ThreadPoolExecutor
    running: int = 0


class Copying:
    """Runs copies, and calls back on the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._pool: _Lane | None = None
        """What is of no lane."""
        self._lanes: WeakKeyDictionary[object, _Lane] = WeakKeyDictionary()
        self._closing = threading.Event()
        self._ended: deque[tuple[_Lane, Done, CopyFailed | None]] = deque()
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
        chosen = self._pool if lane is None else self._lanes.get(lane)
        if self._running >= MAX_WAITING and (lane is None or (chosen is not None and chosen.running)):
            return False
        if chosen is None:
            threads, name = (THREADS, "copy") if lane is None else (1, "device-copy")
            chosen = _Lane(ThreadPoolExecutor(threads, name))
        try:
            chosen.pool.submit(self._run, chosen, work, done)
        except RuntimeError as error:  # the machine gives this process no more threads
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
            failed = error
        except Exception as error:  # a fault of ours must not keep the engine waiting for its answer
            log.exception("copy.crashed")
            failed = CopyFailed(f"{type(error).__name__}: {error}")
        self._ended.append((lane, done, failed))
        os.eventfd_write(self._wake, 1)

    def _hear(self) -> None:
        os.eventfd_read(self._wake)
        while self._ended:
            lane, done, failed = self._ended.popleft()
            self._running -= 1
            lane.running -= 1
            done(failed)

    def close(self) -> None:
        """Wait for the copies that run; what waits is not begun."""
        self._closing.set()
        for each in filter(None, (self._pool, *self._lanes.values())):
            each.pool.shutdown(wait=True, cancel_futures=True)
        self._loop.unregister(self._wake)
        os.close(self._wake)

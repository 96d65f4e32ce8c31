"""Event loop: one thread and one epoll for file descriptors, ZeroMQ sockets and timers."""

from __future__ import annotations

import os
import select
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from dataplane.base.process_figures import LATENCY_BOUNDS_S
from dataplane.protocol.stats.histogram import Histogram

_POLLIN = int(zmq.POLLIN)
"""A plain integer, because `&` with the enumeration costs a microsecond."""
_ASK_S = 0.001
"""Interval at which quiet ZeroMQ sockets are polled. A poll costs several microseconds per socket, and a turn for one
small request takes about thirty microseconds."""


@dataclass(slots=True, eq=False)
class _Timer:
    interval_s: float
    """0 for a timer that fires once."""
    call: Callable[[], None]
    due: float


class Loop:
    """Calls back when a descriptor is readable or a timer is due. Callbacks must not block."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._timers: list[_Timer] = []
        self._sockets: list[tuple[zmq.Socket[bytes], Callable[[], bool]]] = []
        self._requested_at = 0.0
        self._unfinished = False
        self._stopped = False
        self.lag = Histogram(list(LATENCY_BOUNDS_S), [0] * (len(LATENCY_BOUNDS_S) + 1), 0.0)
        """Seconds by which timers were late."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._calls: deque[Callable[[], None]] = deque()
        """Calls of threads."""
        self._closed = False
        self._lock = threading.Lock()
        """For `_closed` and the use of `_wake` by threads."""
        self.register(self._wake, self._run_calls)

    def register(self, fd: int, on_readable: Callable[[], None]) -> None:
        self._readers[fd] = on_readable
        self._epoll.register(fd, select.EPOLLIN)

    def unregister(self, fd: int) -> None:
        """Stop watching a descriptor; call this before closing it."""
        if self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def register_zmq(self, socket: zmq.Socket[bytes], on_readable: Callable[[], bool]) -> None:
        """Serve a ZeroMQ socket; the callback returns whether it left messages for the next turn.

        The socket's fd only signals that its state may have changed, and does not always do so. The loop therefore
        polls the socket's events when the fd is readable, and also periodically.
        """
        self._sockets.append((socket, on_readable))
        fd = socket.getsockopt(zmq.FD)
        assert isinstance(fd, int)
        self.register(fd, self._schedule)

    def _schedule(self) -> None:
        self._requested_at = 0.0

    def every(self, interval_s: float, call: Callable[[], None]) -> None:
        self._timers.append(_Timer(interval_s, call, time.monotonic() + interval_s))

    def once(self, delay_s: float, call: Callable[[], None]) -> None:
        self._timers.append(_Timer(0.0, call, time.monotonic() + delay_s))

    def call_from_thread(self, call: Callable[[], None]) -> None:
        """Call back in the next turn; safe in any thread. Does nothing once the loop is closed."""
        with self._lock:
            if not self._closed:
                self._calls.append(call)
                os.eventfd_write(self._wake, 1)

    def _run_calls(self) -> None:
        os.eventfd_read(self._wake)
        while self._calls:
            self._calls.popleft()()

    def wait_for_calls(self, holds: Callable[[], bool], timeout_s: float) -> None:
        """Run calls of threads, and nothing else, until `holds`, for a bounded time. For the start, before `run`."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        deadline = time.monotonic() + timeout_s
        while not holds() and (left_s := deadline - time.monotonic()) > 0:
            if poll.poll(left_s * 1000):
                self._run_calls()

    def stop(self) -> None:
        """End `run` after the current turn, or as soon as it starts; safe in a signal handler."""
        self._stopped = True

    def run(self) -> None:
        """Serve until `stop`."""
        while not self._stopped:
            self._turn()
        self._stopped = False

    def _turn(self) -> None:
        now = time.monotonic()
        due = min((timer.due for timer in self._timers), default=now + 1)
        for fd, _ in self._epoll.poll(0.0 if self._unfinished else max(0.0, due - now)):
            reader = self._readers.get(fd)
            if reader is not None:
                reader()
        now = time.monotonic()
        if self._unfinished or now - self._requested_at > _ASK_S:
            self._requested_at = now
            self._unfinished = False
            for socket, on_readable in self._sockets:
                events = socket.getsockopt(zmq.EVENTS)
                assert isinstance(events, int)
                if events & _POLLIN and on_readable():
                    self._unfinished = True
            now = time.monotonic()
        ready = [timer for timer in self._timers if timer.due <= now]
        if ready:
            late = now - min(timer.due for timer in ready)
            self.lag.counts[bisect_left(LATENCY_BOUNDS_S, late)] += 1
            self.lag.total += late
        for timer in ready:
            if timer.interval_s:
                timer.due = now + timer.interval_s
            else:
                self._timers.remove(timer)
            timer.call()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            os.close(self._wake)
        self._epoll.close()

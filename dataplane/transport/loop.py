"""One thread, one epoll: file descriptors, ZeroMQ sockets and timers."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq

_POLLIN = int(zmq.POLLIN)
"""`&` with the enumeration itself costs a microsecond."""
_ASK_S = 0.001
"""Events of ZeroMQ sockets whose descriptors are quiet are asked for as often: that costs several microseconds each,
of which a turn for one small request has thirty."""


@dataclass(slots=True, eq=False)
class _Timer:
    interval_s: float
    """0: once."""
    call: Callable[[], None]
    due: float


class Loop:
    """Calls back when something is readable or a timer is due. Callbacks must not wait."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._timers: list[_Timer] = []
        self._sockets: list[tuple[zmq.Socket[bytes], Callable[[], bool]]] = []
        self._asked_at = 0.0
        self._unfinished = False
        self._stopped = False

    def register(self, fd: int, on_readable: Callable[[], None]) -> None:
        self._readers[fd] = on_readable
        self._epoll.register(fd, select.EPOLLIN)

    def unregister(self, fd: int) -> None:
        """Forget a descriptor; call it before closing it."""
        if self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def register_zmq(self, socket: zmq.Socket[bytes], on_readable: Callable[[], bool]) -> None:
        """Serve a ZeroMQ socket; the call answers whether it left messages for the next turn.

        Its fd only says that something may have changed, and not always that: its events are asked then, and every
        now and then."""
        self._sockets.append((socket, on_readable))
        fd = socket.getsockopt(zmq.FD)
        assert isinstance(fd, int)
        self.register(fd, self._ask)

    def _ask(self) -> None:
        self._asked_at = 0.0

    def every(self, interval_s: float, call: Callable[[], None]) -> None:
        self._timers.append(_Timer(interval_s, call, time.monotonic() + interval_s))

    def once(self, delay_s: float, call: Callable[[], None]) -> None:
        self._timers.append(_Timer(0.0, call, time.monotonic() + delay_s))

    def stop(self) -> None:
        """End `run` after the current turn, or as soon as it begins; safe in a signal handler."""
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
        if self._unfinished or now - self._asked_at > _ASK_S:
            self._asked_at = now
            self._unfinished = False
            for socket, on_readable in self._sockets:
                events = socket.getsockopt(zmq.EVENTS)
                assert isinstance(events, int)
                if events & _POLLIN and on_readable():
                    self._unfinished = True
            now = time.monotonic()
        for timer in [timer for timer in self._timers if timer.due <= now]:
            if timer.interval_s:
                timer.due = now + timer.interval_s
            else:
                self._timers.remove(timer)
            timer.call()

    def close(self) -> None:
        self._epoll.close()

"""The data plane's process, and proof of when it is gone."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from struct import calcsize, unpack

_SO_PEERPIDFD = 77
_CREDENTIALS = "iII"


class Process:
    """Whoever listens at a socket."""

    __slots__ = ("_pidfd",)

    def __init__(self, pidfd: int) -> None:
        """Takes the descriptor over."""
        self._pidfd = pidfd

    @classmethod
    def behind(cls, connection: socket.socket) -> Process | None:
        """None where the kernel does not tell."""
        with suppress(OSError):
            pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
            os.set_inheritable(pidfd, False)
            return cls(pidfd)
        with suppress(OSError):
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, calcsize(_CREDENTIALS))
            pid, _, _ = unpack(_CREDENTIALS, raw)
            if pid > 0:
                return cls(os.pidfd_open(pid))
        return None

    @property
    def gone(self) -> bool:
        """It has ended: it touches no memory any more."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._pidfd)

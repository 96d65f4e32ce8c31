"""Handle of the data plane's process that detects reliably when the process is gone."""

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
    """Process that listens on a socket."""

    __slots__ = ("_pidfd",)

    def __init__(self, pidfd: int) -> None:
        """Take ownership of the pidfd."""
        self._pidfd = pidfd

    @classmethod
    def behind(cls, connection: socket.socket) -> Process | None:
        """Return the process at the other end of a connection, or None if the kernel does not identify it."""
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
        """Whether the process has ended, and thus no longer touches any memory."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._pidfd)

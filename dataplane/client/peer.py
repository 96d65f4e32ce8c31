"""Handle of the data plane's process that detects reliably when the process is gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress

from dataplane.ipc.processes import has_exited, peer_of


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
            return cls(peer_of(connection).pidfd)
        return None

    @property
    def gone(self) -> bool:
        """Whether the process has ended, and thus no longer touches any memory."""
        return has_exited(self._pidfd)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._pidfd)

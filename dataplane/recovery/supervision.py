"""The connection of a data plane to the supervisor that started it (`dataplane.protocol.supervision`)."""

from __future__ import annotations

import socket
from contextlib import suppress

from dataplane.protocol.supervision import BEGIN, BEGUN, FAILED, MAX_BYTES, READY, SERVING


class SupervisorGone(Exception):
    """The supervisor closed its end of the socket."""


class SupervisorConnection:
    """The data plane's end."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    @classmethod
    def wait(cls, fd: int) -> SupervisorConnection:
        """Wait until the supervisor sends `begin`. Raises SupervisorGone, and OSError if the fd is not a socket."""
        connection = socket.socket(fileno=fd)
        connection.set_inheritable(False)
        supervisor = cls(connection)
        supervisor._send(READY)
        message = connection.recv(MAX_BYTES)
        if message != BEGIN:
            connection.close()
            raise SupervisorGone("the supervisor ended" if not message else f"the supervisor sent {message!r:.40}")
        supervisor._send(BEGUN)
        return supervisor

    def serving(self) -> None:
        """Tell the supervisor that this data plane serves: every socket is bound."""
        self._send(SERVING)

    def failed(self, reason: str) -> None:
        """Tell the supervisor why this process ends before it serves."""
        self._send(FAILED + reason.encode()[: MAX_BYTES - len(FAILED)])

    def _send(self, word: bytes) -> None:
        with suppress(OSError):
            self._connection.send(word, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

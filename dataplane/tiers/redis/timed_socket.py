"""A socket whose reads and writes have a deadline, with one system call for a large block where there is no TLS."""

import socket
import ssl
import struct
import time
from collections.abc import Sequence

from dataplane.tiers.tier import Buffer

_TIMEVAL = struct.Struct("ll")
_MIN_TIMEOUT_S = 0.001
_TOLERANCE = 1.05
"""A timeout that is longer than the time to the deadline by so much is not set again."""


class TimedSocket:
    """Raises TimeoutError after the deadline, and ConnectionError if the connection is lost.

    Python polls before each call on a socket with a timeout, and reads what is there. A plain socket blocks here
    instead, with the timeout set in the kernel, which also collects a block as a whole.
    """

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        self._sock = sock
        self._timeouts: dict[int, float] = {}
        self._is_plain = not isinstance(sock, ssl.SSLSocket)
        if self._is_plain:
            sock.settimeout(None)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._set_timeout(option, timeout_s)

    def receive(self, memory: memoryview, deadline: float, *, whole: bool) -> int:
        """Read into memory and return how many bytes: at least one; all of them, mostly, if it is to be the whole."""
        self._set_timeout(socket.SO_RCVTIMEO, deadline - time.monotonic())
        flags = socket.MSG_WAITALL if whole and self._is_plain else 0
        try:
            received = self._sock.recv_into(memory, 0, flags)
        except (TimeoutError, BlockingIOError):
            raise TimeoutError("the deadline has passed") from None
        except OSError as error:
            raise ConnectionError(error.strerror or "the connection is lost") from None
        if not received:
            raise ConnectionError("the server closed the connection")
        return received

    def send(self, pieces: Sequence[Buffer], deadline: float) -> None:
        """Send all bytes of the pieces."""
        rest = [memoryview(piece).cast("B") for piece in pieces]
        while rest:
            self._set_timeout(socket.SO_SNDTIMEO, deadline - time.monotonic())
            try:
                sent = self._sock.sendmsg(rest) if self._is_plain else self._sock.send(rest[0])
            except (TimeoutError, BlockingIOError):
                raise TimeoutError("the deadline has passed") from None
            except OSError as error:
                raise ConnectionError(error.strerror or "the connection is lost") from None
            while rest and sent >= len(rest[0]):
                sent -= len(rest.pop(0))
            if sent:
                rest[0] = rest[0][sent:]

    def _set_timeout(self, option: int, seconds: float) -> None:
        if seconds <= 0:
            raise TimeoutError("the deadline has passed")
        if not self._is_plain:
            self._sock.settimeout(seconds)
            return
        if seconds <= self._timeouts.get(option, 0.0) <= seconds * _TOLERANCE:
            return
        whole, part = divmod(max(seconds, _MIN_TIMEOUT_S), 1)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(whole), int(part * 1e6)))
        except OSError as error:
            raise ConnectionError(error.strerror or "the connection is lost") from None
        self._timeouts[option] = seconds

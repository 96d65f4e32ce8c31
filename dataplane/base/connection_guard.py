"""Limits on the connections of a ZeroMQ socket that other machines reach: their number, their duration, and the bytes
that each may send, until the peer is known.

libzmq limits the length of a frame and the duration of a handshake, but not the number of frames per message or the
number of connections, and it buffers a frame of any allowed length before it looks at the keys of the peer. Therefore
this module tracks all connections, and shuts down those that exceed a limit without libzmq's knowledge. libzmq treats
this as a disconnect by the peer, and discards everything that it received on the connection.
"""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

MAX = 1024
"""Maximum number of watched connections; beyond it the oldest are closed."""
MAX_S = 6.0
"""Maximum duration of a watched connection in seconds."""
MAX_BYTES = 64 * 1024
"""Maximum number of bytes received on a watched connection."""
LOOK_S = 0.05
"""Interval of `step` for a socket that takes long messages: what a peer sends meanwhile is buffered."""
HANDSHAKE_BYTES = 256
"""A socket with CURVE has sent more to each peer that it admitted: a greeting of 64 bytes and WELCOME of 170 come
before the check of the key, and READY of at least 40 after it."""
LOG_INTERVAL_S = 10.0
_SIZES = struct.Struct("=128xQ4xI56xQ")
"""`tcpi_bytes_received`, `tcpi_segs_in` and `tcpi_bytes_sent` in Linux's `struct tcp_info`."""
log = structlog.get_logger()


class ConnectionGuard:
    """Watches the connections of a socket that is not bound yet."""

    def __init__(
        self,
        guarded: zmq.Socket[Any],
        name: str,
        *,
        known_bytes: float = inf,
        max_s: float = MAX_S,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Start to monitor. `name` is that of the socket in log lines. A connection is watched until more than
        `known_bytes` bytes were sent to the peer, or the kernel does not count them. Meanwhile it may last `max_s`
        seconds, and receive `max_bytes`."""
        self._guarded = guarded
        self._name = name
        self._known_bytes, self._max_s, self._max_bytes = known_bytes, max_s, max_bytes
        self._since: dict[int, float] = {}
        """Time at which each descriptor was accepted (monotonic seconds), oldest first."""
        self._ended = 0
        self._logged_at = -LOG_INTERVAL_S
        self._monitor = guarded.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._events: zmq.Socket[bytes] = zmq.Socket.shadow(self._monitor.underlying)
        """The same without asyncio."""

    def step(self) -> bool:
        """End connections that exceed a limit. Return whether any connection has ended since the last call."""
        departed = self._take()
        self._look(time.monotonic())
        return departed

    def _take(self) -> bool:
        """Process all pending monitor events."""
        departed = False
        while True:
            try:
                frames = self._events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return departed
            event = parse_monitor_message(frames)
            self._since.pop(event["value"], None)
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._since[event["value"]] = time.monotonic()
            else:
                departed = True

    def _look(self, now: float) -> None:
        too_many = len(self._since) - MAX
        for number, (descriptor, since) in enumerate(list(self._since.items())):
            with self._connection(descriptor) as connection:
                received, sent = (0, inf) if connection is None else _sizes(connection)
                if connection is None or sent > self._known_bytes:
                    del self._since[descriptor]
                elif number < too_many:
                    self._end(connection, now, f"more than {MAX} are connected")
                elif now - since > self._max_s:
                    self._end(connection, now, f"connected for more than {self._max_s:g} s")
                elif received > self._max_bytes:
                    self._end(connection, now, f"sent more than {self._max_bytes} bytes")

    @contextmanager
    def _connection(self, descriptor: int) -> Iterator[socket.socket | None]:
        """Yield libzmq's connection of a descriptor, or None if the descriptor now refers to something else."""
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:
            yield None
            return
        try:
            yield connection if self._is_ours(connection) else None
        finally:
            connection.detach()

    def _is_ours(self, connection: socket.socket) -> bool:
        try:
            name = connection.getsockname()
        except OSError:
            return False
        scheme, _, address = self._guarded.getsockopt_string(zmq.LAST_ENDPOINT).partition("://")
        if connection.family == socket.AF_UNIX:
            return bool(scheme == "ipc" and name == address)
        return scheme == "tcp" and name[1] == int(address.rpartition(":")[2])

    def _end(self, connection: socket.socket, now: float, reason: str) -> None:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # it was closed already
            return
        self._ended += 1
        if now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            log.warning(
                "peer.connection_ended", socket=self._name, reason=reason, ended=self._ended, connected=len(self._since)
            )

    def close(self) -> None:
        """Stop to monitor. Call this before closing the guarded socket."""
        self._monitor.close()


def _sizes(connection: socket.socket) -> tuple[int, float]:
    """Return the bytes that were received on a connection, and those that were sent; 0 and infinity for a Unix socket,
    which file modes restrict, and if the kernel does not count them: no segment arrived on an accepted connection."""
    if connection.family == socket.AF_UNIX:
        return 0, inf
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZES.size)
    except OSError:
        return 0, inf
    received, segments, sent = _SIZES.unpack(info) if len(info) == _SIZES.size else (0, 0, 0)
    return received, sent if segments else inf

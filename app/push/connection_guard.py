"""Limits on the connections of the join socket: their number, their duration, and the bytes that each may send.

A node that joins connects, sends one short message, and gets its answer at once. libzmq limits the length of a frame,
but not the number of frames per message, the duration of a connection, or the number of connections. Therefore this
module tracks all connections, and shuts down those that exceed a limit without libzmq's knowledge. libzmq treats this
as a disconnect by the peer, and discards everything that it received on the connection.
"""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from dataplane.protocol.join import MAX_JOIN_BYTES, host_of

MAX = 1024
"""Maximum number of connections; beyond it the oldest are closed."""
MAX_S = 6.0
"""Maximum duration of a connection in seconds. A node waits three seconds for its answer."""
MAX_BYTES = 2 * MAX_JOIN_BYTES
"""Maximum number of bytes received on a connection: a handshake and a message."""
LOOK_MS = 200
LOG_INTERVAL_S = 10.0
_RECEIVED = struct.Struct("=128xQ")
"""Location of `tcpi_bytes_received` in Linux's `struct tcp_info`."""
log = structlog.get_logger()


class ConnectionGuard:
    """Watches the connections of a bound socket."""

    def __init__(self, bound: zmq.asyncio.Socket, url: str) -> None:
        """Start to monitor. `url` is the URL to which the socket is bound."""
        self._address: int | str = int(url.rpartition(":")[2]) if host_of(url) else url.removeprefix("ipc://")
        """Port or path of the socket."""
        self._since: dict[int, float] = {}
        """Time at which each descriptor was accepted (monotonic seconds), oldest first."""
        self._ended = 0
        self._logged_at = -LOG_INTERVAL_S
        self._events: zmq.asyncio.Socket = bound.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)

    async def run(self) -> None:
        """Watch connections forever."""
        while True:
            await self._events.poll(LOOK_MS if self._since else None)
            await self._take()
            self._look(time.monotonic())

    async def _take(self) -> None:
        """Process all pending monitor events."""
        while True:
            try:
                frames = await self._events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            event = parse_monitor_message(frames)
            self._since.pop(event["value"], None)
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._since[event["value"]] = time.monotonic()

    def _look(self, now: float) -> None:
        too_many = len(self._since) - MAX
        for number, (descriptor, since) in enumerate(list(self._since.items())):
            with self._connection(descriptor) as connection:
                if connection is None:
                    del self._since[descriptor]
                elif number < too_many:
                    self._end(connection, now, f"more than {MAX} are connected")
                elif now - since > MAX_S:
                    self._end(connection, now, f"connected for more than {MAX_S:g} s")
                elif self._received(connection) > MAX_BYTES:
                    self._end(connection, now, f"sent more than {MAX_BYTES} bytes")

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
        return bool((name if connection.family == socket.AF_UNIX else name[1]) == self._address)

    def _received(self, connection: socket.socket) -> int:
        if connection.family == socket.AF_UNIX:
            return 0  # not counted: file modes restrict these connections
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
        except OSError:
            return 0
        return int(_RECEIVED.unpack(info)[0]) if len(info) == _RECEIVED.size else 0

    def _end(self, connection: socket.socket, now: float, reason: str) -> None:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # it was closed already
            return
        self._ended += 1
        if now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            log.warning("join.connection_ended", reason=reason, ended=self._ended, connected=len(self._since))

    def close(self) -> None:
        self._events.close()

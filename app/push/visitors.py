"""Who is connected to the join socket: how many, for how long, and how much they may send.

Who wants to join connects, says one short message, and has its answer at once. libzmq bounds the length of a frame, but
neither the number of frames of a message, nor how long a connection stays, nor how many there are. So all connections
are counted here, and those that are at odds with that are closed behind libzmq's back, which takes it for the other
end's doing and lets go of everything that came from there.
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

MOST = 1024
"""Connections at once; of more the oldest go."""
MOST_S = 6.0
"""A node waits three seconds for its answer."""
MOST_BYTES = 2 * MAX_JOIN_BYTES
"""That one may have sent: a handshake and a message."""
LOOK_MS = 200
TELL_INTERVAL_S = 10.0
_RECEIVED = struct.Struct("=128xQ")
"""`tcpi_bytes_received` of Linux' `struct tcp_info`."""
log = structlog.get_logger()


class Visitors:
    """Watches the connections of a bound socket."""

    def __init__(self, bound: zmq.asyncio.Socket, url: str) -> None:
        """`url` is the one that it is bound to."""
        self._place: int | str = int(url.rpartition(":")[2]) if host_of(url) else url.removeprefix("ipc://")
        """Port, or path."""
        self._since: dict[int, float] = {}
        """When each descriptor was accepted (monotonic), oldest first."""
        self._sent_away = 0
        self._told = -TELL_INTERVAL_S
        self._events: zmq.asyncio.Socket = bound.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        )

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._events.poll(LOOK_MS if self._since else None)
            await self._take()
            self._look(time.monotonic())

    async def _take(self) -> None:
        """All that happened."""
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
        too_many = len(self._since) - MOST
        for number, (descriptor, since) in enumerate(list(self._since.items())):
            with self._connection(descriptor) as connection:
                if connection is None:
                    del self._since[descriptor]
                elif number < too_many:
                    self._send_away(connection, now, f"more than {MOST} are connected")
                elif now - since > MOST_S:
                    self._send_away(connection, now, f"connected for more than {MOST_S:g} s")
                elif self._received(connection) > MOST_BYTES:
                    self._send_away(connection, now, f"sent more than {MOST_BYTES} bytes")

    @contextmanager
    def _connection(self, descriptor: int) -> Iterator[socket.socket | None]:
        """One of libzmq's, which stays its; None when the descriptor is something else by now."""
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
        return bool((name if connection.family == socket.AF_UNIX else name[1]) == self._place)

    def _received(self, connection: socket.socket) -> int:
        if connection.family == socket.AF_UNIX:
            return 0  # nobody counts them; who may connect is a matter of file modes
        try:
            told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
        except OSError:
            return 0
        return int(_RECEIVED.unpack(told)[0]) if len(told) == _RECEIVED.size else 0

    def _send_away(self, connection: socket.socket, now: float, why: str) -> None:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # it went by itself
            return
        self._sent_away += 1
        if now - self._told >= TELL_INTERVAL_S:
            self._told = now
            log.warning("join.sent_away", reason=why, sent_away=self._sent_away, connected=len(self._since))

    def close(self) -> None:
        self._events.close()

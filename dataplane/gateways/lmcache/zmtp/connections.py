"""Client connections: read messages and send answers, track each client's process, and close connections.

A client's request stays in the kernel until it is answered. The holders that keep this process's memory for the next
data plane also keep duplicates of its sockets, so that after a kill the next data plane finds every unanswered request.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM

import structlog

from dataplane.gateways.lmcache.zmtp.processes import UNKNOWN, Owner, PidResolver, owners_of
from dataplane.gateways.lmcache.zmtp.protocol import ZmtpConnection, ZmtpError, message
from dataplane.gateways.lmcache.zmtp.sockets import (
    AdoptedSocket,
    InheritedSocket,
    SocketStore,
    listen,
    shut_down,
    sorted_out,
    url_of,
)
from dataplane.holding import CONNECTION, LISTENER
from dataplane.io.loop import Loop

MAX_CONNECTIONS = 16_384
"""Maximum number of tracked connections. Further ones are served without knowing their process."""
MAX_OPEN = 2 * MAX_CONNECTIONS
"""Maximum number of connections, and at most as many as half of the descriptors. Further clients wait."""
MAX_MESSAGE_BYTES = 64 << 20
"""Maximum size of a message. A connection that exceeds it is closed. A request of a million tokens has a tenth of
it."""
HANDSHAKE_S = 30.0
"""Time limit for the ZMTP handshake."""
TURN_S = 0.005
"""Time in which a turn begins requests before other work of this process runs."""
READS_PER_TURN = 64
READ_BYTES = 256 << 10
"""Maximum bytes of one read from a connection."""
LEFT_BYTES = 128 << 10
"""Maximum bytes of an incomplete message that stay in the kernel. A longer message is read as it arrives."""
LEFT_S = 1.0
"""Time after which an incomplete message is read in any case, because the kernel may lack room for the rest."""
MAX_HANDED_OVER = 256
"""Maximum number of connections that holders keep, because each takes one of their file descriptors."""
_ACCEPTS_PER_TURN = 64
_ACCEPT_PAUSE_S = 0.2
_REPORT_S = 60.0
MAX_TAKEN_BYTES = 256 << 20
"""Maximum bytes of incomplete messages and unsent answers over all clients."""
MESSAGE_S = 120.0
"""Time limit for the rest of a message of which a part was read."""
_CHANGES = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
"""Events of a connection. They are edge-triggered, so data that stays in the kernel causes no new event."""
_DISCONNECTS = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_PEEK, _DISCARD = int(socket.MSG_PEEK), int(socket.MSG_TRUNC)

log = structlog.stdlib.get_logger()


class HandedOver:
    """The connections of which holders have a duplicate of the socket, by number."""

    def __init__(self, holder: SocketStore, numbers: Iterable[int]) -> None:
        self._holder = holder
        self._numbers = set(numbers)

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def add(self, number: int, fd: int) -> None:
        """Give holders a connection, unless they have MAX_HANDED_OVER."""
        if len(self._numbers) < MAX_HANDED_OVER:
            self._numbers.add(number)
            self._holder.made(CONNECTION, number, AdoptedSocket(fd))

    def drop(self, number: int) -> None:
        if number in self._numbers:
            self._numbers.remove(number)
            self._holder.dropped(CONNECTION, number)


@dataclass(eq=False, slots=True)
class ZmtpPeer:
    """One client's connection."""

    number: int
    """Number that no other connection has, or had before a restart."""
    socket: socket.socket
    protocol: ZmtpConnection
    handed_over: HandedOver
    since: float
    resolved_owner: Owner | None = None
    """Process of the peer, once it was searched for."""
    open: bool = True
    tracked: bool = False
    """Whether the connection is tracked, so that its process can be found."""
    answers: list[bytes] = field(default_factory=list)
    """Answers that are still to be sent."""
    unsent: bytes = b""
    """Bytes of earlier answers that the kernel has not accepted. Reading stops while there are any."""
    doubtful: bool = False
    """Whether data of this connection may have ended the previous data plane."""
    perhaps_answered: int = 0
    """Bytes of requests that were in the kernel when this data plane took over. The previous data plane may have been
    killed after it answered them and before it removed them."""
    disconnected: bool = False
    """Whether the peer has stopped sending, so that only data in the kernel remains."""
    unread_since: float = 0.0
    """Monotonic time since which the start of a message has been in the kernel; 0 for none."""
    taken_since: float = 0.0
    """Monotonic time since which an incomplete message has been in this process; 0 for none."""
    taken_bytes: int = 0
    """Bytes held for the connection, as of its last turn."""

    @property
    def identity(self) -> bytes:
        return self.number.to_bytes(8, "big")

    @property
    def owner(self) -> Owner:
        """Return the peer's process. Search for it if the connection is tracked and that has not been done yet."""
        if self.resolved_owner is None:
            fd = self.socket.fileno()
            self.resolved_owner = owners_of([fd])[fd] if self.tracked and self.open else UNKNOWN
        return self.resolved_owner

    def answer(self, frames: list[bytes]) -> None:
        """Queue an answer, which `flush` sends."""
        self.answers.append(message(frames))

    def flush(self) -> None:
        """Send queued answers. Bytes that the kernel does not accept now are sent later."""
        first = self.protocol.data_to_send
        if first:
            self.answers.insert(0, bytes(first))  # READY precedes the first answer
            first.clear()
        if not self.open or not (self.answers or self.unsent):
            return
        data = b"".join((self.unsent, *self.answers))
        self.answers.clear()
        try:
            sent = self.socket.send(data, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:  # the peer is gone, as the next read will show
            sent, data = 0, b""
        self.unsent = data[sent:]
        if self.unsent:
            self.handed_over.drop(self.number)  # half an answer is sent, so no other process can continue


class ZmtpServer:
    """Listen at one TCP address and serve the connections in turns."""

    def __init__(
        self,
        loop: Loop,
        url: str,
        on_message: Callable[[ZmtpPeer, list[bytes]], None],
        closed: Callable[[ZmtpPeer], None],
        max_frames: int,
        holder: SocketStore,
        inherited: Sequence[InheritedSocket] = (),
    ) -> None:
        """Listen at `url`. Raise OSError if that is not possible.

        `on_message` receives the first `max_frames` frames of each message and may answer at once or later.
        `inherited` are the sockets of the previous data plane, which the holders behind `holder` have.
        """
        self._loop = loop
        self._on_message = on_message
        self._closed = closed
        self._max_frames = max_frames
        self._by_fd: dict[int, ZmtpPeer] = {}
        self._tracked = self._taken_bytes = 0
        self._reported_at = -_REPORT_S
        self._going_on = False
        """Whether another turn is scheduled on the loop."""
        self._waiting: dict[ZmtpPeer, None] = {}
        """Connections that may have data, in the order of their turns."""
        self._numbers = int.from_bytes(os.urandom(7), "big")
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._pid_resolver = PidResolver(self._set_owners)
        # A separate epoll within that of the loop bounds the time of a turn, however many clients there are.
        self._epoll = select.epoll()
        listener, connections = sorted_out(inherited, url, holder)
        self._handed_over = HandedOver(holder, connections)
        try:
            self._listener = listen(url) if listener is None else listener
        except OSError:
            for sock in connections.values():
                shut_down(sock)
            raise
        self.url = url_of(self._listener)
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        loop.register(self._epoll.fileno(), self.turn)
        if listener is None:
            holder.made(LISTENER, 0, AdoptedSocket(self._listener.fileno()))
        for number, sock in connections.items():
            self._begin(sock, ZmtpConnection.continued(MAX_MESSAGE_BYTES, max_frames), number).doubtful = True

    def numbered(self, number: int) -> ZmtpPeer | None:
        """Return the connection with this number, or None. Holders store the number."""
        return next((connection for connection in self._by_fd.values() if connection.number == number), None)

    def __len__(self) -> int:
        """Return the number of tracked connections."""
        return self._tracked

    # ---- turns

    def turn(self) -> None:
        """Serve received data for a bounded time."""
        until = time.perf_counter() + TURN_S
        for fd, events in self._epoll.poll(0, READS_PER_TURN):
            connection = self._by_fd.get(fd)
            if connection is not None:
                self._waiting[connection] = None
                if events & _DISCONNECTS:
                    connection.disconnected = True
            elif fd == self._listener.fileno():
                self._accept()
        for connection in list(self._waiting):
            if connection not in self._waiting:  # it has ended in the meantime
                continue
            del self._waiting[connection]
            self._turn_of(connection, until)
            if time.perf_counter() > until:
                break
        self._wake_loop()

    def _wake_loop(self) -> None:
        """Schedule another turn, at most once, if there is work for which the kernel sends no event."""
        if self._waiting and not self._going_on:
            self._going_on = True
            self._loop.once(0.0, self._continue)

    def _continue(self) -> None:
        self._going_on = False
        if self._waiting:
            self.turn()

    def _turn_of(self, connection: ZmtpPeer, until: float) -> None:
        if connection.unsent:
            connection.flush()
        if not connection.unsent:
            self._read(connection, until, 0 if connection.disconnected else LEFT_BYTES)

    def _read(self, connection: ZmtpPeer, until: float, most: int) -> None:
        """Serve data in the kernel, and then remove the served data from the kernel.

        At most `most` bytes of an incomplete message stay in the kernel.
        """
        try:
            count = connection.socket.recv_into(self._buffer, READ_BYTES, _PEEK)
        except (BlockingIOError, InterruptedError):
            connection.doubtful = False
            self._keep(connection)
            return
        except OSError:
            count = 0
        if not count:
            self._end(connection)
            return
        if connection.doubtful:
            # If this data ends the process, the next one inherits all connections except this one.
            connection.doubtful = False
            connection.perhaps_answered = count
            self._handed_over.drop(connection.number)
        protocol = connection.protocol
        protocol.receive_data(bytes(self._view[:count]))
        if not self._serve(connection, until):
            return
        returned_bytes = protocol.give_back(most)
        connection.perhaps_answered = max(0, connection.perhaps_answered - (count - returned_bytes))
        if returned_bytes < count:
            with suppress(OSError):  # the peer is gone, as the next read will show
                connection.socket.recv_into(self._buffer, count - returned_bytes, _DISCARD)
            connection.unread_since = 0.0
        if returned_bytes and not connection.unread_since:
            connection.unread_since = time.monotonic()
        if protocol.whole:
            connection.taken_since = 0.0
        elif not connection.taken_since:
            connection.taken_since = time.monotonic()
        self._keep(connection)
        if connection.disconnected or (returned_bytes < count and (returned_bytes or count == READ_BYTES)):
            self._waiting[connection] = None  # more data, or the end, may follow
        self._count_taken(connection)

    def _count_taken(self, connection: ZmtpPeer) -> None:
        """End a connection whose data exceeds the limit over all connections."""
        taken_bytes = connection.protocol.taken_bytes + len(connection.unsent)
        if taken_bytes == connection.taken_bytes:
            return
        grew = taken_bytes > connection.taken_bytes
        self._taken_bytes += taken_bytes - connection.taken_bytes
        connection.taken_bytes = taken_bytes
        if grew and self._taken_bytes > MAX_TAKEN_BYTES:
            log.warning("lmcache.connection_ended", reason="clients hold too much memory", bytes=taken_bytes)
            self._end(connection)

    def _serve(self, connection: ZmtpPeer, until: float) -> bool:
        """Handle the messages that were read, and send the answers together. Return whether the connection is open."""
        protocol = connection.protocol
        try:
            while (frames := protocol.next_message()) is not None:
                if not connection.tracked:
                    self._remember(connection)
                self._on_message(connection, frames)
                if time.perf_counter() > until:
                    break
        except ZmtpError as error:
            log.debug("lmcache.connection_refused", reason=str(error))
            connection.flush()
            self._end(connection)
            return False
        connection.flush()
        return connection.open

    def _keep(self, connection: ZmtpPeer) -> None:
        """Give holders a connection while the next data plane could continue it, that is, between messages.

        Called after requests were served, so that a request that ends this process does not reach the next one.
        """
        is_idle = connection.protocol.ready and connection.protocol.whole and not connection.unsent
        if not is_idle:
            self._handed_over.drop(connection.number)
        elif connection.number not in self._handed_over:
            self._handed_over.add(connection.number, connection.socket.fileno())

    # ---- opening and closing connections

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if len(self._by_fd) >= _most():
                self._pause(f"{_most()} connections are open: {MAX_OPEN}, or half of the descriptors of this process")
                return
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                    return  # the error concerns the accepted connection, which is gone
                self._pause(error.strerror or "")
                return
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._begin(accepted, ZmtpConnection(MAX_MESSAGE_BYTES, self._max_frames)).flush()

    def _begin(self, peer: socket.socket, protocol: ZmtpConnection, number: int = 0) -> ZmtpPeer:
        peer.setblocking(False)
        self._numbers += 1
        connection = ZmtpPeer(number or self._numbers, peer, protocol, self._handed_over, time.monotonic())
        self._by_fd[peer.fileno()] = connection
        self._epoll.register(peer.fileno(), _CHANGES)
        return connection

    def _pause(self, reason: str) -> None:
        """Pause accepting, instead of spinning on a listener that stays readable. Waiting clients are served later."""
        now = time.monotonic()
        if now - self._reported_at > _REPORT_S:
            self._reported_at = now
            log.warning("lmcache.accept_failed", reason=reason)
        self._epoll.unregister(self._listener.fileno())
        self._loop.once(_ACCEPT_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if not self._epoll.closed:
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)

    def _remember(self, connection: ZmtpPeer) -> None:
        if connection.resolved_owner is not None:
            return
        if self._tracked >= MAX_CONNECTIONS:
            connection.resolved_owner = UNKNOWN
            return
        self._tracked += 1
        connection.tracked = True
        self._pid_resolver.resolve(connection.identity, connection.socket.fileno())

    def _end(self, connection: ZmtpPeer) -> None:
        fd = connection.socket.fileno()
        connection.open = False
        del self._by_fd[fd]
        self._waiting.pop(connection, None)
        self._epoll.unregister(fd)
        self._handed_over.drop(connection.number)
        shut_down(connection.socket)
        self._tracked -= connection.tracked
        self._taken_bytes -= connection.taken_bytes
        self._closed(connection)

    def tick(self) -> None:
        """Close connections that exceed a time limit, and read incomplete messages out of the kernel after LEFT_S.

        Called every second.
        """
        now = time.monotonic()
        for connection in list(self._by_fd.values()):
            silent = not connection.protocol.ready and now - connection.since > HANDSHAKE_S
            if silent or (connection.taken_since and now - connection.taken_since > MESSAGE_S):
                self._end(connection)
            elif connection.unread_since and now - connection.unread_since > LEFT_S and not connection.unsent:
                self._read(connection, time.perf_counter() + TURN_S, 0)
        self._wake_loop()

    def _set_owners(self, owners: Mapping[bytes, Owner]) -> None:
        """Store the owners that were found. Called on the resolver's thread.

        A connection whose descriptor was reused in the meantime is no longer open.
        """
        for connection in list(self._by_fd.values()):
            owner = owners.get(connection.identity)
            if owner is not None and connection.resolved_owner is None:
                connection.resolved_owner = owner

    def close(self, *, hand_over: bool = False) -> None:
        """Stop serving, and send pending answers as far as the kernel accepts them.

        With `hand_over`, sockets of which holders have a duplicate stay open for the next data plane.
        """
        self._pid_resolver.close()
        self._loop.unregister(self._epoll.fileno())
        if hand_over:
            self._listener.close()
        else:
            shut_down(self._listener)
        for connection in self._by_fd.values():
            connection.flush()
            connection.open = False
            if hand_over and connection.number in self._handed_over and not connection.unsent:
                connection.socket.close()
            else:
                shut_down(connection.socket)
        self._by_fd.clear()
        self._waiting.clear()
        self._epoll.close()


def _most() -> int:
    """Return the maximum number of connections. As many descriptors remain for segments and engines."""
    return min(MAX_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

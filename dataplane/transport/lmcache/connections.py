"""Connections of clients: their bytes in and out, what they speak, whose process they are of, and when they close."""

from __future__ import annotations

import ipaddress
import os
import resource
import select
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM

import structlog

from dataplane.transport.lmcache.processes import UNKNOWN, Lookout, Owner, owners_of
from dataplane.transport.lmcache.wire import DIALECT_053, MAX_ARGUMENTS, Dialect
from dataplane.transport.lmcache.zmtp import Malformed, Stream, message
from dataplane.transport.loop import Loop

MAX_CONNECTIONS = 16_384
"""That are remembered; more of them are served, but not told apart by process."""
MAX_MESSAGE_BYTES = 64 << 20
"""Whoever sends more in one message loses its connection: a request of a million tokens has a tenth of it."""
HANDSHAKE_S = 30.0
"""In which a connection says that it speaks ZMTP."""
TURN_S = 0.005
"""In which a turn begins requests, before others of this process have theirs."""
READS_PER_TURN = 64
READ_BYTES = 256 << 10
"""At once from one connection."""
_LISTEN_BACKLOG = 1024
_ACCEPTS_PER_TURN = 64
_ACCEPT_PAUSE_S = 0.2
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT

log = structlog.stdlib.get_logger()


@dataclass(eq=False, slots=True)
class Connection:
    """One client's connection."""

    identity: bytes
    """Which no other connection has, nor had before a restart."""
    socket: socket.socket
    stream: Stream
    since: float
    find: Callable[[Connection], Owner] = lambda connection: UNKNOWN
    """Looks for its process."""
    dialect: Dialect = DIALECT_053
    introduced: bool = False
    """It said itself which dialect it speaks."""
    found: Owner | None = None
    """Whose it is, once that was looked for."""
    open: bool = True
    known: bool = False
    """It is remembered: what it looks up is held in its own name."""
    told: set[int] = field(default_factory=set)
    """Workers that were told to register."""
    client: int = 0
    """The core's engine of a scheduler that looks up here; 0 for none."""
    answers: list[bytes] = field(default_factory=list)
    """That have yet to be sent."""
    left: bytes = b""
    """What the kernel did not take of those before. Nothing is read while there is some: a peer that takes no answers
    asks for no more."""

    @property
    def owner(self) -> Owner:
        """Its process; looked for now, where that did not happen yet."""
        if self.found is None:
            self.found = self.find(self)
        return self.found

    def answer(self, frames: list[bytes]) -> None:
        """Say something, once `flush` is called."""
        self.answers.append(message(frames))


class Connections:
    """Listens at one TCP address, and serves what comes in turns."""

    def __init__(
        self,
        loop: Loop,
        url: str,
        asked: Callable[[Connection, list[bytes]], None],
        closed: Callable[[Connection], None],
    ) -> None:
        """`asked` has the frames of each message; it may answer at once or later. Raises OSError when `url` cannot be
        listened at."""
        self._loop = loop
        self._asked = asked
        self._closed = closed
        self._listener = _listen(url)
        self.url = _url_of(self._listener)
        self._by_fd: dict[int, Connection] = {}
        self._known = 0
        self._backlog: set[Connection] = set()
        """Those of whose words some are read and not served yet."""
        self._numbers = int.from_bytes(os.urandom(7), "big")
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._lookout = Lookout(self._found)
        # An epoll of its own within the loop's: one turn has its time however many clients there are.
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), _READ)
        loop.register(self._epoll.fileno(), self.turn)

    def __len__(self) -> int:
        """Those that are remembered."""
        return self._known

    # ---- turns

    def turn(self) -> None:
        """Serve what came, for a bounded time."""
        until = time.perf_counter() + TURN_S
        for connection in list(self._backlog):
            self._backlog.discard(connection)
            self._serve(connection, until)
        for fd, events in self._epoll.poll(0, READS_PER_TURN):
            if fd == self._listener.fileno():
                self._accept()
                continue
            ready = self._by_fd.get(fd)
            if ready is None or ready in self._backlog:
                continue
            if ready.left:
                self.flush(ready)
                if ready.left and events & ~_WRITE:  # an error: it takes nothing any more
                    self._end(ready)
                continue
            self._read(ready, until)
            if time.perf_counter() > until:
                break
        if self._backlog:
            self._loop.once(0.0, self._go_on)

    def _go_on(self) -> None:
        if self._backlog:
            self.turn()

    def _read(self, connection: Connection, until: float) -> None:
        try:
            count = connection.socket.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if not count:
            self._end(connection)
            return
        connection.stream.feed(bytes(self._view[:count]))
        self._serve(connection, until)

    def _serve(self, connection: Connection, until: float) -> None:
        """Hand on the messages of what was read, and send the answers together."""
        stream = connection.stream
        try:
            while (frames := stream.next()) is not None:
                if not connection.known:
                    self._remember(connection)
                self._asked(connection, frames)
                if time.perf_counter() > until:
                    self._backlog.add(connection)
                    break
        except Malformed as error:
            log.debug("lmcache.connection_refused", reason=str(error))
            self.flush(connection)
            self._end(connection)
            return
        self.flush(connection)
        if connection.left:
            self._backlog.discard(connection)

    def flush(self, connection: Connection) -> None:
        """Send what is to be said. What the kernel does not take now goes when it does."""
        reply = connection.stream.reply
        if reply:
            connection.answers.append(bytes(reply))
            reply.clear()
        if not connection.open or not (connection.answers or connection.left):
            return
        waited = bool(connection.left)
        data = b"".join((connection.left, *connection.answers))
        connection.answers.clear()
        try:
            sent = connection.socket.send(data, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:  # it is gone, as reading will tell
            sent, data = 0, b""
        connection.left = data[sent:]
        if bool(connection.left) != waited:
            self._epoll.modify(connection.socket.fileno(), _WRITE if connection.left else _READ)
            if waited:
                self._backlog.add(connection)
                self._loop.once(0.0, self._go_on)

    # ---- they come and go

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if len(self._by_fd) >= _most():
                self._pause("half of the descriptors of this process are taken")
                return
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                    return  # of the connection that came, which is gone
                self._pause(error.strerror or "")
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._numbers += 1
            connection = Connection(
                self._numbers.to_bytes(8, "big"),
                accepted,
                Stream(MAX_MESSAGE_BYTES, MAX_ARGUMENTS),
                time.monotonic(),
            )
            self._by_fd[accepted.fileno()] = connection
            self._epoll.register(accepted.fileno(), _READ)
            self.flush(connection)

    def _pause(self, reason: str) -> None:
        """The listener stays readable, so pause instead of spinning. Who waits is served when there is room."""
        log.warning("lmcache.accept_failed", reason=reason)
        self._epoll.unregister(self._listener.fileno())
        self._loop.once(_ACCEPT_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if not self._epoll.closed:
            self._epoll.register(self._listener.fileno(), _READ)

    def _remember(self, connection: Connection) -> None:
        if connection.found is not None:
            return
        if self._known >= MAX_CONNECTIONS:
            connection.found = UNKNOWN
            return
        self._known += 1
        connection.known, connection.find = True, _owner
        self._lookout.ask(connection.identity, connection.socket.fileno())

    def _end(self, connection: Connection) -> None:
        fd = connection.socket.fileno()
        connection.open = False
        del self._by_fd[fd]
        self._backlog.discard(connection)
        self._epoll.unregister(fd)
        connection.socket.close()
        self._known -= connection.known
        self._closed(connection)

    def end_silent(self) -> None:
        """Close what did not say what it speaks. Called every second."""
        now = time.monotonic()
        for connection in list(self._by_fd.values()):
            if not connection.stream.ready and now - connection.since > HANDSHAKE_S:
                self._end(connection)

    def _found(self, owners: Mapping[bytes, Owner]) -> None:
        """On the look-out's thread. Whose descriptor was another one's meanwhile is not open any more."""
        for connection in list(self._by_fd.values()):
            owner = owners.get(connection.identity)
            if owner is not None and connection.found is None:
                connection.found = owner

    def close(self) -> None:
        """Stop. What was answered is sent as far as the kernel takes it."""
        self._lookout.close()
        self._loop.unregister(self._epoll.fileno())
        self._listener.close()
        for connection in self._by_fd.values():
            self.flush(connection)
            connection.open = False
            connection.socket.close()
        self._by_fd.clear()
        self._backlog.clear()
        self._epoll.close()


def _owner(connection: Connection) -> Owner:
    fd = connection.socket.fileno()
    return owners_of([fd])[fd] if connection.open else UNKNOWN


def _most() -> int:
    """Connections at a time: as many descriptors stay for segments and engines."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2


def _listen(url: str) -> socket.socket:
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    address = ipaddress.ip_address(host.strip("[]"))
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # A port with connections of a data plane before this one is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        where = socket.getaddrinfo(
            str(address), int(port), family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
        listener.bind(where[0][4])
        listener.listen(_LISTEN_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

"""Connections of clients: their bytes in and out, what they speak, whose process they are of, and when they close.

What a client said stays in the kernel until it was answered, and whoever holds this process's memory for the next one
holds duplicates of its sockets too: when it is killed, the next one finds every request that had no answer yet.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM

import structlog

from dataplane.transport.lmcache.processes import UNKNOWN, Lookout, Owner, owners_of
from dataplane.transport.lmcache.sockets import (
    CONNECTION,
    LISTENER,
    Inherited,
    Keeper,
    Kept,
    hang_up,
    listen,
    sorted_out,
    url_of,
)
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
LEFT_BYTES = 128 << 10
"""Of a message that has not come whole, which stay in the kernel; a longer one is taken out as it comes."""
LEFT_S = 1.0
"""After which it is taken out too: the kernel may have no room for its end."""
MAX_KEPT = 256
"""Connections that holders keep: each is a descriptor of theirs."""
_ACCEPTS_PER_TURN = 64
_ACCEPT_PAUSE_S = 0.2
_TELL_S = 60.0
MAX_TAKEN_BYTES = 256 << 20
"""Of all clients together: messages that have not come whole, and answers that are not taken."""
MESSAGE_S = 120.0
"""In which a message that began must have come whole."""
_CHANGES = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
"""What lies unread in the kernel is no news."""
_HANGS_UP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_PEEK, _DISCARD = int(socket.MSG_PEEK), int(socket.MSG_TRUNC)

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
    kept: bool = False
    """Holders have a duplicate of its socket."""
    doubtful: bool = False
    """The data plane before this one may have ended by what it said."""
    perhaps_answered: int = 0
    """Bytes of requests that lay in the kernel when this data plane took over: the one before may have answered them,
    and was killed before it took them out."""
    ending: bool = False
    """Its peer says nothing any more: what lies in the kernel is all."""
    unread_since: float = 0.0
    """When the begin of a message was left in the kernel; 0 for no such one."""
    taken_since: float = 0.0
    """When the begin of a message was taken out; 0 for no such one."""
    taken_bytes: int = 0
    """That are held for it, as of its last turn."""

    @property
    def number(self) -> int:
        return int.from_bytes(self.identity, "big")

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
        keeper: Keeper | None = None,
        inherited: Sequence[Inherited] = (),
    ) -> None:
        """`asked` has the frames of each message; it may answer at once or later. `inherited` are sockets of the data
        plane before, which the holders behind `keeper` have. Raises OSError when `url` cannot be listened at."""
        self._loop = loop
        self._asked = asked
        self._closed = closed
        self._keeper = keeper
        self._by_fd: dict[int, Connection] = {}
        self._known = self._kept = self._taken_bytes = 0
        self._told_at = -_TELL_S
        self._going_on = False
        """The loop was told that some wait."""
        self._waiting: dict[Connection, None] = {}
        """Those that may have said something, in the order of their turns."""
        self._numbers = int.from_bytes(os.urandom(7), "big")
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._lookout = Lookout(self._found)
        # An epoll of its own within the loop's: one turn has its time however many clients there are.
        self._epoll = select.epoll()
        listener, connections = sorted_out(inherited, url, keeper)
        try:
            self._listener = listen(url) if listener is None else listener
        except OSError:
            for each in connections.values():
                hang_up(each)
            raise
        self.url = url_of(self._listener)
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        loop.register(self._epoll.fileno(), self.turn)
        if keeper is not None and listener is None:
            keeper.made(LISTENER, 0, Kept(self._listener.fileno()))
        for number, each in connections.items():
            connection = self._begin(each, Stream.under_way(MAX_MESSAGE_BYTES, MAX_ARGUMENTS), number)
            connection.kept = connection.doubtful = keeper is not None
            self._kept += connection.kept

    def numbered(self, number: int) -> Connection | None:
        """The connection that has this number; holders keep it."""
        return next((each for each in self._by_fd.values() if each.number == number), None)

    def __len__(self) -> int:
        """Those that are remembered."""
        return self._known

    # ---- turns

    def turn(self) -> None:
        """Serve what came, for a bounded time."""
        until = time.perf_counter() + TURN_S
        for fd, events in self._epoll.poll(0, READS_PER_TURN):
            connection = self._by_fd.get(fd)
            if connection is not None:
                self._waiting[connection] = None
                if events & _HANGS_UP:
                    connection.ending = True
            elif fd == self._listener.fileno():
                self._accept()
        for connection in list(self._waiting):
            if connection not in self._waiting:  # it ended meanwhile
                continue
            del self._waiting[connection]
            self._turn_of(connection, until)
            if time.perf_counter() > until:
                break
        self._tell_loop()

    def _tell_loop(self) -> None:
        """There is more to do than the kernel tells of: once, however many wait."""
        if self._waiting and not self._going_on:
            self._going_on = True
            self._loop.once(0.0, self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        if self._waiting:
            self.turn()

    def _turn_of(self, connection: Connection, until: float) -> None:
        if connection.left:
            self.flush(connection)
        if not connection.left:
            self._read(connection, until, 0 if connection.ending else LEFT_BYTES)

    def _read(self, connection: Connection, until: float, most: int) -> None:
        """Serve what lies in the kernel, and then take out what was served; at most `most` bytes of a message that has
        not come whole stay there."""
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
            # If this ends the process, the next one does not get it; but all the others.
            connection.doubtful = False
            connection.perhaps_answered = count
            self._drop(connection)
        stream = connection.stream
        stream.feed(bytes(self._view[:count]))
        if not self._serve(connection, until):
            return
        left = stream.give_back(most)
        connection.perhaps_answered = max(0, connection.perhaps_answered - (count - left))
        if left < count:
            with suppress(OSError):  # it is gone, as the next read will tell
                connection.socket.recv_into(self._buffer, count - left, _DISCARD)
            connection.unread_since = 0.0
        if left and not connection.unread_since:
            connection.unread_since = time.monotonic()
        if stream.whole:
            connection.taken_since = 0.0
        elif not connection.taken_since:
            connection.taken_since = time.monotonic()
        self._keep(connection)
        if connection.ending or (left < count and (left or count == READ_BYTES)):
            self._waiting[connection] = None  # there may be more, and there is an end
        self._count_taken(connection)

    def _count_taken(self, connection: Connection) -> None:
        """End a connection that holds what would be too much for all together."""
        taken = connection.stream.taken_bytes + len(connection.left)
        if taken == connection.taken_bytes:
            return
        more = taken > connection.taken_bytes
        self._taken_bytes += taken - connection.taken_bytes
        connection.taken_bytes = taken
        if more and self._taken_bytes > MAX_TAKEN_BYTES:
            log.warning("lmcache.connection_ended", reason="clients hold too much memory", bytes=taken)
            self._end(connection)

    def _serve(self, connection: Connection, until: float) -> bool:
        """Hand on the messages of what was read, and send the answers together. False: the connection ended."""
        stream = connection.stream
        try:
            while (frames := stream.next()) is not None:
                if not connection.known:
                    self._remember(connection)
                self._asked(connection, frames)
                if time.perf_counter() > until:
                    break
        except Malformed as error:
            log.debug("lmcache.connection_refused", reason=str(error))
            self.flush(connection)
            self._end(connection)
            return False
        self.flush(connection)
        return connection.open

    def _keep(self, connection: Connection) -> None:
        """Let holders have a connection as long as the next data plane could go on with it: between messages. Called
        when what it said was served: a request that ends this process is not there for the next one."""
        if self._keeper is None:
            return
        wanted = connection.stream.ready and connection.stream.whole and not connection.left
        if wanted == connection.kept or (wanted and self._kept >= MAX_KEPT):
            return
        if not wanted:
            self._drop(connection)
            return
        connection.kept = True
        self._kept += 1
        self._keeper.made(CONNECTION, connection.number, Kept(connection.socket.fileno()))

    def _drop(self, connection: Connection) -> None:
        if connection.kept and self._keeper is not None:
            connection.kept = False
            self._kept -= 1
            self._keeper.dropped(CONNECTION, connection.number)

    def keepable(self) -> Iterator[tuple[str, int, Kept]]:
        """Sockets that holders have: kind, number and descriptor."""
        yield LISTENER, 0, Kept(self._listener.fileno())
        for connection in self._by_fd.values():
            if connection.kept:
                yield CONNECTION, connection.number, Kept(connection.socket.fileno())

    def flush(self, connection: Connection) -> None:
        """Send what is to be said. What the kernel does not take now goes when it does."""
        reply = connection.stream.reply
        if reply:
            connection.answers.insert(0, bytes(reply))  # READY comes before the first answer
            reply.clear()
        if not connection.open or not (connection.answers or connection.left):
            return
        data = b"".join((connection.left, *connection.answers))
        connection.answers.clear()
        try:
            sent = connection.socket.send(data, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:  # it is gone, as reading will tell
            sent, data = 0, b""
        connection.left = data[sent:]
        if connection.left and connection.kept:
            self._drop(connection)  # half an answer is said: nobody else can go on there

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
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.flush(self._begin(accepted, Stream(MAX_MESSAGE_BYTES, MAX_ARGUMENTS)))

    def _begin(self, peer: socket.socket, stream: Stream, number: int = 0) -> Connection:
        peer.setblocking(False)
        self._numbers += 1
        connection = Connection((number or self._numbers).to_bytes(8, "big"), peer, stream, time.monotonic())
        self._by_fd[peer.fileno()] = connection
        self._epoll.register(peer.fileno(), _CHANGES)
        return connection

    def _pause(self, reason: str) -> None:
        """The listener stays readable, so pause instead of spinning. Who waits is served when there is room."""
        now = time.monotonic()
        if now - self._told_at > _TELL_S:
            self._told_at = now
            log.warning("lmcache.accept_failed", reason=reason)
        self._epoll.unregister(self._listener.fileno())
        self._loop.once(_ACCEPT_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if not self._epoll.closed:
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)

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
        self._waiting.pop(connection, None)
        self._epoll.unregister(fd)
        self._drop(connection)
        hang_up(connection.socket)
        self._known -= connection.known
        self._taken_bytes -= connection.taken_bytes
        self._closed(connection)

    def tick(self) -> None:
        """Close what did not say what it speaks; take messages out of the kernel whose end does not come. Called every
        second."""
        now = time.monotonic()
        for connection in list(self._by_fd.values()):
            silent = not connection.stream.ready and now - connection.since > HANDSHAKE_S
            if silent or (connection.taken_since and now - connection.taken_since > MESSAGE_S):
                self._end(connection)
            elif connection.unread_since and now - connection.unread_since > LEFT_S and not connection.left:
                self._read(connection, time.perf_counter() + TURN_S, 0)
        self._tell_loop()

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
        hang_up(self._listener)
        for connection in self._by_fd.values():
            self.flush(connection)
            connection.open = False
            hang_up(connection.socket)
        self._by_fd.clear()
        self._waiting.clear()
        self._epoll.close()


def _owner(connection: Connection) -> Owner:
    fd = connection.socket.fileno()
    return owners_of([fd])[fd] if connection.open else UNKNOWN


def _most() -> int:
    """Connections at a time: as many descriptors stay for segments and engines."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2

"""Connections of clients: what they speak, whose process they are of, and when they close.

A ROUTER socket says nothing of connections that close, but its monitor does, by descriptor; and every message says
which descriptor it came through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import zmq
from zmq.utils.monitor import parse_monitor_message

from dataplane.transport.lmcache.processes import UNKNOWN, Lookout, Owner, owners_of
from dataplane.transport.lmcache.wire import DIALECT_053, Dialect

MAX_CONNECTIONS = 16_384
"""That are remembered; more of them are served, but not told apart by process."""
_MONITOR = "inproc://lmcache-monitor"


@dataclass(eq=False, slots=True)
class Connection:
    """One client's connection."""

    identity: bytes
    fd: int = -1
    """Descriptor of its socket in this process, which belongs to libzmq; -1 where it is not known."""
    find: Callable[[Connection], Owner] = lambda connection: UNKNOWN
    """Looks for its process."""
    dialect: Dialect = DIALECT_053
    introduced: bool = False
    """It said itself which dialect it speaks."""
    found: Owner | None = None
    """Whose it is, once that was looked for."""
    open: bool = True
    """False: it closed before its request was read. Nothing is begun for it: its end was heard of already."""
    known: bool = True
    """It is remembered until it closes."""
    told: set[int] = field(default_factory=set)
    """Workers that were told to register."""
    client: int = 0
    """The core's engine of a scheduler that looks up here; 0 for none."""

    @property
    def owner(self) -> Owner:
        """Its process; looked for now, where that did not happen yet."""
        if self.found is None:
            self.found = self.find(self)
        return self.found


class Connections:
    """Those that are open."""

    def __init__(self, socket: zmq.Socket[bytes], closed: Callable[[Connection], None]) -> None:
        """Watches `socket`, which must not be bound yet."""
        self._socket = socket
        self._closed = closed
        self._by_identity: dict[bytes, Connection] = {}
        self._by_fd: dict[int, Connection] = {}
        self._accepted: set[int] = set()
        """Descriptors of open connections, also of those that said nothing yet."""
        self._lookout = Lookout(self._found)
        socket.monitor(_MONITOR, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
        self.monitor.connect(_MONITOR)

    def __len__(self) -> int:
        return len(self._by_identity)

    def of(self, identity: zmq.Frame) -> Connection:
        """The connection of a message, by its first frame."""
        name = identity.bytes
        known = self._by_identity.get(name)
        if known is not None:
            return known
        # What closed before this message came is heard of first: its descriptor may be this one's now.
        self.take_events()
        fd = _descriptor(identity)
        if fd < 0 or fd not in self._accepted or len(self._by_identity) >= MAX_CONNECTIONS:
            # Without a descriptor nobody tells when it closes: what is held for it ends with time alone.
            return Connection(name, found=UNKNOWN, open=fd < 0 or fd in self._accepted, known=False)
        before = self._by_fd.get(fd)
        if before is not None:  # a message that was left over from a connection that had this descriptor
            self._end(before)
        connection = self._by_identity[name] = self._by_fd[fd] = Connection(name, fd, self._owner)
        self._lookout.ask(name, fd)
        return connection

    def take_events(self) -> bool:
        """Hear of connections that opened and closed. False: there is nothing left to hear."""
        while True:
            try:
                frames = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            event = parse_monitor_message(frames)
            fd = event["value"]
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._accepted.add(fd)
                continue
            self._accepted.discard(fd)
            connection = self._by_fd.get(fd)
            if connection is not None:
                self._end(connection)

    def _end(self, connection: Connection) -> None:
        connection.open = False
        del self._by_fd[connection.fd]
        del self._by_identity[connection.identity]
        self._closed(connection)

    def _owner(self, connection: Connection) -> Owner:
        """The process of a connection, looked for now: true only if its descriptor was its own all the time."""
        owner = owners_of([connection.fd])[connection.fd]
        self.take_events()
        return owner if connection.open else UNKNOWN

    def _found(self, owners: Mapping[bytes, Owner]) -> None:
        """On the look-out's thread. Whose descriptor was another one's meanwhile is not here any more."""
        for identity, owner in owners.items():
            connection = self._by_identity.get(identity)
            if connection is not None and connection.found is None:
                connection.found = owner

    def close(self) -> None:
        self._lookout.close()
        self._socket.disable_monitor()
        self.monitor.close(linger=0)


def _descriptor(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1

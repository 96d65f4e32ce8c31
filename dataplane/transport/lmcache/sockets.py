"""Sockets of the gateway as such: one that listens, and those that go from one data plane to the next."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

RECEIVE_BYTES = 1 << 20
"""That the kernel takes ahead, where it may."""
SOCKETS = LISTENER, CONNECTION = "listener", "connection"
"""Kinds of sockets, as holders know them."""
_LISTEN_BACKLOG = 1024

Inherited = tuple[str, int, int]
"""Kind, number and descriptor, which is owned by who gets it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A socket for a holder."""

    fd: int
    nbytes: int = 0


class Keeper(Protocol):
    """Tells whoever holds this process's memory of its sockets."""

    def made(self, kind: str, number: int, file: Kept, /) -> None: ...

    def dropped(self, kind: str, number: int, /) -> None: ...


def let_go(inherited: Sequence[Inherited], keeper: Keeper | None = None) -> None:
    """Close sockets that nobody goes on with."""
    for kind, number, fd in inherited:
        try:
            hang_up(socket.socket(fileno=fd))
        except OSError:  # no socket
            os.close(fd)
        if keeper is not None:
            keeper.dropped(kind, number)


def sorted_out(
    inherited: Sequence[Inherited], url: str, keeper: Keeper | None
) -> tuple[socket.socket | None, dict[int, socket.socket]]:
    """The listener at this URL, if there is one, and the connections by number; what is neither is closed."""
    listener: socket.socket | None = None
    connections: dict[int, socket.socket] = {}
    for kind, number, fd in inherited:
        with suppress(OSError):  # no socket
            each = socket.socket(fileno=fd)
            with suppress(OSError):  # closed meanwhile
                listens = each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if kind == LISTENER and listens and listener is None and url_of(each) == url:
                    listener = each
                    continue
                if kind == CONNECTION and not listens and number not in connections and _connected(each):
                    connections[number] = each
                    continue
            each.detach()
        let_go([(kind, number, fd)], keeper)
    return listener, connections


def _connected(peer: socket.socket) -> bool:
    try:
        peer.getpeername()
    except OSError:
        return False
    return True


def hang_up(connection: socket.socket) -> None:
    """Close a socket for everybody, also for who holds a duplicate of it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def listen(url: str) -> socket.socket:
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    address = ipaddress.ip_address(host.strip("[]"))
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # A port with connections of a data plane before this one is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
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


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

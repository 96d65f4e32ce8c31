"""Sockets of the gateway: the listener, and the sockets that one data plane passes to the next."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from dataplane.base.addresses import host_and_port
from dataplane.holding import CONNECTION, LISTENER

RECEIVE_BYTES = 1 << 20
"""Requested size of the kernel's receive buffer."""
_LISTEN_BACKLOG = 1024

InheritedSocket = tuple[str, int, int]
"""Kind, number and file descriptor. The receiver owns the descriptor."""


@dataclass(frozen=True, slots=True)
class AdoptedSocket:
    """A socket that is given to holders."""

    fd: int
    nbytes: int = 0


class SocketStore(Protocol):
    """Inform the holders of this process's memory of its sockets."""

    def made(self, kind: str, number: int, file: AdoptedSocket, /) -> None: ...

    def dropped(self, kind: str, number: int, /) -> None: ...


def release(inherited: Sequence[InheritedSocket], holder: SocketStore) -> None:
    """Close inherited sockets that are not continued."""
    for kind, number, fd in inherited:
        try:
            shut_down(socket.socket(fileno=fd))
        except OSError:  # no socket
            os.close(fd)
        holder.dropped(kind, number)


def sorted_out(
    inherited: Sequence[InheritedSocket], url: str, holder: SocketStore
) -> tuple[socket.socket | None, dict[int, socket.socket]]:
    """Return the listener at this URL, if any, and the connections by number. Close all other sockets."""
    listener: socket.socket | None = None
    connections: dict[int, socket.socket] = {}
    for kind, number, fd in inherited:
        with suppress(OSError):  # no socket
            sock = socket.socket(fileno=fd)
            with suppress(OSError):  # closed in the meantime
                listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if kind == LISTENER and listens and listener is None and url_of(sock) == url:
                    listener = sock
                    continue
                if kind == CONNECTION and not listens and number not in connections and _connected(sock):
                    connections[number] = sock
                    continue
            sock.detach()
        release([(kind, number, fd)], holder)
    if listener is not None and not _in_this_network(listener):
        peers = [(CONNECTION, number, connection.detach()) for number, connection in connections.items()]
        release([(LISTENER, 0, listener.detach()), *peers], holder)
        return None, {}
    return listener, connections


def _in_this_network(listener: socket.socket) -> bool:
    """Return whether a listener is in the network namespace of this process. After a container was killed and started
    again, it is not, and no client can connect to it: the address is free here."""
    with socket.socket(listener.family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if listener.family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(listener.getsockname())
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _connected(peer: socket.socket) -> bool:
    try:
        peer.getpeername()
    except OSError:
        return False
    return True


def shut_down(connection: socket.socket) -> None:
    """Close a socket for all processes, also for those that have a duplicate of it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def listen(url: str) -> socket.socket:
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    address = ipaddress.ip_address(host.strip("[]"))
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # Connections of the previous data plane must not block the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        where = socket.getaddrinfo(str(address), int(port), family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        listener.bind(where[0][4])
        listener.listen(_LISTEN_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"tcp://{host_and_port(host, port)}"

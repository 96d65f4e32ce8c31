"""Who is at the other end of an AF_UNIX socket, and proof of when that process is gone."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from struct import calcsize, unpack

_SO_PEERPIDFD = 77
_CREDENTIALS = "iII"


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected. `pidfd` becomes readable when it has exited; the holder closes it."""

    pid: int
    uid: int
    pidfd: int


def peer_of(connection: socket.socket) -> Peer:
    """Credentials of the process that called connect. Raises OSError when it cannot be proven who it is."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, calcsize(_CREDENTIALS))
    pid, uid, _ = unpack(_CREDENTIALS, raw)
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        if pid <= 0:  # another pid namespace, and a kernel that cannot hand out its pidfd
            raise
        pidfd = os.pidfd_open(pid)
    else:
        os.set_inheritable(pidfd, False)
    return Peer(pid, uid, pidfd)

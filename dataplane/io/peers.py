"""Identity of the process at the other end of an AF_UNIX socket, and proof that it has exited."""

from __future__ import annotations

import os
import re
import select
import socket
from contextlib import suppress
from dataclasses import dataclass
from struct import calcsize, unpack

from dataplane.ipc.processes import NO_PROCESS

_SO_PEERPIDFD = 77
_CREDENTIALS = "iII"
_DEVICE = re.compile(r" /dev/(?!shm/|zero\b|null\b|hugepages)")

IN_FLIGHT = "too many descriptors are in flight to processes that do not read their answers"


@dataclass(frozen=True, slots=True)
class Peer:
    """A connected process. `pidfd` becomes readable when the process has exited; the holder of the `Peer` closes it."""

    pid: int
    uid: int
    pidfd: int


def peer_of(connection: socket.socket) -> Peer:
    """Return the credentials of the process that called connect. Raises OSError if its identity cannot be proven."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, calcsize(_CREDENTIALS))
    pid, uid, _ = unpack(_CREDENTIALS, raw)
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        if pid <= 0:  # another pid namespace, and the kernel cannot return its pidfd
            raise
        pidfd = os.pidfd_open(pid)
    else:
        os.set_inheritable(pidfd, False)
    return Peer(pid, uid, pidfd)


def started_at(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if it is unknown."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[19])
    return 0


def open_process(pid: int, started: int) -> int | None:
    """Return a pidfd of the process that had this pid and start time; None if it is gone. Raises OSError.

    Without a start time, any process with the pid is accepted.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in NO_PROCESS:
            return None
        raise
    if has_exited(pidfd) or (started and started_at(pid) != started):
        os.close(pidfd)
        return None
    return pidfd


def maps_device(line: str) -> bool:
    """Return whether a line of /proc/<pid>/maps maps a device."""
    return _DEVICE.search(line) is not None


def may_pin(pid: int) -> bool:
    """Return whether a process maps a device, which may write to its memory by physical address; True if unknown."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return any(map(maps_device, file))
    except FileNotFoundError:  # the process is gone
        return pid == 0
    except (OSError, ProcessLookupError):
        return True


def has_exited(pidfd: int, wait_s: float = 0.0) -> bool:
    """Return whether the process has exited, after waiting up to `wait_s` seconds."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))

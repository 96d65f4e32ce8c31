"""Proof that a process has exited, by its pid, its start time and a pidfd. A reused pid is not mistaken for it. The
process may be named by its pid, or be the one at the other end of an AF_UNIX socket."""

from __future__ import annotations

import errno
import os
import select
import socket
from dataclasses import dataclass
from struct import calcsize, unpack

_SO_PEERPIDFD = 77
_CREDENTIALS = "iII"
NO_PROCESS = (errno.ESRCH, errno.EINVAL, errno.ENOENT)
"""Errors of pidfd_open(2) for a number that is the pid of no process: it is not in use, or it is that of a thread
(EINVAL, or ENOENT of newer kernels). Other errors say nothing about the process."""


def start_time(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if the process is gone. Raises OSError if it
    cannot be read, for example because this process has no free descriptor."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def has_exited(pidfd: int, wait_s: float = 0.0) -> bool:
    """Return whether the process has exited, after waiting up to `wait_s` seconds."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


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


class PidWatch:
    """Watches one process. It holds a pidfd from the first call of `alive` until `close`."""

    __slots__ = ("_gone", "_pidfd", "pid", "started")

    def __init__(self, pid: int, started: int) -> None:
        """`pid` and `started` name the process; see `start_time`."""
        self.pid = pid
        self.started = started
        self._pidfd = -1
        self._gone = False

    def alive(self) -> bool:
        """Return whether the process runs. A killed process that its parent has not reaped does not run. A process
        that this one cannot look at, for example for lack of descriptors, counts as running."""
        if self._pidfd < 0 and not self._gone:
            self._look()
        if self._pidfd < 0:
            return not self._gone
        return not has_exited(self._pidfd)

    def _look(self) -> None:
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OverflowError:  # shared memory may hold any number
            self._gone = True
        except OSError as error:
            self._gone = error.errno in NO_PROCESS
        else:
            try:
                self._gone = start_time(self.pid) != self.started
            except OSError:
                self.close()  # the next call looks again
            if self._gone:
                self.close()

    def is_of(self, pid: int, started: int) -> bool:
        """Return whether this is the watch of that process."""
        return self.pid == pid and self.started == started

    def close(self) -> None:
        """Close the pidfd."""
        pidfd, self._pidfd = self._pidfd, -1  # a process that is forked during the next line has it closed already
        if pidfd >= 0:
            os.close(pidfd)


MAX_PID = 1 << 22
"""Largest pid that Linux gives out."""


def runs(pid: int, started: int) -> bool:
    """Return whether the process with this pid and start time runs; False for a number that is no pid."""
    if not 0 < pid <= MAX_PID:
        return False
    watch = PidWatch(pid, started)
    try:
        return watch.alive()
    finally:
        watch.close()

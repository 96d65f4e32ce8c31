"""Proof that a process has exited, by its pid, its start time and a pidfd. A reused pid is not mistaken for it."""

from __future__ import annotations

import os
import select
from contextlib import suppress


def start_time(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if the process is gone."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[19])
    return 0


class PidWatch:
    """Watches one process. It holds a pidfd until `close`."""

    __slots__ = ("_pidfd", "pid", "started")

    def __init__(self, pid: int, started: int) -> None:
        """`pid` and `started` name the process; see `start_time`."""
        self.pid = pid
        self.started = started
        self._pidfd = -1
        with suppress(OSError, OverflowError):  # shared memory may hold any number
            self._pidfd = os.pidfd_open(pid)
            if start_time(pid) != started:
                self.close()

    def alive(self) -> bool:
        """Return whether the process runs. A killed process that its parent has not reaped does not run."""
        if self._pidfd < 0:
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def is_of(self, pid: int, started: int) -> bool:
        """Return whether this is the watch of that process."""
        return self.pid == pid and self.started == started

    def close(self) -> None:
        """Close the pidfd; the process counts as gone afterwards."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


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

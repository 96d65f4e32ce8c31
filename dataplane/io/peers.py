"""Processes by pid and start time, and what they may do to memory."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from dataplane.ipc.processes import NO_PROCESS, has_exited, start_time

_DEVICE = re.compile(r" /dev/(?!shm/|zero\b|null\b|hugepages)")

IN_FLIGHT = "too many descriptors are in flight to processes that do not read their answers"


def started_at(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if it is unknown."""
    with suppress(OSError):
        return start_time(pid)
    return 0


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if it is unknown."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])
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
    try:
        if not has_exited(pidfd) and (not started or start_time(pid) == started):
            return pidfd
    except OSError:  # the start time cannot be read, which says nothing about the process
        os.close(pidfd)
        raise
    os.close(pidfd)
    return None


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

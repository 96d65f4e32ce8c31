"""Locks on files of the state directory, which their processes hold until they end."""

import fcntl
import os
from pathlib import Path


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock file. Raises OSError if the file exists and cannot be opened."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False

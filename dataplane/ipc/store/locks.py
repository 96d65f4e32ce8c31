"""Locks that the kernel releases when their holder dies: open-file-description locks on bytes of the memory's file.

They belong to an open file, not to a process id: a reused pid, or one of another namespace, is never mistaken for the
holder. Byte 0 is the lock of the table, byte `1 + n` the proof that the process of row `n` lives.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dataplane.ipc.store.errors import StoreTimeout
from dataplane.ipc.store.layout import H_LOCK_PID, U64

_FLOCK = struct.Struct("hhqqi4x")
_FIRST_PAUSE_S = 20e-6
_LONGEST_PAUSE_S = 1e-3


def try_lock(fd: int, byte: int) -> bool:
    """Take the lock of a byte for the open file, unless another open file has it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock(fd: int, byte: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))


def row_byte(row: int) -> int:
    return 1 + row


class TableLock:
    """The lock of the table: `with lock.until(deadline): …`. Excludes other threads, too."""

    def __init__(self, fd: int, header: U64, pid: int) -> None:
        self._fd = fd
        self._header = header
        self._pid = pid
        self._threads = threading.Lock()

    @contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """Hold the lock. Raises StoreTimeout after `deadline`, a time of `time.monotonic`."""
        self.acquire(deadline)
        try:
            yield
        finally:
            self.release()

    def acquire(self, deadline: float) -> None:
        if not self._threads.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise StoreTimeout("another thread held the store's lock until the deadline")
        try:
            pause = _FIRST_PAUSE_S
            while not try_lock(self._fd, 0):
                if time.monotonic() >= deadline:
                    pid = int(self._header[H_LOCK_PID])
                    raise StoreTimeout(f"process {pid} held the store's lock until the deadline")
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            self._header[H_LOCK_PID] = self._pid
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        try:
            unlock(self._fd, 0)  # harmless if the lock was not taken
        finally:
            self._threads.release()

"""Memory that the data plane shares with the process that makes the requests of a tier. Values are passed in it.

It is a memfd without a name, which only these two processes have. The process cannot make it shorter, so reading it
cannot fail. It takes pages only where a value was written. It is no memory of the process's own, so it does not count
toward the limit of the process.
"""

import fcntl
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from dataplane.protocol.stored_blocks import Buffer

_PAGE_BYTES = mmap.PAGESIZE
_FIRST_BYTES = 1 << 24
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class MemoryRange(NamedTuple):
    """A range of the memory, at least as long as the value that it was taken for."""

    start: int
    nbytes: int
    """A power of two."""
    resident_bytes: int
    """The first bytes, which have pages."""


class RequestMemory:
    """Ranges of shared memory that are taken and given back. Thread-safe.

    The size of a range is the next power of two. Only the pages of the value that it holds are used.
    """

    def __init__(self, cached_bytes: int) -> None:
        """At most `cached_bytes` of ranges that were given back keep their pages. Raises OSError."""
        self._cached_bytes = cached_bytes
        self._lock = threading.Lock()
        self._cached: dict[int, deque[MemoryRange]] = {}
        """Ranges that were given back and have pages, by their size; the size that was used last is the last one."""
        self._empty: dict[int, list[MemoryRange]] = {}
        """Ranges that were given back and have no pages, by their size."""
        self._end = self._resident_bytes = 0
        self.fd = os.memfd_create("larder-requests", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(self.fd, 0o600)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            os.ftruncate(self.fd, _FIRST_BYTES)
            self._map = mmap.mmap(self.fd, _FIRST_BYTES)
        except OSError:
            os.close(self.fd)
            raise
        weakref.finalize(self, os.close, self.fd)  # not earlier: a thread may write to the file at any time

    @property
    def resident_bytes(self) -> int:
        """Bytes of ranges that were given back and keep their pages."""
        with self._lock:
            return self._resident_bytes

    def take(self, nbytes: int) -> MemoryRange:
        """Return a range of at least `nbytes` bytes, which may hold any bytes. Raises OSError."""
        size = max(_PAGE_BYTES, 1 << (nbytes - 1).bit_length())
        with self._lock:
            cached = self._cached.get(size)
            if cached:
                memory_range = cached.pop()
                self._resident_bytes -= memory_range.resident_bytes
                return memory_range
            empty = self._empty.get(size)
            if empty:
                return empty.pop()
            if self._end + size > len(self._map):
                self._grow(self._end + size)
            start = self._end
            self._end += size
            return MemoryRange(start, size, 0)

    def view(self, memory_range: MemoryRange, nbytes: int) -> memoryview:
        """Return the first bytes of a range."""
        return memoryview(self._map)[memory_range.start : memory_range.start + nbytes]

    def write(self, memory_range: MemoryRange, pieces: Sequence[Buffer]) -> None:
        """Copy the pieces to a range, while other threads run. Raises OSError."""
        at = memory_range.start
        for piece in pieces:
            remaining = memoryview(piece).cast("B")
            while remaining:
                written = os.pwrite(self.fd, remaining, at)
                remaining = remaining[written:]
                at += written

    def give_back(self, memory_range: MemoryRange, written: int) -> None:
        """End the use of a range of which at most the first `written` bytes were written."""
        memory_range = memory_range._replace(resident_bytes=max(memory_range.resident_bytes, written))
        with self._lock:
            cached = self._cached.pop(memory_range.nbytes, deque())
            cached.append(memory_range)
            self._cached[memory_range.nbytes] = cached
            self._resident_bytes += memory_range.resident_bytes
            self._release(self._cached_bytes)

    def release(self) -> None:
        """Give the pages of all ranges that are not used to the system."""
        with self._lock:
            self._release(0)

    def close(self) -> None:
        """Keep no pages of ranges that are not used, now and when they are given back."""
        with self._lock:
            self._cached_bytes = 0
            self._release(0)

    def _release(self, cached_bytes: int) -> None:
        """Release pages, of the sizes that were not used for the longest time first, until few enough are kept."""
        while self._resident_bytes > cached_bytes:
            size = next(iter(self._cached))
            cached = self._cached[size]
            if not cached:
                del self._cached[size]
                continue
            released = cached.popleft()
            self._map.madvise(mmap.MADV_REMOVE, released.start, released.nbytes)
            self._resident_bytes -= released.resident_bytes
            self._empty.setdefault(size, []).append(released._replace(resident_bytes=0))

    def _grow(self, nbytes: int) -> None:
        size = 1 << (nbytes - 1).bit_length()
        os.ftruncate(self.fd, size)
        self._map = mmap.mmap(self.fd, size)

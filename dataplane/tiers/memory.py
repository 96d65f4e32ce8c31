"""L1 memory: the index, the segments of the arena and the areas of engines, each a sealed memfd.

memfds have no name in `/dev/shm`: nothing to leak, nothing to guess, and the kernel frees them with the last process
that holds one. Mode 0600, because a default memfd is 0777 and anyone who gets a read-only fd could reopen it writable
through /proc; with it, only the data plane's own uid can.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass

from dataplane.protocol.layout import DEFAULT_RING_ENTRIES, AreaMemory, IndexMemory, area_bytes, index_bytes

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class SharedFile:
    """One sealed memfd and a read-only twin of it."""

    name: str
    nbytes: int
    fd: int
    """Read-write."""
    read_only_fd: int

    @classmethod
    def create(cls, name: str, nbytes: int) -> SharedFile:
        """A zeroed memfd that can neither shrink nor grow. Raises MemoryError."""
        try:
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise MemoryError(f"memfd {name}: {error.strerror}") from None
        try:
            os.fchmod(fd, 0o600)
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            os.close(fd)
            raise MemoryError(f"memfd {name} of {nbytes} bytes: {error.strerror}") from None
        return cls(name, nbytes, fd, read_only)

    def map(self) -> mmap.mmap:
        """A read-write mapping."""
        return mmap.mmap(self.fd, self.nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def punch(self) -> None:
        """Give the pages back to the machine now, whoever still maps them."""
        _fallocate_punch(self.fd, self.nbytes)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.read_only_fd)


class NodeMemory:
    """All memory of one data plane. Implements `core.ports.Memory`; tells who listens what comes and goes."""

    def __init__(
        self,
        max_blocks: int,
        on_made: Callable[[str, int, SharedFile], None] = lambda kind, number, file: None,
        on_dropped: Callable[[str, int], None] = lambda kind, number: None,
    ) -> None:
        self.max_blocks = max_blocks
        self.index_file = SharedFile.create("larder-index", index_bytes(max_blocks))
        self._index_map = self.index_file.map()
        self.index = IndexMemory(memoryview(self._index_map), max_blocks)
        self.segments: dict[int, SharedFile] = {}
        self.areas: dict[int, SharedFile] = {}
        self._on_made = on_made
        self._on_dropped = on_dropped

    def create_segment(self, segment: int, size_bytes: int) -> None:
        file = self.segments[segment] = SharedFile.create(f"larder-segment-{segment}", size_bytes)
        self._on_made("segment", segment, file)

    def retire_segment(self, segment: int) -> None:
        self._on_dropped("segment", segment)  # first: whoever works on the file lets it go
        file = self.segments.pop(segment)
        file.punch()
        file.close()

    def create_area(self, client: int) -> AreaMemory:
        file = SharedFile.create(f"larder-area-{client}", area_bytes(self.max_blocks))
        try:
            mapped = file.map()
        except OSError as error:
            file.close()
            raise MemoryError(f"area of client {client}: {error.strerror}") from None
        self.areas[client] = file
        area = AreaMemory(memoryview(mapped), self.max_blocks, DEFAULT_RING_ENTRIES)
        area.format()
        self._on_made("area", client, file)
        return area

    def retire_area(self, client: int) -> None:
        self.areas.pop(client).close()
        self._on_dropped("area", client)

    def close(self) -> None:
        """Close every fd; memory that engines map stays theirs."""
        for file in [*self.segments.values(), *self.areas.values(), self.index_file]:
            file.close()


def _fallocate_punch(fd: int, nbytes: int) -> None:
    keep_size_and_punch = 0x01 | 0x02
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if libc.fallocate(fd, keep_size_and_punch, 0, nbytes) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"fallocate: {os.strerror(number)}")

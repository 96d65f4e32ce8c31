"""L1 memory: the index, the segments of the arena and the areas of engines, each a sealed memfd; for gateways `named`.

memfds have no name in `/dev/shm`: nothing to leak, nothing to guess, and the kernel frees them with the last process
that holds one. Mode 0600, because a default memfd is 0777 and anyone who gets a read-only fd could reopen it writable
through /proc; with it, only the data plane's own uid can.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataplane.protocol.checksums import Checksum
from dataplane.protocol.events import PoolStats
from dataplane.protocol.layout import (
    DEFAULT_RING_ENTRIES,
    H_MEMORY,
    AreaMemory,
    IndexMemory,
    LayoutError,
    area_bytes,
    index_bytes,
)
from dataplane.tiers.pages import available_bytes, huge_bytes_available

if TYPE_CHECKING:
    from dataplane.tiers.inherited import Inherited
    from dataplane.tiers.named import NamedFile
    from dataplane.tiers.prefault import Prefault

READ_BYTES = 64 << 10
"""As much as stays in a cache until its checksum is reckoned."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class SharedFile:
    """One sealed memfd and a read-only twin of it, or a part of the named segment."""

    name: str
    nbytes: int
    fd: int
    """Read-write."""
    read_only_fd: int
    huge: bool = False
    """Made of 2 MiB pages."""
    base: int = 0
    """Where it begins, in bytes from the start of the file."""
    part: bool = False
    """A part of a file that somebody else closes."""

    @classmethod
    def create(cls, name: str, nbytes: int, *, huge: bool = False) -> SharedFile:
        """A zeroed memfd that can neither shrink nor grow. Raises MemoryError."""
        file = cls.unsealed(name, nbytes, huge=huge)
        try:
            return file.sealed(nbytes)
        except MemoryError:
            file.close()
            raise

    @classmethod
    def unsealed(cls, name: str, nbytes: int, *, huge: bool = False) -> SharedFile:
        """A zeroed memfd whose size is not final: nobody else may have it before it is `sealed`. Raises MemoryError."""
        kind = os.MFD_HUGETLB | os.MFD_HUGE_2MB if huge else 0
        try:
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | kind)
        except OSError as error:
            raise MemoryError(f"memfd {name}: {error.strerror}") from None
        try:
            os.fchmod(fd, 0o600)
            os.ftruncate(fd, nbytes)
            read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            os.close(fd)
            raise MemoryError(f"memfd {name} of {nbytes} bytes: {error.strerror}") from None
        return cls(name, nbytes, fd, read_only, huge)

    def sealed(self, nbytes: int) -> SharedFile:
        """The same memory with its final size. Raises MemoryError; then it is still the caller's to close."""
        try:
            os.ftruncate(self.fd, nbytes)
            if self.huge:  # taken, not promised: no first touch can fail, and all of it can be given back
                os.posix_fallocate(self.fd, 0, nbytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
        except OSError as error:
            raise MemoryError(f"memfd {self.name} of {nbytes} bytes: {error.strerror}") from None
        return SharedFile(self.name, nbytes, self.fd, self.read_only_fd, self.huge)

    @classmethod
    def of(cls, name: str, fd: int) -> SharedFile:
        """Sealed memory whose read-write fd came from elsewhere; the fd is owned from here on. Raises OSError."""
        status = os.fstat(fd)
        read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        return cls(name, status.st_size, fd, read_only, huge=status.st_blksize > mmap.PAGESIZE)

    def map(self) -> mmap.mmap:
        """A read-write mapping."""
        return mmap.mmap(self.fd, self.nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def punch(self) -> None:
        """Give the pages back to the machine now, whoever still maps them."""
        punch(self.fd, self.base, self.nbytes)

    def close(self) -> None:
        if not self.part:
            os.close(self.fd)
            os.close(self.read_only_fd)


class NodeMemory:
    """All memory of one data plane. Implements `core.ports.Memory`; tells who listens what comes and goes."""

    def __init__(
        self,
        max_blocks: int,
        on_made: Callable[[str, int, SharedFile], None] = lambda kind, number, file: None,
        on_dropped: Callable[[str, int], None] = lambda kind, number: None,
        prefault: Prefault | None = None,
        *,
        huge: bool = False,
        private: Mapping[str, int] | None = None,
        inherited: Inherited | None = None,
        named: NamedFile | None = None,
    ) -> None:
        """Fresh memory, or what `inherited` has, which is emptied. `private` are kinds and sizes of memory that engines
        never get; `named` is closed with all other memory. Raises MemoryError, and LayoutError when inherited memory
        is not what this version lays out.
        """
        self.max_blocks = max_blocks
        self.named = named
        self.segments: dict[int, SharedFile] = {}
        self.areas: dict[int, SharedFile] = {}
        sizes = {"index": index_bytes(max_blocks), **(private or {})}
        if inherited is None:
            self._own = {kind: SharedFile.create(f"larder-{kind}", size) for kind, size in sizes.items()}
            self.index = IndexMemory(self.view("index"), max_blocks)
            self.index.header[H_MEMORY] = secrets.randbits(63) | 1
        else:
            self._own = {kind: inherited.pop(kind) for kind in sizes}
            for number in inherited.numbers("segment"):
                self.segments[number] = inherited.pop("segment", number)
            for number in inherited.numbers("area"):
                self.areas[number] = inherited.pop("area", number)
            self._adopt(sizes)
        self._on_made = on_made
        self._on_dropped = on_dropped
        self._prefault = prefault
        self._huge = huge

    def _adopt(self, sizes: Mapping[str, int]) -> None:
        try:
            self.index = IndexMemory.attach(self.view("index"))
            if self.index.max_blocks != self.max_blocks:
                raise LayoutError(
                    f"it has {self.index.max_blocks} block descriptors, the settings say {self.max_blocks}"
                )
            for kind, size in sizes.items():
                if self._own[kind].nbytes != size:
                    raise LayoutError(f"its {kind} have {self._own[kind].nbytes} bytes, expected {size}")
        except LayoutError:
            self.close()
            raise

    def view(self, kind: str) -> memoryview:
        """A writable view of the index or of private memory."""
        return memoryview(self._own[kind].map())

    @property
    def index_file(self) -> SharedFile:
        return self._own["index"]

    def files(self) -> Iterator[tuple[str, int, SharedFile]]:
        """All memory, by kind and number."""
        for kind, file in self._own.items():
            yield kind, 0, file
        if self.named is not None:
            yield "named", 0, self.named.file
        for number, file in self.segments.items():
            if not file.part:
                yield "segment", number, file
        for number, file in self.areas.items():
            yield "area", number, file

    def inherited_area(self, client: int) -> AreaMemory | None:
        """The area of a client of the data plane before; None when it is not here, or not of the right size."""
        file = self.areas.get(client)
        if file is None or file.nbytes != area_bytes(self.max_blocks):
            return None
        # Its header was the client's to write: sizes come from here.
        return AreaMemory(memoryview(file.map()), self.max_blocks, DEFAULT_RING_ENTRIES)

    def create_segment(self, segment: int, size_bytes: int, base: int | None = None) -> None:
        if base is not None:
            if self.named is None:
                raise MemoryError("there is no named segment")
            file = self.segments[segment] = self.named.part(segment, base, size_bytes)
            self._on_made("part", segment, file)
            return
        name = f"larder-segment-{segment}"
        if self._prefault is not None:
            file = self._prefault.make(name, size_bytes)
        else:
            file = SharedFile.create(name, size_bytes, huge=self._huge)
        self.segments[segment] = file
        self._on_made("segment", segment, file)

    def inherited_parts(self, parts: Iterable[tuple[int, int, int]]) -> None:
        """Segments (number, base, bytes) of the named segment that the data plane before this one made."""
        for number, base, nbytes in parts:
            if self.named is not None:
                self.segments[number] = self.named.known_part(number, base, nbytes)

    def give_back(self) -> None:
        """Give the machine pages of the named segment that nobody needs, if they may go now."""
        if self.named is not None:
            self.named.give_back()

    def drop_named(self) -> None:
        """There is no gateway after all: the named segment loses its name, and goes if nothing is in it."""
        if self.named is None:
            return
        self.named.remove()
        if not any(file.part for file in self.segments.values()):
            self._on_dropped("named", 0)
            self.named.close()
            self.named = None

    def retire_segment(self, segment: int) -> None:
        file = self.segments[segment]
        # First: whoever works on the file lets it go.
        self._on_dropped("part" if file.part else "segment", segment)
        del self.segments[segment]
        if file.part and self.named is not None:
            self.named.retire(segment)
            return
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

    def available_bytes(self) -> int:
        ready = self._prefault.spare_bytes if self._prefault is not None else 0
        return ready + (huge_bytes_available() if self._huge else available_bytes())

    def resize(self, capacity_bytes: int) -> None:
        if self._prefault is not None:
            self._prefault.resize(capacity_bytes)

    def describe(self, stats: PoolStats) -> None:
        stats.huge_pages = self._huge
        if self._prefault is not None:
            stats.prefaulted_bytes = self._prefault.prefaulted_bytes
            stats.locked = self._prefault.locked

    def digest(self, segment: int, offset: int, nbytes: int) -> bytes:
        return _digest(self.segments[segment], offset, nbytes)

    def close(self) -> None:
        """Close every fd; memory that engines map stays theirs, and the named segment its name."""
        for _, _, file in list(self.files()):
            file.close()


def _digest(file: SharedFile, offset: int, nbytes: int) -> bytes:
    """The checksum of bytes of a file. Read, not mapped: pages that were never written are not taken for it.

    Raises MemoryError.
    """
    state, piece = Checksum(), memoryview(bytearray(min(nbytes, READ_BYTES)))
    offset += file.base
    end = offset + nbytes
    while offset < end:
        try:
            got = os.preadv(file.read_only_fd, [piece[: end - offset]], offset)
        except OSError as error:
            raise MemoryError(f"reading {file.name}: {error.strerror}") from None
        if not got:
            raise MemoryError(f"{file.name} ends at {offset - file.base} bytes")
        state.update(piece[:got])
        offset += got
    return state.digest()


def punch(fd: int, offset: int, nbytes: int) -> None:
    """Give the pages of whole pages of a file back to the machine, whoever maps them. Raises OSError."""
    keep_size_and_punch = 0x01 | 0x02
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if libc.fallocate(fd, keep_size_and_punch, offset, nbytes) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"fallocate: {os.strerror(number)}")

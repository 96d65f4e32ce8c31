"""Memory of a node: the index, the segments of the pool and the areas of engines, each a sealed memfd.

`shared_file` has the memfds themselves, and `named` the segment of gateways.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from dataplane.memory.pages import available_bytes, huge_bytes_available
from dataplane.memory.shared_file import SharedFile
from dataplane.protocol.checksums import Checksum
from dataplane.protocol.layout import (
    DEFAULT_RING_ENTRIES,
    H_MEMORY,
    AreaMemory,
    IndexMemory,
    LayoutError,
    area_bytes,
    index_bytes,
)
from dataplane.protocol.stats.pool import PoolStats

if TYPE_CHECKING:
    from dataplane.memory.inherited import InheritedMemory
    from dataplane.memory.named import NamedFile
    from dataplane.memory.prefault import Prefault

READ_BYTES = 64 << 10
"""Amount that stays in a CPU cache while its checksum is computed."""
RESIZABLE = ("names",)
"""Private kinds whose size may differ in inherited memory: their readers take the bounds from the memory itself."""


class NodeMemory:
    """All memory of one data plane. Implements `core.ports.Memory`, and reports files that are added and dropped."""

    def __init__(
        self,
        max_blocks: int,
        on_made: Callable[[str, int, SharedFile], None] = lambda kind, number, file: None,
        on_dropped: Callable[[str, int], None] = lambda kind, number: None,
        prefault: Prefault | None = None,
        *,
        huge: bool = False,
        ahead_bytes: int = 0,
        private: Mapping[str, int] | None = None,
        inherited: InheritedMemory | None = None,
        named: NamedFile | None = None,
    ) -> None:
        """Create fresh memory, or take over the files of `inherited`, which is emptied. `private` maps kinds to sizes
        of memory that engines never get; `named` is closed with all other memory. `ahead_bytes` are kept ready for
        future segments, once `resize` has set the size of the pool. Raises MemoryError, and LayoutError if inherited
        memory does not have this version's layout.
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
        self._ahead_bytes = ahead_bytes
        self._capacity_bytes = 0
        self._expects_worker = False
        """Whether a worker that will store in the named segment has registered."""

    def _adopt(self, sizes: Mapping[str, int]) -> None:
        try:
            self.index = IndexMemory.attach(self.view("index"))
            if self.index.max_blocks != self.max_blocks:
                raise LayoutError(
                    f"it has {self.index.max_blocks} block descriptors, the settings say {self.max_blocks} "
                    "(dataplane.max_blocks, pool_bytes)"
                )
            for kind, size in sizes.items():
                if self._own[kind].nbytes != size and kind not in RESIZABLE:
                    raise LayoutError(f"its {kind} have {self._own[kind].nbytes} bytes, expected {size}")
        except LayoutError:
            self.close()
            raise

    def replaced(self, kind: str, nbytes: int) -> memoryview:
        """Replace private memory with fresh memory, and return a writable view of it. Raises MemoryError."""
        file = SharedFile.create(f"larder-{kind}", nbytes)
        self._own[kind].close()
        self._own[kind] = file
        return self.view(kind)

    def view(self, kind: str) -> memoryview:
        """Return a writable view of the index or of private memory."""
        return memoryview(self._own[kind].map())

    @property
    def index_file(self) -> SharedFile:
        return self._own["index"]

    def files(self) -> Iterator[tuple[str, int, SharedFile]]:
        """Yield all memory, with kind and number."""
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
        """Return the area of a client of the previous data plane; None if it is missing or has the wrong size."""
        file = self.areas.get(client)
        if file is None or file.nbytes != area_bytes(self.max_blocks):
            return None
        # The client could write the header, so the sizes come from this process.
        return AreaMemory(memoryview(file.map()), self.max_blocks, DEFAULT_RING_ENTRIES)

    def create_segment(self, segment: int, size_bytes: int, base: int | None = None) -> None:
        if base is not None:
            if self.named is None:
                raise MemoryError("there is no named segment")
            file = self.named.part(segment, base, size_bytes)
        elif self._prefault is not None:
            file = self._prefault.make(f"larder-segment-{segment}", size_bytes)
        else:
            file = SharedFile.create(f"larder-segment-{segment}", size_bytes, huge=self._huge)
        self.segments[segment] = file
        self._submit(segment, file)
        if not file.part:
            self._on_made("segment", segment, file)
        self._share_ahead()

    def _submit(self, segment: int, file: SharedFile) -> None:
        """Allocate the pages of a segment soon. Those of a part exist, but may have to be locked."""
        if self._prefault is not None and (self._prefault.locks or not file.part):
            self._prefault.submit(segment, file)

    def allocate_ahead(self, capacity_bytes: int) -> None:
        """Begin to allocate memory ahead of use, in a pool of this size. The predecessor's memory must be known by
        then, because it counts toward the pool."""
        for number, file in self.segments.items():
            self._submit(number, file)
        self.resize(capacity_bytes)

    def _share_ahead(self) -> None:
        """Divide the memory that is kept ready between memfds and the named segment, within the size of the pool. If
        only one of them is in use, it gets all of it; otherwise each gets half."""
        if self._prefault is None or self.named is None:
            return
        committed = sum(file.nbytes for file in self.segments.values())
        ahead = max(0, min(self._ahead_bytes, self._capacity_bytes - committed))
        parts = self._expects_worker or any(file.part for file in self.segments.values())
        memfds = not all(file.part for file in self.segments.values())
        share = ahead // 2 if parts == memfds else ahead if parts else 0
        on_failure = partial(self._prefault.on_failure, self.named.name)
        self._prefault.keep_ahead(ahead - self.named.pages.keep_ahead(share, on_failure))

    def inherited_parts(self, parts: Iterable[tuple[int, int, int]]) -> None:
        """Register the parts (number, base, bytes) of the named segment that the previous data plane made."""
        for number, base, nbytes in parts:
            if self.named is not None:
                self.segments[number] = self.named.known_part(number, base, nbytes)

    def expect_worker(self) -> None:
        """Prepare for a worker of a gateway that registers: keep memory of the named segment ready for it, and give
        back no pages, which it may address directly from now on."""
        if self.named is not None:
            self.named.pages.keep()
        if not self._expects_worker:
            self._expects_worker = True
            self._share_ahead()

    def give_back(self) -> None:
        """Give unneeded pages of the named segment back to the machine, if that is allowed now."""
        if self.named is not None:
            self.named.give_back()

    def drop_named(self) -> None:
        """Drop the named segment because there is no gateway: remove its name, and close it if it has no segments."""
        if self.named is None:
            return
        self.named.remove()
        if not any(file.part for file in self.segments.values()):
            self._on_dropped("named", 0)
            self.named.close()
            self.named = None
        if self._prefault is not None:
            self._prefault.keep_ahead(self._ahead_bytes)

    def retire_segment(self, segment: int) -> None:
        file = self.segments[segment]
        # First, so that users of the file release it.
        if self._prefault is not None:
            self._prefault.cancel(segment)
        if not file.part:
            self._on_dropped("segment", segment)
        del self.segments[segment]
        if file.part and self.named is not None:
            self.named.retire(segment)
        else:
            file.punch()
            file.close()
        self._share_ahead()

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
        ready = self._prefault.prepared_bytes if self._prefault is not None else 0
        if self.named is not None:
            ready += self.named.pages.ahead_bytes
        return ready + (huge_bytes_available() if self._huge else available_bytes())

    def resize(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._share_ahead()
        if self._prefault is not None:
            self._prefault.resize(capacity_bytes)

    def describe(self, stats: PoolStats) -> None:
        stats.huge_pages = self._huge
        if self._prefault is not None:
            stats.prefaulted_bytes = self._prefault.prefaulted_bytes
            stats.locked = self._prefault.locked
            if self.named is not None:
                pages = self.named.pages
                stats.prefaulted_bytes += pages.ahead_bytes if self._prefault.locks else pages.taken_bytes

    def digest(self, segment: int, offset: int, nbytes: int) -> bytes:
        return _digest(self.segments[segment], offset, nbytes)

    def close(self) -> None:
        """Close every fd. Memory that engines map stays mapped, and the named segment keeps its name."""
        for _, _, file in list(self.files()):
            file.close()


def _digest(file: SharedFile, offset: int, nbytes: int) -> bytes:
    """Return the checksum of bytes of a file. The bytes are read, not mapped, so that no pages are allocated for parts
    that were never written.

    Raises MemoryError.
    """
    state, piece = Checksum(), memoryview(bytearray(min(nbytes, READ_BYTES)))
    offset += file.base
    end = offset + nbytes
    while offset < end:
        try:
            count = os.preadv(file.read_only_fd, [piece[: end - offset]], offset)
        except OSError as error:
            raise MemoryError(f"reading {file.name}: {error.strerror}") from None
        if not count:
            raise MemoryError(f"{file.name} ends at {offset - file.base} bytes")
        state.update(piece[:count])
        offset += count
    return state.digest()

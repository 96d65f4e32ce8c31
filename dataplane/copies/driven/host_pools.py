"""An engine's pages in host memory, and copies between them and the pool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from dataplane.copies.copying import CopyFailed
from dataplane.copies.driven.caches import CachePart
from dataplane.copies.driven.host_files import HostFile
from dataplane.devices.chunks import MAX_NUMBER, PREFIX
from dataplane.devices.paged import I64, Planes, TensorGroup
from dataplane.memory.shared_file import SharedFile
from dataplane.protocol.checksums import Checksum
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import MAX_HOST_FILES, HostPiece, RegisterHostPool
from dataplane.protocol.spaces import Space

MAX_PAGES = (1 << 32) - 1
SUM_BYTES = 512 << 10
"""Number of bytes that are read before their checksum is updated, so that they are still in the CPU cache."""


class MappedSegment:
    """A segment of the pool, mapped in this process while it is referenced."""

    def __init__(self, file: SharedFile) -> None:
        self.view = memoryview(file.map())
        self.address = int(np.frombuffer(self.view, np.uint8).ctypes.data)


class MappedSegments:
    """Mappings of the pool's segments for copies of host pools. Thread-safe."""

    def __init__(self, files: Mapping[int, SharedFile]) -> None:
        """`files` is the live mapping of the pool's segments."""
        self._files = files
        self._lock = threading.Lock()
        self._mapped: dict[int, MappedSegment] = {}

    def segment(self, number: int) -> MappedSegment:
        """Return the mapping of a segment from or to which a block is being copied. Raise CopyFailed."""
        with self._lock:
            known = self._mapped.get(number)
            if known is None:
                try:
                    known = self._mapped[number] = MappedSegment(self._files[number])
                except OSError as error:
                    raise CopyFailed(f"map segment {number}: {error}") from None
            return known

    def retired(self, number: int) -> None:
        """Drop the mapping of a segment that is being released."""
        with self._lock:
            self._mapped.pop(number, None)

    def clear(self) -> None:
        """Drop all mappings. Segments of running copies stay mapped until the copies end."""
        with self._lock:
            self._mapped.clear()


class OpenHostPool:
    """An engine's registered pages in host memory. Used by one thread at a time."""

    device_uuid = ""

    def __init__(self, message: RegisterHostPool, space: Space, fds: Sequence[int], segments: MappedSegments) -> None:
        """Check the description and open the files. The caller closes the given descriptors. Raise ProtocolError, which
        names the invalid field; no file then stays open."""
        self.space = message.space
        self._segments = segments
        self._pieces = message.pieces
        _check(message, space, len(fds))
        self.group = TensorGroup(
            message.pages,
            space.block_tokens,
            1,
            tuple(Planes((each.start,), each.step, each.nbytes) for each in message.pieces),
        )
        with ExitStack() as opening:
            self._files: list[HostFile] = []
            for at, (fd, nbytes) in enumerate(zip(fds, message.files, strict=True)):
                self._files.append(HostFile(fd, nbytes, f"files[{at}]"))
                opening.callback(self._files[-1].close)
            opening.pop_all()

    @property
    def files(self) -> int:
        """Number of open files."""
        return len(self._files)

    def segment(self, number: int) -> MappedSegment:
        """Return memory of the pool for a part of a copy. Raise CopyFailed."""
        return self._segments.segment(number)

    def wait(self, event: bytes, ended: Callable[[], bool]) -> None:
        """Always raise CopyFailed, because host memory has no events."""
        raise CopyFailed("host memory has no events")

    def copy(
        self, parts: Sequence[CachePart], blocks: I64, positions: range, ended: Callable[[], bool], *, to_device: bool
    ) -> None:
        """Copy pages from the engine, or with `to_device` to the engine. `blocks` [chunks, 1] has their page numbers.
        Copy only the pages at the positions `positions`. Raise CopyFailed."""
        for chunk, locations in self._locations(parts, blocks, ended):
            if chunk not in positions:
                continue
            for file, view, offset in locations:
                if to_device:
                    file.write(view, offset)
                else:
                    file.read(view, offset)

    def read_summed(self, parts: Sequence[CachePart], blocks: I64, ended: Callable[[], bool]) -> list[bytes]:
        """Copy pages from the engine, as `copy` does, and return the checksums of their chunks, in their order. Raise
        CopyFailed."""
        found: dict[int, bytes] = {}
        for chunk, locations in self._locations(parts, blocks, ended):
            state = Checksum()
            for file, view, offset in locations:
                for low in range(0, len(view), SUM_BYTES):
                    file.read(view[low : low + SUM_BYTES], offset + low)
                    state.update(view[low : low + SUM_BYTES])
            found[chunk] = state.digest()
        return [found[chunk] for chunk in sorted(found)]

    def _locations(
        self, parts: Sequence[CachePart], blocks: I64, ended: Callable[[], bool]
    ) -> Iterator[tuple[int, list[tuple[HostFile, memoryview, int]]]]:
        """Yield for each chunk its position and, for each piece, its file, its bytes in the pool, and its offset in the
        file. Raise CopyFailed when the copy is no longer wanted."""
        for part in parts:
            assert isinstance(part.memory, MappedSegment)  # GPU copies are for devices
            view = part.memory.view
            for chunk, start in zip(part.chunks.tolist(), part.offsets.tolist(), strict=True):
                if ended():
                    raise CopyFailed("the engine is gone")
                page, at, locations = int(blocks[chunk, 0]), start, []
                for piece in self._pieces:
                    locations.append(
                        (self._files[piece.file], view[at : at + piece.nbytes], piece.start + page * piece.step)
                    )
                    at += piece.nbytes
                yield chunk, locations

    def close(self) -> None:
        """Close the files. No copy may be in progress."""
        for each in self._files:
            each.close()


def _check(message: RegisterHostPool, space: Space, fds: int) -> None:
    """Check a description against its space. Raise ProtocolError."""
    if not 1 <= len(message.files) <= MAX_HOST_FILES:
        raise _refused(f"expected 1 to {MAX_HOST_FILES} files, got {len(message.files)}", "files")
    if fds != len(message.files):
        raise _refused(f"expected {len(message.files)} file descriptors, got {fds}", "files")
    for at, nbytes in enumerate(message.files):
        if not 1 <= nbytes <= MAX_NUMBER:
            raise _refused(f"expected 1 to {MAX_NUMBER} bytes, got {nbytes}", f"files[{at}]")
    if not space.block_bytes or space.layout.startswith(PREFIX):
        raise _refused("expected a space with block_bytes and a layout other than that of tensors", "space")
    if not 1 <= message.pages <= MAX_PAGES:
        raise _refused(f"expected 1 to {MAX_PAGES} pages, got {message.pages}", "pages")
    for at, piece in enumerate(message.pieces):
        _check_piece(piece, message, f"pieces[{at}]")
    page_bytes = sum(each.nbytes for each in message.pieces)
    if page_bytes != space.block_bytes:
        raise _refused(f"expected pieces of {space.block_bytes} bytes together, got {page_bytes}", "pieces")


def _check_piece(piece: HostPiece, message: RegisterHostPool, field: str) -> None:
    if not 0 <= piece.file < len(message.files):
        raise _refused(f"expected 0 to {len(message.files) - 1}, got {piece.file}", f"{field}.file")
    nbytes = message.files[piece.file]
    if not 1 <= piece.nbytes <= nbytes:
        raise _refused(f"expected 1 to {nbytes}, got {piece.nbytes}", f"{field}.nbytes")
    if not piece.nbytes <= piece.step <= nbytes:
        raise _refused(f"expected {piece.nbytes} to {nbytes}, got {piece.step}", f"{field}.step")
    last = nbytes - piece.nbytes - (message.pages - 1) * piece.step
    if not 0 <= piece.start <= last:
        raise _refused(
            f"expected {message.pages} pages within the {nbytes} bytes of the file, got a start of {piece.start}",
            f"{field}.start",
        )


def _refused(message: str, field: str) -> ProtocolError:
    return ProtocolError(Code.BAD_CACHE, message, field)

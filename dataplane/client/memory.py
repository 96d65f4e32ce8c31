"""Shared memory in this process's address space, mapped so that its owner can do no harm.

Touching a page of a file that was truncated kills the process. Therefore only memory that is sealed against shrinking
is mapped, and no more than its size. No file descriptor is kept.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress

from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.mappings import MADV_POPULATE_READ, Bytes, Mapping, advise, view

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
PIECE_BYTES = 2 << 20


class SharedMapping(Mapping):
    """One mapping, created by `SharedMapping.map`."""

    __slots__ = ("_unmapped",)

    def __init__(self, fd: int, nbytes: int, *, writable: bool) -> None:
        super().__init__(fd, nbytes, writable=writable)
        self._unmapped = set(range(-(-nbytes // PIECE_BYTES)))
        """Pieces whose pages may not be in this process's page tables yet."""

    @classmethod
    def map(cls, fd: int, nbytes: int | None = None, *, writable: bool) -> SharedMapping:
        """Map all memory of a file descriptor, which the caller closes. Raise ProtocolError if it is unsuitable."""
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError:
            raise ProtocolError(Code.MALFORMED, "expected a memory fd that can be sealed") from None
        if seals & _SEALS != _SEALS:
            raise ProtocolError(Code.MALFORMED, "expected memory that is sealed against resizing")
        size = os.fstat(fd).st_size  # constant: the memory is sealed
        if size < 1 or (nbytes is not None and nbytes != size):
            raise ProtocolError(Code.MALFORMED, f"expected memory of {nbytes} bytes, got {size}")
        try:
            return cls(fd, size, writable=writable)
        except OSError as error:
            raise ProtocolError(Code.OUT_OF_MEMORY, str(error.strerror)) from None

    def prepare(self, offsets: Sequence[int], nbytes: int) -> None:
        """Populate the page tables for blocks at `offsets`, in whole pieces: a fault per page costs five times as much.

        Nothing is written. This is best effort: if the kernel refuses, the first access maps the page.
        """
        waiting = self._unmapped
        if not waiting:
            return
        for offset in offsets:
            for piece in range(offset // PIECE_BYTES, (offset + nbytes - 1) // PIECE_BYTES + 1):
                if piece in waiting:
                    waiting.remove(piece)
                    at = piece * PIECE_BYTES
                    size = min(PIECE_BYTES, self.nbytes - at)
                    with suppress(OSError):
                        advise(self.address + at, size, MADV_POPULATE_READ)

    def view(self) -> memoryview:
        """Return all of the memory. Any object derived from the view keeps the mapping alive."""
        return self.array().data


def window(owner: object, memory: SharedMapping, offset: int, nbytes: int, *, writable: bool) -> Bytes:
    """Return the bytes of a block. Any object derived from the array keeps the memory and its owner (the hold of a
    lease) alive. Raise ValueError for bytes outside of the memory."""
    # Messages of the data plane are checked on arrival. This last check prevents a fatal signal.
    if not (0 <= offset <= memory.nbytes - nbytes and nbytes >= 0 and memory.writable >= writable):
        raise ValueError(f"{nbytes} bytes at {offset} are not within the {memory.nbytes} bytes of a segment")
    return view((owner, memory), memory.address + offset, nbytes, writable=writable)

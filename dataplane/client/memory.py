"""Shared memory in this process's address space, mapped so that its owner can do no harm.

Touching a page of a file that was truncated kills the process. Therefore only memory that is sealed against shrinking
is mapped, and no more than its size. No file descriptor is kept. A mapping is removed when the last object that refers
to it is collected, never earlier. It is never removed in a forked child: the memory is not mapped there, and the
child's own memory may be at the same address.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.mappings import MADV_POPULATE_READ, advise, map_shared, unmap

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
PIECE_BYTES = 2 << 20

_forks = 0
"""Number of forks between this process and the first process that loaded this module."""


class SharedMapping:
    """One mapping, created by `SharedMapping.map`."""

    __slots__ = ("__weakref__", "_made_in", "_unmapped", "address", "nbytes", "writable")

    def __init__(self, address: int, nbytes: int, *, writable: bool) -> None:
        self.address = address
        self.nbytes = nbytes
        self.writable = writable
        self._made_in = _forks
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
            memory = cls(map_shared(fd, size, writable=writable), size, writable=writable)
            # Forked children are not part of the protocol.
            advise(memory.address, size, mmap.MADV_DONTFORK)
        except OSError as error:
            raise ProtocolError(Code.OUT_OF_MEMORY, str(error.strerror)) from None
        return memory

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
        return BlockWindow(None, self, 0, self.nbytes, writable=self.writable).array().data

    def __del__(self, munmap: Callable[[int, int], int] = unmap) -> None:
        if self._made_in == _forks:
            munmap(self.address, self.nbytes)


class BlockWindow:
    """Bytes of a block as numpy sees them. Keeps its owner (the hold of a lease) alive with every view."""

    __slots__ = ("__array_interface__", "_memory", "_owner")

    def __init__(self, owner: object, memory: SharedMapping, offset: int, nbytes: int, *, writable: bool) -> None:
        # Messages of the data plane are checked on arrival. This last check prevents a fatal signal.
        if not (0 <= offset <= memory.nbytes - nbytes and nbytes >= 0 and memory.writable >= writable):
            raise ValueError(f"{nbytes} bytes at {offset} are not within the {memory.nbytes} bytes of a segment")
        self._owner = owner
        self._memory = memory
        self.__array_interface__ = {
            "data": (memory.address + offset, not writable),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def array(self) -> npt.NDArray[np.uint8]:
        """Return the bytes. Any object derived from the array keeps the owner alive."""
        return np.asarray(self)


def _after_fork_in_child() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_after_fork_in_child)

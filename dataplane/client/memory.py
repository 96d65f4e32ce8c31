"""Shared memory in this process's address space, mapped so that its owner can do no harm.

A page of a file that was cut short kills whoever touches it, so only memory that is sealed against shrinking is mapped,
and only as much as it has. No fd is kept. A mapping ends with the last object that refers to it, never before, and
never in a forked child: nothing of it is mapped there, and the child's own memory may lie where it was.
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
"""How many forks lie between this process and the first one that loaded this module."""


class Memory:
    """One mapping; `Memory.map` makes it."""

    __slots__ = ("__weakref__", "_made_in", "_unmapped", "address", "nbytes", "writable")

    def __init__(self, address: int, nbytes: int, *, writable: bool) -> None:
        self.address = address
        self.nbytes = nbytes
        self.writable = writable
        self._made_in = _forks
        self._unmapped = set(range(-(-nbytes // PIECE_BYTES)))
        """Pieces whose pages may not be in the page tables of this process yet."""

    @classmethod
    def map(cls, fd: int, nbytes: int | None = None, *, writable: bool) -> Memory:
        """Map a memory fd whole; the fd stays the caller's. Raises ProtocolError when it is not what was said."""
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError:
            raise ProtocolError(Code.MALFORMED, "expected a memory fd that can be sealed") from None
        if seals & _SEALS != _SEALS:
            raise ProtocolError(Code.MALFORMED, "expected memory that is sealed against resizing")
        size = os.fstat(fd).st_size  # for good: it is sealed
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
        """Map the pages of blocks at `offsets` in, whole pieces at a time: a fault for each page costs five times that.

        Nothing is written, and nothing is promised: where the kernel does not do it, first touch does.
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
        """All of it; whatever is derived from the view keeps the mapping alive."""
        return Window(None, self, 0, self.nbytes, writable=self.writable).array().data

    def __del__(self, munmap: Callable[[int, int], int] = unmap) -> None:
        if self._made_in == _forks:
            munmap(self.address, self.nbytes)


class Window:
    """Bytes of a block as numpy sees them; keeps its owner (a lease's hold) alive with every view."""

    __slots__ = ("__array_interface__", "_memory", "_owner")

    def __init__(self, owner: object, memory: Memory, offset: int, nbytes: int, *, writable: bool) -> None:
        # What a data plane says was checked when it was taken in. This is the last line: beyond it is a signal.
        if not (0 <= offset <= memory.nbytes - nbytes and nbytes >= 0 and memory.writable >= writable):
            raise ValueError(
                f"{nbytes} bytes at {offset} are not within the {memory.nbytes} bytes of a segment"
            )
        self._owner = owner
        self._memory = memory
        self.__array_interface__ = {
            "data": (memory.address + offset, not writable),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes; whatever is derived from the array keeps the owner alive."""
        return np.asarray(self)


def _after_fork_in_child() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_after_fork_in_child)

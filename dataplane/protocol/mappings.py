"""Mappings of shared memory, for both sides. They keep no fd.

Python's `mmap` keeps a duplicate of the fd, cannot be unmapped while a view of it exists, and cannot tell a forked
child from its parent. All calls release the GIL and raise OSError.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23

_forks = 0
"""Number of forks between this process and the first process that loaded this module."""

_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

unmap = _libc.munmap
"""End a mapping, given its address and size in bytes. This is the bare C function, because it may be the last call of a
process; it raises nothing."""


def map_shared(fd: int, nbytes: int, *, writable: bool, offset: int = 0) -> int:
    """Map bytes of a memory fd from an offset, which is a multiple of the page size, and return their address."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    address = _libc.mmap(None, nbytes, protection, mmap.MAP_SHARED, fd, offset)
    if address is None or address == _FAILED:
        raise _failure("mmap", nbytes)
    return int(address)


def advise(address: int, nbytes: int, advice: int) -> None:
    """Call madvise(2) on whole pages."""
    if _libc.madvise(address, nbytes, advice) != 0:
        raise _failure("madvise", nbytes)


def lock(address: int, nbytes: int) -> None:
    """Lock pages into RAM until they are unmapped."""
    if _libc.mlock(address, nbytes) != 0:
        raise _failure("mlock", nbytes)


def _failure(call: str, nbytes: int) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call} of {nbytes} bytes: {os.strerror(number)}")


class Mapping:
    """A mapping that is removed when the last object that refers to it is collected, never earlier.

    It is never removed in a forked child: the memory is not mapped there, and the child's own memory may be at the same
    address.
    """

    __slots__ = ("__weakref__", "_made_in", "address", "nbytes", "writable")

    def __init__(self, fd: int, nbytes: int, *, writable: bool, offset: int = 0) -> None:
        """Map bytes of a memory fd, which the caller closes. Raises OSError."""
        self.nbytes = 0
        self.writable = writable
        self._made_in = _forks
        self.address = map_shared(fd, nbytes, writable=writable, offset=offset)
        self.nbytes = nbytes
        advise(self.address, nbytes, mmap.MADV_DONTFORK)

    def array(self) -> Bytes:
        """Return all bytes. Any object derived from the array keeps the mapping alive."""
        return view(self, self.address, self.nbytes, writable=self.writable)

    def __del__(self, munmap: Callable[[int, int], int] = unmap) -> None:
        if self.nbytes and self._made_in == _forks:
            munmap(self.address, self.nbytes)


class _Window:
    """Memory as numpy sees it, with the object that keeps it in place."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, owner: object, address: int, nbytes: int, *, writable: bool) -> None:
        self._owner = owner
        self.__array_interface__ = {"data": (address, not writable), "shape": (nbytes,), "typestr": "|u1", "version": 3}


def view(owner: object, address: int, nbytes: int, *, writable: bool) -> Bytes:
    """Return memory as an array [nbytes] that keeps `owner` alive, as does everything derived from the array."""
    return np.asarray(_Window(owner, address, nbytes, writable=writable))


def _after_fork_in_child() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_after_fork_in_child)

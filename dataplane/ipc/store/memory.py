"""The memory of a store in this process: a memfd without a name to leak, and mappings that outlive their last view.

A memfd has mode 0777 by default, so that any process that is passed an fd may open it again for writing: it is set to
0600. It is sealed against resizing, because a file that shrinks kills the processes that touch its pages.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dataplane.ipc.store.errors import StoreCorrupted, StoreError
from dataplane.protocol.mappings import MADV_POPULATE_WRITE, advise, map_shared, unmap

Bytes = npt.NDArray[np.uint8]
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_forks = 0
"""Number of forks between this process and the one that loaded this module."""


def create_memory(name: str, nbytes: int) -> int:
    """Return the fd of a new sealed memfd, filled with zeros. Raise MemoryError if the machine refuses."""
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise MemoryError(f"memfd {name}: {error.strerror}") from None
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(fd)
        raise MemoryError(f"memfd {name} of {nbytes} bytes: {error.strerror}") from None
    return fd


def check_memory(fd: int) -> int:
    """Return the size in bytes of memory that is safe to map. Raise StoreCorrupted or StoreError if it is not."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise StoreCorrupted(f"fd {fd}: expected a memfd") from None
    needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    if seals & needed != needed:
        raise StoreCorrupted(f"fd {fd}: expected memory that is sealed against resizing")
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        raise StoreError(f"fd {fd}: the memory belongs to uid {status.st_uid}, this is uid {os.geteuid()}")
    return status.st_size


def reopen(fd: int) -> int:
    """Return a second, independent open file of the same memory, for locks of its own. Raises OSError."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


class MemoryMap:
    """A mapping that ends with its last reference. Not inherited by forked children, which must not touch it."""

    __slots__ = ("__weakref__", "_forks", "address", "nbytes", "writable")

    def __init__(self, fd: int, offset: int, nbytes: int, *, writable: bool) -> None:
        """Map whole pages. Raise MemoryError if the machine refuses."""
        try:
            self.address = map_shared(fd, nbytes, writable=writable, offset=offset)
        except OSError as error:
            self.nbytes = 0
            raise MemoryError(str(error)) from None
        self.nbytes = nbytes
        self.writable = writable
        self._forks = _forks
        advise(self.address, nbytes, mmap.MADV_DONTFORK)

    def populate(self) -> None:
        """Give every page memory now, instead of at its first use. Raise MemoryError if there is too little."""
        try:
            advise(self.address, self.nbytes, MADV_POPULATE_WRITE)
        except OSError as error:
            raise MemoryError(f"prefault of {self.nbytes} bytes: {error.strerror}") from None

    def array(self) -> Bytes:
        """Return all bytes. Any array derived from it keeps the mapping."""
        return view(self, self.address, self.nbytes, writable=self.writable)

    def __del__(self, munmap: Callable[[int, int], int] = unmap) -> None:
        if self.nbytes and self._forks == _forks:
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

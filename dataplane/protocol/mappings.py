"""Mappings of shared memory by address, for both sides. They keep no fd, and the caller decides when they end.

Python's `mmap` keeps a duplicate of the fd, cannot be unmapped while a view of it exists, and cannot tell a forked
child from its parent. All calls release the GIL and raise OSError.
"""

import ctypes
import mmap
import os

MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23

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

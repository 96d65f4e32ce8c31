"""Sealed memfds.

A memfd has no name in `/dev/shm`, so it cannot be leaked or guessed, and the kernel frees it with the last process that
holds it. Its mode is 0600: by default a memfd has mode 0777, and any process with a read-only fd could reopen it
writable through /proc. With 0600 only the data plane's own uid can.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from dataclasses import dataclass

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class SharedFile:
    """One sealed memfd with a read-only descriptor of the same memory, or a part of the named segment."""

    name: str
    nbytes: int
    fd: int
    """Read-write descriptor."""
    read_only_fd: int
    huge: bool = False
    """Consists of 2 MiB pages."""
    base: int = 0
    """Start of the memory, in bytes from the start of the file."""
    part: bool = False
    """A part of a file whose owner closes it."""

    @classmethod
    def create(cls, name: str, nbytes: int, *, huge: bool = False) -> SharedFile:
        """Create a zeroed memfd that can neither shrink nor grow. Raises MemoryError."""
        file = cls.unsealed(name, nbytes, huge=huge)
        try:
            return file.sealed(nbytes)
        except MemoryError:
            file.close()
            raise

    @classmethod
    def unsealed(cls, name: str, nbytes: int, *, huge: bool) -> SharedFile:
        """Create a zeroed memfd whose size is not final: it must not be shared before it is `sealed`. Raises
        MemoryError."""
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
        """Return the same memory with its final size. Raises MemoryError; then the caller must still close this one."""
        try:
            os.ftruncate(self.fd, nbytes)
            if self.huge:  # allocate, not only reserve: no first touch can fail, and all can be given back
                os.posix_fallocate(self.fd, 0, nbytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
        except OSError as error:
            raise MemoryError(f"memfd {self.name} of {nbytes} bytes: {error.strerror}") from None
        return SharedFile(self.name, nbytes, self.fd, self.read_only_fd, self.huge)

    @classmethod
    def of(cls, name: str, fd: int) -> SharedFile:
        """Return sealed memory for a read-write fd, and take ownership of the fd. Raises OSError."""
        status = os.fstat(fd)
        read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        return cls(name, status.st_size, fd, read_only, huge=status.st_blksize > mmap.PAGESIZE)

    def map(self) -> mmap.mmap:
        """Return a read-write mapping."""
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        return mmap.mmap(self.fd, self.nbytes, mmap.MAP_SHARED, protection, offset=self.base)

    def punch(self) -> None:
        """Give the pages back to the machine now, even if processes still map them."""
        punch(self.fd, self.base, self.nbytes)

    def close(self) -> None:
        if not self.part:
            os.close(self.fd)
            os.close(self.read_only_fd)


def punch(fd: int, offset: int, nbytes: int) -> None:
    """Give whole pages of a file back to the machine, even if processes map them. Raises OSError."""
    keep_size_and_punch = 0x01 | 0x02
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if libc.fallocate(fd, keep_size_and_punch, offset, nbytes) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"fallocate: {os.strerror(number)}")

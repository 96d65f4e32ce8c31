"""Memory of emulated devices: anonymous shared files.

Other processes of this user can open a file while its owner lives, and the file exists until the last of them closes
it, like the memory of a real device.
"""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path
from struct import Struct

import numpy as np

from dataplane.devices.errors import ELSEWHERE
from dataplane.devices.runtime import HANDLE_BYTES, I64, DeviceError
from dataplane.protocol.mappings import map_shared, unmap

_HANDLE = Struct("<4sIQIQQ")
NAME = "larder-emulated-"


def _started_at(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


class SharedHostMemory:
    """A mapped shared file."""

    def __init__(self, kind: bytes, fd: int, nbytes: int, owner: tuple[int, int], *, own: bool) -> None:
        self._kind = kind
        self._owner = owner
        self._fd: int | None = fd if own else None
        self.nbytes = nbytes
        self.memory = mmap.mmap(fd, nbytes)
        if not own:
            os.close(fd)

    @classmethod
    def make(cls, kind: bytes, name: str, nbytes: int) -> SharedHostMemory:
        try:
            fd = os.memfd_create(NAME + name, os.MFD_CLOEXEC)
            os.ftruncate(fd, nbytes)
        except OSError as error:
            raise DeviceError(f"allocate {nbytes} bytes", "cudaErrorMemoryAllocation", str(error.strerror)) from None
        return cls(kind, fd, nbytes, (os.getpid(), _started_at(os.getpid())), own=True)

    @classmethod
    def open(cls, kind: bytes, body: bytes) -> SharedHostMemory:
        """Open a file that another process created. Raise DeviceError."""
        fd, nbytes, owner = open_handle(kind, body)
        return cls(kind, fd, nbytes, owner, own=False)

    def handle(self) -> bytes:
        if self._fd is None:
            raise DeviceError("export memory", "cudaErrorInvalidValue", "it is not this process's")
        return handle_of(self._kind, self._fd, self.nbytes)

    def owner_lives(self) -> bool:
        return _started_at(self._owner[0]) == self._owner[1]

    def forget(self) -> None:
        """Prevent further processes from opening the file. Processes that have it open keep it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def handle_of(kind: bytes, fd: int, nbytes: int) -> bytes:
    """Return the 64 bytes with which other processes open a file of this process."""
    pid = os.getpid()
    body = _HANDLE.pack(kind, pid, _started_at(pid), fd, nbytes, os.fstat(fd).st_ino)
    return body.ljust(HANDLE_BYTES, b"\0")


def open_handle(kind: bytes, body: bytes) -> tuple[int, int, tuple[int, int]]:
    """Return a new file descriptor, its bytes, and (pid, start time) of the creator. Raise DeviceError."""
    what = "open a handle"
    if len(body) != HANDLE_BYTES or body[:4] != kind:
        raise DeviceError(what, "cudaErrorInvalidValue", "these are not the bytes of a handle")
    _, pid, started, number, nbytes, inode = _HANDLE.unpack_from(body)
    if pid == os.getpid():
        raise DeviceError(what, "cudaErrorDeviceUninitialized", "a process cannot open its own memory")
    refused = DeviceError(what, "cudaErrorInvalidResourceHandle", ELSEWHERE)
    if not started or _started_at(pid) != started:
        raise refused
    try:
        fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        raise refused from None
    status = os.fstat(fd)
    if status.st_ino != inode or status.st_size != nbytes:
        os.close(fd)
        raise refused
    return fd, nbytes, (pid, started)


class MappedFile:
    """A shared file that is mapped at an address."""

    def __init__(self, fd: int, nbytes: int) -> None:
        """Map the file and take ownership of the file descriptor."""
        self.fd = fd
        self.nbytes = nbytes
        self.address = map_shared(fd, nbytes, writable=True)

    def close(self) -> None:
        unmap(self.address, self.nbytes)
        os.close(self.fd)


class AddressSpace:
    """Addresses that a stream may touch: memory of devices, and registered host memory."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, bool]] = {}
        self._columns: tuple[I64, I64, np.ndarray] | None = None
        self._lock = threading.Lock()
        """Guards against memory being added or dropped while a stream checks addresses."""

    def add(self, address: int, nbytes: int, *, writable: bool = True) -> None:
        with self._lock:
            for begin, (size, _) in self._known.items():
                if begin < address + nbytes and address < begin + size:
                    raise DeviceError("register memory", "cudaErrorHostMemoryAlreadyRegistered")
            self._known[address] = nbytes, writable
            self._columns = None

    def drop(self, address: int) -> int:
        """Remove memory and return its size in bytes. Raise DeviceError."""
        with self._lock:
            if address not in self._known:
                raise DeviceError("give memory back", "cudaErrorInvalidValue", "it is not known")
            self._columns = None
            return self._known.pop(address)[0]

    def size_of(self, address: int) -> int | None:
        known = self._known.get(address)
        return None if known is None else known[0]

    def find(self, address: int) -> int | None:
        """Return the start of the known memory that contains an address."""
        for begin, (size, _) in self._known.items():
            if begin <= address < begin + size:
                return begin
        return None

    def _sorted(self) -> tuple[I64, I64, np.ndarray]:
        """Return the starts, the ends, and the writable flags of known memory, by address."""
        with self._lock:
            if self._columns is None:
                known = sorted(self._known.items())
                self._columns = (
                    np.array([begin for begin, _ in known], np.int64),
                    np.array([begin + size for begin, (size, _) in known], np.int64),
                    np.array([writable for _, (_, writable) in known], np.bool_),
                )
            return self._columns

    def check(self, addresses: I64, sizes: I64, *, written: bool) -> None:
        """Check that each piece lies within one known memory. Raise DeviceError."""
        begins, ends, writable = self._sorted()
        at = np.searchsorted(begins, addresses, "right") - 1
        if not len(begins) or (at < 0).any() or (addresses >= ends[at]).any():
            raise DeviceError("copy", "cudaErrorInvalidValue", "an address is in no registered or device memory")
        if (addresses + sizes > ends[at]).any():
            raise DeviceError("copy", "cudaErrorInvalidValue", "a copy leaves its allocation or registration")
        if written and not writable[at].all():
            raise DeviceError("copy", "cudaErrorInvalidValue", "the target is registered read-only")

"""Memory without a name: a memfd of mode 0600 that other processes of the same user open through `/proc`.

The kernel frees it when the last process that maps it ends, even if that process is killed. The name of the memfd
identifies it (`larder-queue:<name>:<identity>`), so it is found among the open descriptors of the user's processes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from dataplane.ipc.arguments import instance

Stats = TypeVar("Stats")

PREFIX = "larder-"
_LINK = "/memfd:"
_DELETED = " (deleted)"
_NAME = re.compile(r"[A-Za-z0-9_.-]{0,128}")
_IDENTITY = re.compile(r"[0-9a-f]{1,64}")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_F_SEAL_FUTURE_WRITE = 0x10
_NOT_WRITABLE = fcntl.F_SEAL_WRITE | _F_SEAL_FUTURE_WRITE
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of a process or machine without free descriptors or memory, which say nothing about what it wanted to open."""

_MAP_FIXED = 0x10
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
_mmap.restype = ctypes.c_void_p


class MemoryGone(Exception):
    """No running process of this user holds the memory."""


class TooManyDescriptors(Exception):
    """The user's processes have more open descriptors than the search may look at."""


@dataclass(frozen=True, slots=True)
class OpenMemory:
    """A descriptor of a process that holds memory of this library."""

    kind: str
    """`queue`, `store`, or `message`."""
    name: str
    identity: str
    pid: int
    fd: int


def create(kind: str, identity: str, name: str, nbytes: int) -> int:
    """Return the descriptor of new zeroed memory of mode 0600 whose size is sealed, because a file that shrinks kills
    the processes that touch its pages. Pages are allocated when they are written.

    Raises ValueError for a name that is not of up to 128 letters, digits, `.`, `_` and `-`, TypeError for one that is
    no str, and OSError.
    """
    instance("name", name, str)
    if not _NAME.fullmatch(name):
        raise ValueError(f"name: expected up to 128 letters, digits, '.', '_' and '-', not {name!r}")
    fd = os.memfd_create(f"{PREFIX}{kind}:{name}:{identity}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


def open_through(pid: int, fd: int) -> int:
    """Return a descriptor of this process for the memory that another process holds as `fd`.

    Raises MemoryGone unless it is memory of this user, of mode 0600, of a sealed size and writable, and OSError if this
    process has no free descriptor.
    """
    try:
        own_fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise
        raise MemoryGone(f"descriptor {fd} of process {pid} cannot be opened: {error.strerror}") from None
    status = os.fstat(own_fd)
    is_private = (
        status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o600
    )
    with suppress(OSError):
        seals = fcntl.fcntl(own_fd, fcntl.F_GET_SEALS)
        if is_private and seals & _SEALS == _SEALS and not seals & _NOT_WRITABLE:
            return own_fd
    os.close(own_fd)
    raise MemoryGone(f"descriptor {fd} of process {pid} is not sealed memory of this user")


def find(kind: str | None = None, identity: str | None = None, *, most: int | None = None) -> Iterator[OpenMemory]:
    """Yield the descriptors of this user's processes that hold memory of this library. `most`: descriptors of all
    processes together that are looked at; TooManyDescriptors is raised if there are more."""
    own_uid = os.geteuid()
    looked = 0
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        folder = f"/proc/{entry}/fd"
        try:
            if os.stat(folder).st_uid != own_uid:
                continue
            numbers = os.listdir(folder)
        except OSError as error:  # the process is gone, or may not be inspected
            if error.errno in EXHAUSTED:
                raise
            continue
        looked += len(numbers)
        if most is not None and looked > most:
            raise TooManyDescriptors(f"this user's processes have more than {most:,} open descriptors")
        for number in numbers:
            try:
                target = os.readlink(f"{folder}/{number}")
            except OSError:
                continue
            parts = _parts(target)
            if parts is not None and kind in (None, parts[0]) and identity in (None, parts[2]):
                yield OpenMemory(*parts, int(entry), int(number))


def _parts(target: str) -> tuple[str, str, str] | None:
    """Return kind, name and identity of the memory that a link of `/proc/<pid>/fd` names; None for another file."""
    if not target.startswith(_LINK + PREFIX):
        return None
    parts = target.removeprefix(_LINK + PREFIX).removesuffix(_DELETED).split(":")
    if len(parts) != 3 or not _NAME.fullmatch(parts[1]) or not _IDENTITY.fullmatch(parts[2]):
        return None
    return parts[0], parts[1], parts[2]


def open_identity(kind: str, identity: str, pid: int, fd: int) -> int:
    """Return a descriptor of this process for the memory of a kind with an identity: through process `pid`, which holds
    it as `fd`, or else through any other one. Raises MemoryGone if no running process holds it, and OSError if this
    process has no free descriptor."""
    other_holders = ((opened.pid, opened.fd) for opened in find(kind, identity))
    for holder in chain([(pid, fd)], other_holders):
        with suppress(MemoryGone):
            own_fd = open_through(*holder)
            parts = _parts(os.readlink(f"/proc/self/fd/{own_fd}"))
            if parts is not None and (parts[0], parts[2]) == (kind, identity):
                return own_fd
            os.close(own_fd)
    raise MemoryGone(f"no running process holds the {kind} {identity}")


def read_all(kind: str, read: Callable[[int, str, str], Stats], wrong: type[Exception]) -> Iterator[Stats]:
    """Yield what `read` returns, given a descriptor, the name and the identity, for each memory of a kind that a
    process of this user has open. Memory for which it raises `wrong` or OSError is left out."""
    seen: set[str] = set()
    for opened in find(kind):
        if opened.identity in seen:
            continue
        try:
            fd = open_through(opened.pid, opened.fd)
        except (MemoryGone, OSError):  # the process has ended, or the memory is of another kind
            continue
        try:
            stats = read(fd, opened.name, opened.identity)
        except (wrong, OSError):  # of another release, or being created
            continue
        finally:
            os.close(fd)
        seen.add(opened.identity)
        yield stats


def map_whole(fd: int, nbytes: int, *, private: bool = False) -> mmap.mmap:
    """Map memory for reading and writing. Unlike a mapping of Python's `mmap` alone, this one keeps no descriptor.

    `private`: what is written to the mapping stays in this process. Raises OSError.
    """
    area = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # unmaps the range when it is freed
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    sharing = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    if _mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, sharing | _MAP_FIXED, fd, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, f"mmap of {nbytes} bytes: {os.strerror(number)}")
    return area


class MappedMemory:
    """A descriptor and its mapping: 64-bit words and bytes. `close` releases both."""

    __slots__ = ("_anchor", "_map", "address", "bytes", "fd", "words")

    def __init__(self, fd: int) -> None:
        """Map the whole memory. Takes over `fd`, unless it raises OSError."""
        self._map = map_whole(fd, os.fstat(fd).st_size)
        self.fd = fd
        anchor = ctypes.c_char.from_buffer(self._map)
        self._anchor: object = anchor
        self.address = ctypes.addressof(anchor)
        self.bytes = memoryview(self._map)
        whole_words = self.bytes.nbytes & -8
        self.words = self.bytes[:whole_words].cast("Q")

    def close(self) -> None:
        """Unmap the memory and close the descriptor. Memory that is still viewed stays mapped until its view ends."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        self.address = 0
        self._anchor = None
        self.words.release()
        with suppress(BufferError):
            self.bytes.release()
        with suppress(BufferError):
            self._map.close()
        os.close(fd)

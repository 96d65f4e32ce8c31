"""The named segment: one file in `/dev/shm` that clients of a gateway open by name and map as a whole, read-write.

It is one trust domain: whoever may open it may read and write all of it. So it is of its owner's uid and mode 0600, and
nothing but bytes of gateways' spaces is in it. Which bytes are whose, the core says (`core.ranges`).

Who owns a name. The file is locked (flock) before it gets its name, and every duplicate of that one open file holds the
lock: the data plane's, and its supervisor's, which outlives a `kill -9`. So a lock that can be had is that of a dead
owner, whoever that was, and the name is taken away; a lock that cannot is a living one's, and the name is left alone. A
header page behind the last byte tells a file of Larder's from one of somebody else's, which is never touched.

Clients write where they were told to without asking anybody, so a range has its pages before its first slot is given:
a full `/dev/shm` is told to the data plane, instead of killing an engine at its first touch.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from dataplane.tiers.memory import SharedFile, punch
from dataplane.tiers.pages import PAGE_BYTES, available_bytes

FOLDER = Path("/dev/shm")
PREFIX = "lmcache_l1_pool_"
"""Clients know the name whole; people know it by this."""
MAX_NAME_CHARACTERS = 64
_MAGIC = b"LARDERSH"
_HEADER = Struct("<8sIIQQQH")
_VERSION = 1
_TRIES = 3

Inode = tuple[int, int]
"""Device and inode."""


class CannotName(Exception):
    """There is no named segment to be had: the sentence says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the last page of the file says. Written by its owner; nothing depends on it but whose file it is."""

    pid: int
    started: int
    identity: int
    nbytes: int
    name: str

    def packed(self) -> bytes:
        name = self.name.encode()
        return (
            _HEADER.pack(_MAGIC, _VERSION, self.pid, self.started, self.identity, self.nbytes, len(name))
            + name
        )

    @classmethod
    def read(cls, fd: int) -> Header | None:
        """The header of a file; None when it is none of Larder's."""
        size = os.fstat(fd).st_size
        try:
            data = os.pread(fd, PAGE_BYTES, max(0, size - PAGE_BYTES))
        except OSError:
            return None
        if len(data) < PAGE_BYTES:
            return None
        magic, version, pid, started, identity, nbytes, length = _HEADER.unpack_from(data)
        name = data[_HEADER.size : _HEADER.size + length]
        if (magic, version, nbytes) != (_MAGIC, _VERSION, size - PAGE_BYTES) or not name.isascii():
            return None
        return cls(pid, started, identity, nbytes, name.decode())


class NamedFile:
    """The named segment that this process owns."""

    def __init__(self, file: SharedFile, header: Header, folder: Path) -> None:
        self.file = file
        """All of it, the header too."""
        self.name = header.name
        """As clients open it, without a slash."""
        self.nbytes = header.nbytes
        """Without the header."""
        self.identity = header.identity
        """Drawn when the file is made; the same after a restart that adopted it."""
        self.adopted = False
        """A predecessor made it: its clients map it, and its segments are where they were."""
        self.short = False
        """The machine had no pages for the last range that was wanted."""
        self.may_give_back: Callable[[], bool] = lambda: True
        """Whether pages may be taken from clients' mappings now: not while a device writes to them by address."""
        self._path = folder / header.name
        status = os.fstat(file.fd)
        self._inode = status.st_dev, status.st_ino
        self._parts: dict[int, tuple[int, int]] = {}
        """(base, bytes) of each segment."""
        self._unused_pages = False
        """Some pages belong to no segment any more."""
        self._view: memoryview | None = None

    @classmethod
    def create(
        cls,
        name: str,
        nbytes: int,
        pid: int,
        started: int,
        *,
        inherited: Collection[Inode] = (),
        folder: Path = FOLDER,
    ) -> NamedFile:
        """A sparse file of whole pages under `PREFIX` and this name; what dead owners left is removed before.

        `inherited` are files that a predecessor of this very data plane left; they make way though their lock is
        held. Raises CannotName.
        """
        header = Header(
            pid, started, secrets.randbits(63) | 1, nbytes // PAGE_BYTES * PAGE_BYTES, PREFIX + name
        )
        path = folder / header.name
        fd = -1
        try:
            fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            os.fchmod(fd, 0o600)
            os.ftruncate(fd, header.nbytes + PAGE_BYTES)
            os.pwrite(fd, header.packed(), header.nbytes)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file = SharedFile.of(header.name, fd)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise CannotName(f"{path} cannot be made: {error.strerror}") from None
        try:
            for _ in range(_TRIES):
                try:
                    _link(fd, path)
                    break
                except FileExistsError:
                    _make_way(path, inherited)
            else:
                raise CannotName(f"{path} is taken again and again by somebody else")
        except OSError as error:
            file.close()
            raise CannotName(f"{path} cannot be made: {error.strerror}") from None
        except CannotName:
            file.close()
            raise
        return cls(file, header, folder)

    @classmethod
    def adopt(cls, file: SharedFile, pid: int, started: int, *, folder: Path = FOLDER) -> NamedFile:
        """Go on with the file of a predecessor; it is the caller's to close when this raises CannotName."""
        before = Header.read(file.fd)
        if before is None or not before.name.startswith(PREFIX):
            raise CannotName("the named segment of the data plane before has no header")
        named = cls(file, Header(pid, started, before.identity, before.nbytes, before.name), folder)
        if not named.present:
            raise CannotName(
                f"{named._path} was removed, or is another file now: new clients could not open it"
            )
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            header = Header(pid, started, before.identity, before.nbytes, before.name)
            os.pwrite(file.fd, header.packed(), header.nbytes)
        except OSError as error:
            raise CannotName(f"{named._path} cannot be gone on with: {error.strerror}") from None
        named.adopted = named._unused_pages = True
        return named

    # ---- what clients and the gateway see

    @property
    def present(self) -> bool:
        """Its name is there, and is its own."""
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._inode

    def base(self, segment: int) -> int:
        """Bytes from the start of the file to a segment of a gateway's space. Raises KeyError."""
        return self._parts[segment][0]

    def view(self) -> memoryview:
        """All bytes but the header, writable. Mapped once; nothing is taken from the machine by it."""
        if self._view is None:
            self._view = memoryview(self.file.map())[: self.nbytes]
        return self._view

    # ---- segments of it

    def part(self, segment: int, base: int, nbytes: int) -> SharedFile:
        """A segment from here on; it has its pages. Raises MemoryError."""
        try:
            if available_bytes() < nbytes:  # the machine would end somebody for it
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            os.posix_fallocate(self.file.fd, base, nbytes)
        except OSError as error:
            self.short = True
            raise MemoryError(f"{nbytes} bytes of {self._path}: {error.strerror}") from None
        self.short = False
        return self.known_part(segment, base, nbytes)

    def known_part(self, segment: int, base: int, nbytes: int) -> SharedFile:
        """A segment that a predecessor made."""
        self._parts[segment] = base, nbytes
        whole = self.file
        return SharedFile(
            f"{whole.name}-{segment}", nbytes, whole.fd, whole.read_only_fd, base=base, part=True
        )

    def retire(self, segment: int) -> None:
        """A segment is no more; its pages go back to the machine when they may."""
        base, nbytes = self._parts.pop(segment)
        if not self._unused_pages and self.may_give_back():
            punch(self.file.fd, base, nbytes)
        else:
            self._unused_pages = True
            self.give_back()

    def give_back(self) -> None:
        """Give the machine the pages that belong to no segment, if they may go now."""
        if self._unused_pages and self.may_give_back():
            self._unused_pages = False
            for base, nbytes in self._unused():
                punch(self.file.fd, base, nbytes)

    def _unused(self) -> Iterator[tuple[int, int]]:
        at = 0
        for base, nbytes in [*sorted(self._parts.values()), (self.nbytes, 0)]:
            if base > at:
                yield at, base - at
            at = base + nbytes

    # ---- the end

    def remove(self) -> None:
        """Take the name away, if it is still this file's. Clients that map it keep their mapping."""
        if self.present:
            with suppress(OSError):
                os.unlink(self._path)

    def close(self) -> None:
        """Let the file go; its name stays."""
        self.file.close()


def free_bytes(folder: Path = FOLDER, inherited: Iterable[Inode] = ()) -> int:
    """What a new named segment could have, once what dead owners left is removed, which this does.

    What inherited files have will be free when the last client has let them go. Raises CannotName.
    """
    known = set(inherited)
    coming = 0
    for path in _files(folder):
        with suppress(OSError):
            _reclaim(path)
            found = os.stat(path, follow_symlinks=False)
            if (found.st_dev, found.st_ino) in known:
                coming += found.st_blocks * 512
    try:
        space = os.statvfs(folder)
    except OSError as error:
        raise CannotName(f"{folder} cannot be used: {error.strerror}") from None
    return space.f_bavail * space.f_frsize + coming - PAGE_BYTES


def discard(file: SharedFile, folder: Path = FOLDER) -> None:
    """A predecessor's file is not wanted any more: its name goes, and the file is closed."""
    header = Header.read(file.fd)
    if header is not None:
        NamedFile(file, header, folder).remove()
    file.close()


def _files(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder) if name.startswith(PREFIX)]
    except OSError as error:
        raise CannotName(f"{folder} cannot be read: {error.strerror}") from None


def _link(fd: int, path: Path) -> None:
    """Give an unnamed file its name. Raises FileExistsError."""
    numbers = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(str(fd), path, src_dir_fd=numbers, follow_symlinks=True)
    finally:
        os.close(numbers)


def _make_way(path: Path, inherited: Collection[Inode]) -> None:
    """Remove a file from our name when its owner is dead, or was our predecessor. Raises CannotName, OSError."""
    with suppress(FileNotFoundError):
        found = os.stat(path, follow_symlinks=False)
        if (found.st_dev, found.st_ino) in inherited:
            os.unlink(path)
            return
        fault = _reclaim(path)
        if fault:
            raise CannotName(f"{path} {fault}")


def _reclaim(path: Path) -> str:
    """Remove a file whose owner is dead; what else it is, in words. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        header = Header.read(fd) if stat.S_ISREG(found.st_mode) else None
        if header is None:
            return (
                "is not Larder's: another cache server may use it. Stop that server, remove the file when there is "
                "none, or choose another name with dataplane.lmcache_shm_name"
            )
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return (
                f"belongs to another data plane or its supervisor (made by process {header.pid}). Stop it, or choose "
                "another name with dataplane.lmcache_shm_name"
            )
        if os.path.samestat(found, os.stat(path, follow_symlinks=False)):
            os.unlink(path)
        return ""
    finally:
        os.close(fd)

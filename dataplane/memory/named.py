"""The named segment: one file in `/dev/shm` that clients of a gateway open by name and map as a whole, read-write.

The segment is one trust domain: any process that can open it can read and write all of it. So it belongs to the data
plane's uid, has mode 0600, and contains only bytes of gateways' spaces. The core assigns its
ranges (`core.blocks.ranges`).

Ownership of the name. The file is locked (flock) before it gets its name, and every duplicate of that open file holds
the lock: the data plane's, and its holder's, which outlives a `kill -9`. So if the lock of a file can be taken, its
owner is dead and its name is removed; if not, its owner lives and the name is left alone. A header page after the last
byte identifies a file as Larder's; other files are never touched.

Other programs can remove a name in `/dev/shm`: `rm`, a tmp cleaner, systemd (`RemoveIPC`). Linux gives no new name to a
file that has lost its last one, so the file has a backup name from the start: `look` links the name again, to the same
bytes. If both names are gone, or another file has the name, `problem` says so, and new clients cannot open the file.

Clients write to granted ranges without a further request, so a range gets its pages before its first slot is granted:
then a full `/dev/shm` is an error in the data plane, and not a signal that kills an engine at its first touch.
`named_pages` takes the pages.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from dataplane.memory.named_pages import NamedPages
from dataplane.memory.pages import PAGE_BYTES
from dataplane.memory.shared_file import SharedFile

FOLDER = Path("/dev/shm")
PREFIX = "lmcache_l1_pool_"
"""Prefix of the name. Clients get the whole name; operators recognize it by this."""
BACKUP_PREFIX = ".larder-"
"""Prefix of the backup name. Patterns such as `*` or `lmcache*` do not match it."""
MAX_NAME_CHARACTERS = 64
_MAGIC = b"LARDERSH"
_HEADER = Struct("<8sIIQQQH")
_VERSION = 1
_TRIES = 3
LEFT_S = 60.0
"""Seconds after its last change when a file of a dead owner counts as left behind."""
LOOKED_AT_S = (0.01, 0.05)
"""Pauses between attempts to lock the file of our own name: `larder doctor` locks it while it checks the owner."""

Inode = tuple[int, int]
"""Device and inode."""


class CannotName(Exception):
    """The named segment cannot be created or adopted; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Header:
    """Contents of the last page of the file, written by its owner; used only to identify the owner."""

    pid: int
    started: int
    identity: int
    nbytes: int
    name: str

    def packed(self) -> bytes:
        name = self.name.encode()
        return _HEADER.pack(_MAGIC, _VERSION, self.pid, self.started, self.identity, self.nbytes, len(name)) + name

    @classmethod
    def read(cls, fd: int) -> Header | None:
        """Return the header of a file; None if the file is not Larder's."""
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

    def __init__(self, file: SharedFile, header: Header, folder: Path, may_give_back: Callable[[], bool]) -> None:
        """`may_give_back` returns whether pages may be removed from clients' mappings now: not while a device writes to
        them by address."""
        self.file = file
        """The whole file, including the header."""
        self.name = header.name
        """Name that clients open, without a slash."""
        self.nbytes = header.nbytes
        """Size in bytes, without the header."""
        self.identity = header.identity
        """Random number chosen when the file is made; unchanged after a restart that adopted it."""
        self.adopted = False
        """A predecessor made the file: its clients map it, and its segments are at their old places."""
        self.short = False
        """The machine had no pages for the last requested range."""
        self._may_give_back = may_give_back
        self.problem = ""
        """Reason why new clients cannot open the file by its name; empty if they can."""
        self.restored = 0
        """Number of times that this process restored the name."""
        self._problems: list[str] = []
        """The values that `problem` took since the last `take_problems`."""
        self._removed = False
        self._path = folder / header.name
        self._backup_name = _backup_name_of(self._path)
        self._inode = _inode(os.fstat(file.fd))
        self._parts: dict[int, tuple[int, int]] = {}
        """(base, bytes) of each segment."""
        self.pages = NamedPages(file.fd, header.nbytes)
        self._view: memoryview | None = None

    @classmethod
    def create(
        cls,
        name: str,
        nbytes: int,
        pid: int,
        started: int,
        may_give_back: Callable[[], bool],
        *,
        inherited: Collection[Inode] = (),
        folder: Path = FOLDER,
    ) -> NamedFile:
        """Create a sparse file of whole pages under `PREFIX` and this name, after removing files of dead owners.

        `inherited` are files of a predecessor of this data plane; they are replaced even though their lock is held.
        Raises CannotName.
        """
        header = Header(pid, started, secrets.randbits(63) | 1, nbytes // PAGE_BYTES * PAGE_BYTES, PREFIX + name)
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
            raise CannotName(f"{path} cannot be created: {error.strerror}") from None
        try:
            for _ in range(_TRIES):
                try:
                    _link(fd, path)
                    break
                except FileExistsError:
                    _make_way(path, inherited)
            else:
                raise CannotName(f"{path} keeps being created by another process")
        except OSError as error:
            file.close()
            raise CannotName(f"{path} cannot be created: {error.strerror}") from None
        except CannotName:
            file.close()
            raise
        with suppress(CannotName, OSError):
            _make_way(_backup_name_of(path), inherited)
        named = cls(file, header, folder, may_give_back)
        named.look()
        return named

    @classmethod
    def adopt(cls, file: SharedFile, pid: int, started: int, may_give_back: Callable[[], bool]) -> NamedFile:
        """Adopt the file of a predecessor. Raises CannotName; then the caller must close the file."""
        before = Header.read(file.fd)
        if before is None or not before.name.startswith(PREFIX):
            raise CannotName("the named segment of the previous data plane has no header")
        header = Header(pid, started, before.identity, before.nbytes, before.name)
        named = cls(file, header, FOLDER, may_give_back)
        if named._is_lost():
            raise CannotName(f"{named._path} and its backup name were removed: new clients could not open it")
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(file.fd, header.packed(), header.nbytes)
        except OSError as error:
            raise CannotName(f"{named._path} cannot be adopted: {error.strerror}") from None
        named.look()
        named.adopted = True
        named.pages.stray()
        return named

    # ---- for clients and the gateway

    @property
    def paths(self) -> list[Path]:
        """Return the name that clients open, and the backup name from which it is restored."""
        return [self._path, self._backup_name]

    @property
    def present(self) -> bool:
        """Whether the name refers to this file."""
        return _inode_at(self._path) == self._inode

    def look(self) -> None:
        """Check both names, restore a missing one, and update `problem`. Costs two `stat` calls. Does nothing after
        `remove`."""
        if self._removed:
            return
        problem = self._repair()
        if problem != self.problem:
            self._note_problem(problem)

    def take_problems(self) -> list[str]:
        """Return the values that `problem` took since the last call, oldest first."""
        problems, self._problems = self._problems, []
        return problems

    def _note_problem(self, problem: str) -> None:
        self.problem = problem
        self._problems.append(problem)

    def _repair(self) -> str:
        """Restore a removed name. Return why new clients cannot open the file; empty if they can."""
        found = _inode_at(self._path)
        if found == self._inode:
            with suppress(OSError):  # the file is usable without a backup name
                if _inode_at(self._backup_name) is None:
                    _link(self.file.fd, self._backup_name)
            return ""
        nameless = os.fstat(self.file.fd).st_nlink == 0
        restart = (
            f"restart the data plane (process {os.getpid()}): it creates new memory, and what LMCache clients "
            "cached is lost. Registered workers continue until then"
        )
        if found is not None:
            then = restart if nameless else "the memory gets its name back"
            return (
                f"{self._path} is another file now, which Larder does not touch. Remove it or give it another name; "
                f"then {then}"
            )
        if nameless:
            return f"{self._path} and its backup name were removed; {restart}"
        if not self.problem:
            self._note_problem(f"{self._path} was removed")
        try:
            _link(self.file.fd, self._path)
        except OSError as error:
            return f"{self._path} was removed and cannot be restored: {error.strerror}"
        self.restored += 1
        return ""

    def _is_lost(self) -> bool:
        """Return whether the file has no name and cannot get one."""
        return os.fstat(self.file.fd).st_nlink == 0 and _inode_at(self._path) is None

    def base(self, segment: int) -> int:
        """Return the bytes from the start of the file to a segment of a gateway's space. Raises KeyError."""
        return self._parts[segment][0]

    def view(self) -> memoryview:
        """Return a writable view of all bytes but the header. Mapped once; mapping allocates no pages."""
        if self._view is None:
            self._view = memoryview(self.file.map())[: self.nbytes]
        return self._view

    def device_view(self) -> memoryview:
        """Return the same view, for a device that will address the pages directly."""
        self.pages.keep()
        return self.view()

    # ---- segments

    def part(self, segment: int, base: int, nbytes: int) -> SharedFile:
        """Make a segment of a range and allocate its pages. Raises MemoryError."""
        try:
            try:
                self.pages.use(base, nbytes)
            except OSError:
                if not (self.pages.ahead_bytes and self._may_give_back()):
                    raise
                self.pages.shed(base, nbytes)
                self.pages.use(base, nbytes)
        except OSError as error:
            self.short = True
            raise MemoryError(f"{nbytes} bytes of {self._path}: {error.strerror}") from None
        self.short = False
        return self._part(segment, base, nbytes)

    def known_part(self, segment: int, base: int, nbytes: int) -> SharedFile:
        """Register a segment that a predecessor made."""
        self.pages.known(base, nbytes)
        return self._part(segment, base, nbytes)

    def _part(self, segment: int, base: int, nbytes: int) -> SharedFile:
        self._parts[segment] = base, nbytes
        whole = self.file
        return SharedFile(f"{whole.name}-{segment}", nbytes, whole.fd, whole.read_only_fd, base=base, part=True)

    def retire(self, segment: int) -> None:
        """Retire a segment. Its pages stay for the next one, or go back to the machine when that is allowed."""
        self.pages.release(*self._parts.pop(segment))
        if not self.pages.threaded:
            self.give_back()

    def give_back(self) -> None:
        """Give pages that belong to no segment and are not kept ahead back to the machine, if that is allowed now."""
        if self.pages.surplus and self._may_give_back():
            self.pages.give_back()

    def lacking(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the ranges (base, bytes) that lack some of their pages."""
        return self.pages.lacking(ranges)

    def take(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Allocate the pages of ranges. Blocks; do not call it on the loop. Raises OSError."""
        self.pages.take(ranges)

    # ---- the end

    def remove(self) -> None:
        """Remove both names, if they still refer to this file. Clients that map it keep their mapping."""
        self._removed = True
        _remove_names(self._path, self._inode)

    def close(self) -> None:
        """Close the file; its name stays."""
        self.pages.stop()
        self.file.close()


def free_bytes(folder: Path = FOLDER, inherited: Iterable[Inode] = ()) -> int:
    """Remove files of dead owners, and return the bytes that a new named segment could have.

    Includes the bytes of inherited files, which become free when the last client has unmapped them. Raises CannotName.
    """
    known = set(inherited)
    coming: dict[Inode, int] = {}
    for path in _files(folder):
        with suppress(OSError):
            _reclaim(path)
            found = os.stat(path, follow_symlinks=False)
            if _inode(found) in known:
                coming[_inode(found)] = found.st_blocks * 512
    try:
        space = os.statvfs(folder)
    except OSError as error:
        raise CannotName(f"{folder} cannot be used: {error.strerror}") from None
    return space.f_bavail * space.f_frsize + sum(coming.values()) - PAGE_BYTES


def left_behind(folder: Path, *, remove: bool = False) -> dict[Path, int]:
    """Return the allocated bytes of the files of this user's dead owners by their names, 0 for the second name of a
    file. `remove` removes the names, and so gives the memory back to the machine.

    A file that was written a moment ago is left to the next data plane, which may be starting. Raises CannotName.
    """
    found: dict[Path, int] = {}
    seen: set[Inode] = set()
    for path in sorted(_files(folder)):
        with suppress(OSError):  # just removed
            status = os.stat(path, follow_symlinks=False)
            is_old = time.time() - status.st_mtime > LEFT_S
            if status.st_uid == os.geteuid() and is_old and not _reclaim(path, remove=remove):
                found[path] = 0 if _inode(status) in seen else status.st_blocks * 512
                seen.add(_inode(status))
    return found


def discard(file: SharedFile) -> None:
    """Remove the name of a predecessor's file that is no longer needed, and close the file."""
    header = Header.read(file.fd)
    if header is not None:
        _remove_names(FOLDER / header.name, _inode(os.fstat(file.fd)))
    file.close()


def _remove_names(path: Path, inode: Inode) -> None:
    """Remove a name and its backup name, if they refer to this file."""
    for name in (path, _backup_name_of(path)):
        if _inode_at(name) == inode:
            with suppress(OSError):
                os.unlink(name)


def _files(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder) if name.startswith((PREFIX, BACKUP_PREFIX + PREFIX))]
    except OSError as error:
        raise CannotName(f"{folder} cannot be read: {error.strerror}") from None


def _backup_name_of(path: Path) -> Path:
    return path.with_name(BACKUP_PREFIX + path.name)


def _inode(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino


def _inode_at(path: Path) -> Inode | None:
    """Return the inode at a path; None if there is no file."""
    try:
        return _inode(os.stat(path, follow_symlinks=False))
    except OSError:
        return None


def _link(fd: int, path: Path) -> None:
    """Give a file another name, or its first one. Raises FileExistsError, and FileNotFoundError if it has lost its last
    name."""
    numbers = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(str(fd), path, src_dir_fd=numbers, follow_symlinks=True)
    finally:
        os.close(numbers)


def _make_way(path: Path, inherited: Collection[Inode]) -> None:
    """Remove a file from our name if its owner is dead or was our predecessor. Raises CannotName, OSError."""
    with suppress(FileNotFoundError):
        found = os.stat(path, follow_symlinks=False)
        if _inode(found) in inherited:
            os.unlink(path)
            return
        fault = _reclaim(path, pauses_s=LOOKED_AT_S)
        if fault:
            raise CannotName(f"{path} {fault}")


def _locked(fd: int, pauses_s: Iterable[float]) -> bool:
    """Lock a file, with another attempt after each pause. Return False if its owner lives."""
    for pause_s in (0.0, *pauses_s):
        time.sleep(pause_s)
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def _reclaim(path: Path, *, remove: bool = True, pauses_s: Iterable[float] = ()) -> str:
    """Remove a file if its owner is dead; otherwise return what the file is. Without `remove`, the file stays.
    `pauses_s` are the pauses between attempts to lock it. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        header = Header.read(fd) if stat.S_ISREG(found.st_mode) else None
        if header is None:
            return (
                "is not Larder's: another cache server may use it. Stop that server, remove the file when there is "
                "none, or choose another name with dataplane.lmcache_shm_name"
            )
        if not _locked(fd, pauses_s):
            return (
                f"belongs to another data plane or its holder (created by process {header.pid}). Run `larder down` "
                "with its state directory, or choose another name with dataplane.lmcache_shm_name"
            )
        if remove and os.path.samestat(found, os.stat(path, follow_symlinks=False)):
            os.unlink(path)
        return ""
    finally:
        os.close(fd)

"""The superblock of a directory, and the lock that one node holds on it."""

import errno
import fcntl
import os
import re
from pathlib import Path
from uuid import uuid4

import msgspec
import structlog

from dataplane.base.durable_files import sync_folder
from dataplane.tiers.disk.own_file import create_own, open_own, read_own
from dataplane.tiers.disk.parameters import SegmentBytes
from dataplane.tiers.registry import TierContext
from dataplane.tiers.tier import TierError

VERSION = 1
MAGIC = "LARDERD1"
SUPERBLOCK = "superblock.json"
LOCK = "lock"
_OF_FILE_SYSTEMS = {"lost+found"}
"""What a new file system has in it."""
_MAX_BYTES = 1 << 16
_OF_LOCKS = re.compile(rb"[^\n]{0,400}, process \d{1,10}\n")
log = structlog.stdlib.get_logger()


class Superblock(msgspec.Struct, frozen=True):
    """Identity of a directory."""

    magic: str
    version: int
    cluster: str
    """32 hex digits."""
    node: str
    """Node that used the directory last."""
    directory: str
    """Identity of the directory, 32 hex digits; its segments carry it."""
    segment_bytes: SegmentBytes


class DirectoryLock:
    """The exclusive use of a directory. It ends with the process."""

    def __init__(self, directory: Path, owner: str) -> None:
        """Lock the directory; `owner` is what other processes read.

        Raises TierError if another process uses the directory or if it holds something else, OSError if the lock file
        cannot be opened.
        """
        self.path = directory / LOCK
        self._owner = owner
        if not (directory / SUPERBLOCK).exists():
            _check_new(directory)  # before anything is written: the path may be that of any directory
        self.fd = open_own(self.path, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                user = os.pread(self.fd, 512, 0).decode(errors="replace").strip() or "another process"
                raise TierError(f"{directory}: in use by {user}") from None
            self.probe()
        except BaseException:
            os.close(self.fd)
            raise

    def probe(self) -> None:
        """Write the owner to the device. Raises OSError if the device cannot be written or the file was replaced."""
        current, locked = os.stat(self.path), os.fstat(self.fd)
        if (current.st_dev, current.st_ino) != (locked.st_dev, locked.st_ino):
            raise FileNotFoundError(errno.ENOENT, "the directory was replaced", str(self.path))
        owner = f"{self._owner}, process {os.getpid()}\n".encode()
        os.pwrite(self.fd, owner, 0)
        os.ftruncate(self.fd, len(owner))
        os.fdatasync(self.fd)

    def release(self) -> None:
        os.close(self.fd)


def open_superblock(directory: Path, context: TierContext, segment_bytes: int) -> Superblock:
    """Return the superblock of a locked directory, and write one to a new directory. A node that continues the
    directory of another one logs a warning.

    Raises TierError if the directory is of another cluster or of a newer version, or its superblock cannot be used.
    """
    cluster = context.cluster.hex()
    superblock = read_superblock(directory)
    if superblock is None:
        superblock = Superblock(MAGIC, VERSION, cluster, context.node, uuid4().hex, segment_bytes)
        _write(directory, superblock)
    if superblock.cluster != cluster:
        raise TierError(
            f"{directory}: expected a directory of this node's tier_cluster {context.cluster_name!r} "
            f"({cluster[:8]}…), got one that node {superblock.node} used with another tier_cluster "
            f"({superblock.cluster[:8]}…)"
        )
    if superblock.node != context.node:
        log.warning(
            "tier.directory_continued",
            directory=str(directory),
            node_before=superblock.node,
            effect="its blocks are served, also those that were invalidated while no node used the directory",
        )
        superblock = msgspec.structs.replace(superblock, node=context.node)
        _write(directory, superblock)
    return superblock


def _check_new(directory: Path) -> None:
    """Raise TierError if a directory without a superblock holds files that no tier left there. Raises OSError."""
    own_names = {LOCK, SUPERBLOCK, f"{SUPERBLOCK}.new"} | _OF_FILE_SYSTEMS
    foreign = {entry.name for entry in os.scandir(directory)} - own_names
    lock = directory / LOCK
    if not foreign and lock.exists() and not _is_lock(read_own(lock, _MAX_BYTES)):
        foreign = {LOCK}
    if foreign:
        raise TierError(f"{directory}: expected an empty directory or one of a tier, found {min(foreign)}")


def _is_lock(content: bytes) -> bool:
    return not content or _OF_LOCKS.fullmatch(content) is not None


def read_superblock(directory: Path) -> Superblock | None:
    """Return the superblock, or None if there is none. Raises TierError if it cannot be used, or OSError."""
    path = directory / SUPERBLOCK
    try:
        data = read_own(path, _MAX_BYTES)
    except FileNotFoundError:
        return None
    try:
        version = msgspec.json.decode(data, type=_Version)
        if version.magic == MAGIC and version.version > VERSION:
            raise TierError(f"{directory}: expected format version {VERSION} or older, got {version.version}")
        superblock = msgspec.json.decode(data, type=Superblock)
        valid = superblock.magic == MAGIC and len(bytes.fromhex(superblock.cluster)) == 16
        valid = valid and len(bytes.fromhex(superblock.directory)) == 16
    except (ValueError, RecursionError):
        valid = False
    if not valid:
        raise TierError(f"{directory}: {SUPERBLOCK} is damaged; remove the directory's files to start empty")
    return superblock


class _Version(msgspec.Struct):
    """The fields that every version has."""

    magic: str
    version: int


def _write(directory: Path, superblock: Superblock) -> None:
    """Replace the superblock so that a crash leaves the old or the new one."""
    partial = directory / f"{SUPERBLOCK}.new"
    fd = create_own(partial, os.O_WRONLY)
    try:
        os.write(fd, msgspec.json.format(msgspec.json.encode(superblock), indent=2) + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(partial, directory / SUPERBLOCK)
    sync_folder(directory)

"""Memory of a previous data plane, which its holder has; each file is checked before any of it is used."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

from dataplane.memory.shared_file import SEALS, SharedFile

NAMED = "named"
"""Kind of the file that has a name instead of seals, because clients of a gateway open it by name."""
NEEDED = (("index", 0), ("books", 0), ("names", 0))


class CannotAdopt(Exception):
    """The memory of the previous data plane cannot be adopted, so the start is cold; the message says why."""


@dataclass(slots=True)
class InheritedMemory:
    """Files by kind and number; this object owns their fds."""

    files: dict[tuple[str, int], SharedFile] = field(default_factory=dict)

    @classmethod
    def take(cls, fds: Iterable[tuple[str, int, int]]) -> InheritedMemory:
        """Take files given as (kind, number, fd); if a kind and number occur twice, the last file is used. Raises
        CannotAdopt.

        Takes ownership of every fd, even if it raises.
        """
        inherited = cls()
        waiting = list(fds)
        try:
            while waiting:
                kind, number, fd = waiting.pop(0)
                file = _checked(kind, number, fd)
                before = inherited.files.pop((kind, number), None)
                if before is not None:
                    before.close()
                inherited.files[kind, number] = file
            for kind, number in NEEDED:
                if (kind, number) not in inherited.files:
                    raise CannotAdopt(f"the {kind} memory is missing")
        except BaseException:
            for _, _, fd in waiting:
                os.close(fd)
            inherited.close()
            raise
        return inherited

    def has(self, kind: str, number: int = 0) -> bool:
        return (kind, number) in self.files

    def pop(self, kind: str, number: int = 0) -> SharedFile:
        """Remove a file and return it; the caller owns its fds. Raises KeyError."""
        return self.files.pop((kind, number))

    def numbers(self, kind: str) -> list[int]:
        return [number for file_kind, number in self.files if file_kind == kind]

    def close(self) -> None:
        """Close the files that were not removed."""
        for file in self.files.values():
            file.close()
        self.files.clear()


def _checked(kind: str, number: int, fd: int) -> SharedFile:
    name = f"larder-{kind}-{number}"
    try:
        if kind == NAMED:
            if not _private(fd):
                raise CannotAdopt("the named segment is not a file of ours alone")
        elif fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS:
            raise CannotAdopt(f"{kind} {number} is not sealed memory")
        return SharedFile.of(name, fd)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        raise CannotAdopt(f"{kind} {number} cannot be opened: {error.strerror}") from None
    except CannotAdopt:
        os.close(fd)
        raise


def _private(fd: int) -> bool:
    status = os.fstat(fd)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077

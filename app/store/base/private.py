"""Files that only their owner may access: the database contains secrets and the names of all tenants."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

BESIDE = ("", "-wal", "-shm", "-journal")
"""Suffixes of SQLite's files: the database file, and the files beside it, which SQLite creates with the same mode."""
_OTHERS = 0o077


@dataclass(frozen=True)
class FileExposed:
    """A file or directory that other users can access."""

    path: str
    mode: str
    """File mode in octal."""
    fix: str


def make_folder(path: Path) -> None:
    """Create a folder that only its owner can access, if it does not exist. Raise OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def make_file(path: str) -> None:
    """Create an empty file that only its owner can access, if it does not exist. Errors show up when it is opened."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        return


def exposed(state_dir: Path, database: str) -> list[FileExposed]:
    """Return the state directory and SQLite files that other users can access. `database` is "" for other databases."""
    names = [str(state_dir), *(f"{database}{suffix}" for suffix in BESIDE if database)]
    return [found for name in names if (found := _look(name)) is not None]


def _look(name: str) -> FileExposed | None:
    try:
        mode = os.stat(name).st_mode
    except OSError:
        return None
    if not mode & _OTHERS:
        return None
    right = "700" if stat.S_ISDIR(mode) else "600"
    return FileExposed(name, f"{stat.S_IMODE(mode):o}", f"chmod {right} {name}")

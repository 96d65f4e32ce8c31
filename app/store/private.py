"""Files that nobody else on the machine may read: the database has secrets, and names of all tenants, in it."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

BESIDE = ("", "-wal", "-shm", "-journal")
"""What SQLite keeps beside a database's file; it makes them with the mode of that file."""
_OTHERS = 0o077


@dataclass(frozen=True)
class Exposed:
    """Something that others can reach."""

    path: str
    mode: str
    """Octal."""
    fix: str


def make_folder(path: Path) -> None:
    """For its owner alone, when it is not there. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def make_file(path: str) -> None:
    """Empty, and for its owner alone, when it is not there; what cannot be made is told by who opens it."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        return


def exposed(state_dir: Path, database: str) -> list[Exposed]:
    """The state directory and the files of an SQLite database ("": there is none), as far as others can reach them."""
    names = [str(state_dir), *(f"{database}{suffix}" for suffix in BESIDE if database)]
    return [found for name in names if (found := _look(name)) is not None]


def _look(name: str) -> Exposed | None:
    try:
        mode = os.stat(name).st_mode
    except OSError:
        return None
    if not mode & _OTHERS:
        return None
    right = "700" if stat.S_ISDIR(mode) else "600"
    return Exposed(name, f"{stat.S_IMODE(mode):o}", f"chmod {right} {name}")

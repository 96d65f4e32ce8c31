"""Shared memory that killed data planes of this user left on this machine."""

from pathlib import Path

from dataplane.memory.named import FOLDER, CannotName, left_behind


def left_memory(folder: Path = FOLDER, *, remove: bool = False) -> dict[Path, int]:
    """Return the bytes of each file without a living owner; `remove` removes the files. Empty without `/dev/shm`."""
    try:
        return left_behind(folder, remove=remove)
    except CannotName:
        return {}

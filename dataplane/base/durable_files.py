"""Files that survive a crash of the process and of the machine: either the old or the new contents are there."""

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Write a file of mode 0600 in place of an earlier one, and sync it to the device. Raises OSError."""
    making = path.with_suffix(".new")
    try:
        with open(os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        making.replace(path)
    except OSError:
        with suppress(OSError):  # remove what was written before the disk was full
            making.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""Files that survive a crash of the process and of the machine: either the old or the new contents are there."""

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

_DIGEST_BYTES = 32


def replace_file(path: Path, data: bytes) -> None:
    """Write a file of mode 0600 in place of an earlier one, and sync it to the device. Raises OSError."""
    making = path.with_suffix(".new")
    making.unlink(missing_ok=True)  # one that is there may be a link, or a file that others can read
    descriptor = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        making.replace(path)
    except OSError:
        with suppress(OSError):  # remove what was written before the disk was full
            making.unlink()
        raise
    sync_folder(path.parent)


def replace_checked(path: Path, magic: bytes, body: bytes) -> None:
    """Write a file with a magic number and a digest of its body, as `replace_file` does. Raises OSError."""
    replace_file(path, magic + sha256(body).digest() + body)


def checked_body(data: bytes, magic: bytes) -> bytes:
    """Return the body of a file that `replace_checked` wrote. Raises ValueError."""
    start = len(magic) + _DIGEST_BYTES
    body = data[start:]
    if not data.startswith(magic) or sha256(body).digest() != data[len(magic) : start]:
        raise ValueError("its contents do not match their digest")
    return body


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Return the contents of a file. Raises OSError; ValueError if it has more bytes than `most_bytes`."""
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"expected at most {most_bytes} bytes, got more")
    return data


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""Opens the files of a directory so that no other user can put another file in their place.

The data plane may run as root, and other users may be able to write to the directory. A link there could make it
overwrite a file anywhere, and a file of another user could hold bytes that no node wrote.
"""

import errno
import os
import stat
from pathlib import Path


def open_own(path: Path, flags: int) -> int:
    """Open or create a regular file of a directory, and return its fd.

    Raises OSError if the path is a link or not a regular file, if the file has further names, or if it belongs neither
    to this user nor to the owner of the directory.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refusal("expected a regular file, got a link", path) from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _refusal("expected a regular file, got another type", path)
        if status.st_nlink > 1:
            raise _refusal(f"expected a file without other hard links, got one with {status.st_nlink} links", path)
        if status.st_uid not in (os.geteuid(), path.parent.stat().st_uid):
            raise _refusal(
                f"expected a file of uid {os.geteuid()} or of the directory's owner, got one of uid {status.st_uid}",
                path,
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_own(path: Path, most_bytes: int | None = None) -> bytes:
    """Return the content of a file, at most `most_bytes` of it. Raises OSError, as `open_own` does."""
    with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
        return file.read(-1 if most_bytes is None else most_bytes)


def create_own(path: Path, flags: int) -> int:
    """Create an empty file in place of the one of that name, if there is one, and return its fd. Raises OSError."""
    path.unlink(missing_ok=True)
    return open_own(path, flags | os.O_CREAT | os.O_EXCL)


def _refusal(reason: str, path: Path) -> OSError:
    return PermissionError(errno.EPERM, f"{path.name}: {reason}", str(path))

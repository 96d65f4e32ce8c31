"""Files with a secret in them: tokens, keys. As ssh does with its keys, one of our own that others can reach is
refused; one that belongs to somebody else (root, a container's runtime) is as whoever put it there wanted it."""

import os
import stat
from pathlib import Path

from dataplane.protocol.settings import SettingsError

MAX_BYTES = 65_536
_OTHERS = 0o077


class OpenToOthers(SettingsError):
    """Others than the owner of the file can read it, or change it."""


def read_secret(path: Path, most_bytes: int = MAX_BYTES) -> bytes:
    """What is in the file, as far as so many bytes. Raises OSError, OpenToOthers."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and mode & _OTHERS:
            raise OpenToOthers(
                f"{path}: expected mode 0600, got {mode:04o}: others can reach the secret in it; 'chmod 600 {path}' "
                "mends it, and a new secret is needed if others were on this machine"
            )
        return file.read(most_bytes)

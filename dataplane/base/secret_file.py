"""Files that contain secrets: tokens, keys. As in ssh, a file that this user owns is refused if others can access it.
The mode of a file with another owner (root, a container runtime) is that owner's choice and is not checked."""

import os
import stat
from pathlib import Path

from dataplane.base.settings import SettingsError

MAX_BYTES = 65_536
_OTHERS = 0o077


class SecretFileExposed(SettingsError):
    """Users other than the owner can read or change the file."""


def read_secret(path: Path, most_bytes: int = MAX_BYTES) -> bytes:
    """Return the first `most_bytes` bytes of the file. Raises OSError, SecretFileExposed."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and mode & _OTHERS:
            raise SecretFileExposed(
                f"{path}: expected mode 0600, got {mode:04o}: others can reach the secret in it; 'chmod 600 {path}' "
                "mends it, and a new secret is needed if others were on this machine"
            )
        return file.read(most_bytes)

"""Checks of the state directory. A user who may write to it could replace its sockets and files.

A directory that others may only read or enter is left as it is: engines of other users may need it to reach the engine
socket, and each other file and socket in it is of its owner alone.
"""

import os
import stat
from pathlib import Path

from dataplane.base.settings import SettingsError


def check_state_folder(path: Path) -> None:
    """Refuse a folder of this user that others may write to. The mode of a folder with another owner is that
    owner's choice and is not checked. Raises SettingsError."""
    try:
        status = path.stat()
    except OSError:
        return  # it is created with mode 700, or the error is reported when it is used
    if status.st_uid == os.geteuid() and status.st_mode & stat.S_IWOTH:
        mode = stat.S_IMODE(status.st_mode)
        raise SettingsError(
            f"state_dir: {path} has mode {mode:o}, expected 700: other users may write to it; 'chmod 700 {path}' "
            "mends it, or name a folder below it, which is created"
        )


def unusable(path: Path, error: OSError) -> OSError:
    """Return the error for a state directory that cannot be created, or that no file can be created in."""
    is_file = isinstance(error, (FileExistsError, NotADirectoryError))
    reason = "it is a file, or below one" if is_file else error.strerror
    return OSError(f"state_dir: expected a directory that this user can write to, got {path}: {reason}")

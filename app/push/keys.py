"""The manager's own CURVE key pair. Nodes accept connections only from its holder, and join the manager that holds it.

A key is rotated in two steps, so that no node is lost on the way. First, the next key is created beside the current one
and announced to every node that reports its address. When all nodes accept it, it replaces the current key, and the
manager is restarted.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zmq

from dataplane.base.secret_file import SecretFileExposed, read_secret
from dataplane.base.settings import SettingsError

KEY_FILE = "manager.key"
NEXT = ".next"
OLD = ".old"
_MAX_BYTES = 256


@dataclass(frozen=True, slots=True)
class ManagerKeyPair:
    """Both keys, encoded in Z85."""

    public: str
    secret: bytes = field(repr=False)
    is_new: bool = field(default=False, compare=False)
    """Whether the key file was missing, and has been created."""

    def secure(self, socket: zmq.Socket[Any], server_key: str) -> None:
        """Configure a socket that will connect only to the holder of `server_key`."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 4000)


def key_path(state_dir: Path, configured: str) -> Path:
    """Return the key file named in the settings, or else the one in the state directory."""
    return Path(configured).expanduser() if configured else state_dir / KEY_FILE


def key_pair(state_dir: Path, configured: str = "") -> ManagerKeyPair:
    """Return the key pair in the key file. Create the file in the state directory if missing. Raise SettingsError."""
    path = key_path(state_dir, configured)
    try:
        if not configured and not path.exists():
            return replace(_make(path), is_new=True)
    except OSError as error:
        raise SettingsError(f"app.curve_key_file: {path} cannot be read or created: {error.strerror}") from None
    return _read(path)


def check_key(state_dir: Path, configured: str) -> None:
    """Check the key file if there is one. Raise SettingsError."""
    path = key_path(state_dir, configured)
    if configured or os.path.exists(path):
        _read(path)


def next_path(path: Path) -> Path:
    """Return the path of the key that will replace the one in a file."""
    return path.with_name(path.name + NEXT)


def next_key(path: Path, present: str) -> str:
    """Return the public key that will replace the present one; "" if no change is planned.

    It is in the file beside the key file, or after the switch in the key file itself, for a process that was not
    restarted yet. Raises SettingsError.
    """
    for candidate in (next_path(path), path):
        if candidate.exists() and (public := _read(candidate).public) != present:
            return public
    return ""


def make_next(path: Path) -> str:
    """Create the key that will replace the one in a file. Return its public key. Raise FileExistsError, OSError."""
    path = next_path(path)
    if path.exists():
        raise FileExistsError(path)
    return _make(path).public


def switch(path: Path) -> Path:
    """Replace the present key by the next one. Return the path under which the old key is kept. Raise OSError."""
    old = path.with_name(path.name + OLD)
    old.unlink(missing_ok=True)
    os.link(path, old)  # a key file exists at every moment
    next_path(path).replace(path)
    return old


def _read(path: Path) -> ManagerKeyPair:
    """Read a key file. Raise SettingsError, also if other users can access the file."""
    try:
        secret = read_secret(path, _MAX_BYTES).strip()
    except OSError as error:
        raise SettingsError(f"app.curve_key_file: {path} cannot be read: {error.strerror}") from None
    except SecretFileExposed as error:
        raise SettingsError(f"app.curve_key_file: {error}: 'larder manager-key next' creates one") from None
    try:
        return ManagerKeyPair(zmq.curve_public(secret).decode(), secret)
    except (ValueError, zmq.ZMQError):
        raise SettingsError(f"app.curve_key_file: {path}: expected a CURVE secret key, 40 characters in Z85") from None


def _make(path: Path) -> ManagerKeyPair:
    public, secret = zmq.curve_keypair()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(secret + b"\n")
        file.flush()
        os.fsync(fd)
    temporary.replace(path)
    return ManagerKeyPair(public.decode(), secret)

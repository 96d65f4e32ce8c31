"""The management plane's own CURVE key pair: nodes let in connections that prove it, and join whoever holds it.

A key is changed in two steps, so that no node is lost on the way: the next one is made beside the present one and told
to every node that says where it is; when all let it in, it takes the present one's place, and the management plane is
started again.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from dataplane.protocol.secret_file import OpenToOthers, read_secret
from dataplane.protocol.settings import SettingsError

KEY_FILE = "manager.key"
NEXT = ".next"
OLD = ".old"
_MAX_BYTES = 256


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Both keys in Z85."""

    public: str
    secret: bytes = field(repr=False)

    def secure(self, socket: zmq.Socket[Any], server_key: str) -> None:
        """Make a socket that will connect to `server_key`, and to nobody else."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 4000)


def key_path(state_dir: Path, given: str = "") -> Path:
    """The file that the settings name, else that of the state directory."""
    return Path(given).expanduser() if given else state_dir / KEY_FILE


def key_pair(state_dir: Path, given: str = "") -> KeyPair:
    """What is in the key's file; that of the state directory is made at the first call. Raises SettingsError."""
    path = key_path(state_dir, given)
    try:
        if not given and not path.exists():
            return _make(path)
    except OSError as error:
        raise SettingsError(f"app.curve_key_file: {path} cannot be read or made: {error.strerror}") from None
    return _read(path)


def next_path(path: Path) -> Path:
    """Where the key lies that will take the place of that in a file."""
    return path.with_name(path.name + NEXT)


def next_key(path: Path, present: str) -> str:
    """The public key that will take the place of the present one, "" when none is planned: what lies beside its file,
    or in it since the switch, for a process that was not started again yet. Raises SettingsError."""
    for each in (next_path(path), path):
        if each.exists() and (public := _read(each).public) != present:
            return public
    return ""


def make_next(path: Path) -> str:
    """Plan a change of the key in a file; the public key that will come. Raises FileExistsError, OSError."""
    path = next_path(path)
    if path.exists():
        raise FileExistsError(path)
    return _make(path).public


def switch(path: Path) -> Path:
    """The next key takes the place of the present one, which is put aside; where. Raises OSError."""
    old = path.with_name(path.name + OLD)
    old.unlink(missing_ok=True)
    os.link(path, old)  # at no moment is there no key
    next_path(path).replace(path)
    return old


def _read(path: Path) -> KeyPair:
    """Raises SettingsError, also for a file that others can reach."""
    try:
        secret = read_secret(path, _MAX_BYTES).strip()
    except OSError as error:
        raise SettingsError(f"app.curve_key_file: {path} cannot be read: {error.strerror}") from None
    except OpenToOthers as error:
        raise SettingsError(f"app.curve_key_file: {error}: 'larder manager-key next' plans one") from None
    try:
        return KeyPair(zmq.curve_public(secret).decode(), secret)
    except (ValueError, zmq.ZMQError):
        raise SettingsError(
            f"app.curve_key_file: {path}: expected a CURVE secret key, 40 characters in Z85"
        ) from None


def _make(path: Path) -> KeyPair:
    public, secret = zmq.curve_keypair()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    making = path.with_suffix(".new")
    making.unlink(missing_ok=True)
    fd = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(secret + b"\n")
        file.flush()
        os.fsync(fd)
    making.replace(path)
    return KeyPair(public.decode(), secret)

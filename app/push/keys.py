"""The management plane's own CURVE key pair: nodes let in connections that prove it, and join whoever holds it."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import zmq

from dataplane.protocol.settings import SettingsError

KEY_FILE = "manager.key"
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


def key_pair(state_dir: Path, given: str = "") -> KeyPair:
    """From the file that the settings name, else from the state directory, where it is made at the first call.

    Raises SettingsError.
    """
    path = Path(given).expanduser() if given else state_dir / KEY_FILE
    try:
        if not given and not path.exists():
            return _make(path)
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(_MAX_BYTES).strip()
    except OSError as error:
        raise SettingsError(f"app.curve_key_file: {path} cannot be read or made: {error.strerror}") from None
    if mode & 0o077 and not given:
        raise SettingsError(
            f"{path}: expected mode 0600, got {mode:04o}: others can read the secret key of this management plane; "
            "remove it (all nodes must then join again), or chmod 600 it if nobody else was on this machine"
        )
    if mode & 0o007:
        structlog.get_logger().warning("keys.readable_by_all", file=str(path), mode=f"{mode:04o}")
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

"""The state directory: one data plane at a time, the node's name, and the snapshots that are in force.

A snapshot that was acknowledged is written down in the background (a temporary file, fsync, rename), so that a data
plane that starts again is armed at once. What cannot be read is set aside under another name and told.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec
import structlog

from dataplane.protocol.codec import encode
from dataplane.protocol.control import Snapshot, SnapshotType

LOCK_POLL_S = 0.005
MAX_NAME_CHARACTERS = 128
_MAGIC = b"LARDERSN1\n"

log = structlog.stdlib.get_logger()


class StateInUse(Exception):
    """Another data plane uses this state directory."""


class Remembered(msgspec.Struct):
    """A snapshot in force, with what it needs to be applied again."""

    snapshot: Snapshot
    bodies: dict[str, bytes] = {}
    """Pin bodies by digest."""
    ends: dict[str, float] = {}
    """Ends of pins that hits have moved, by name; Unix seconds."""


_decoder = msgspec.msgpack.Decoder(Remembered)


class StateDirectory:
    """One process's hold of the directory, from `lock` to `close`."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path
        self._lock_fd = -1
        self._changed = threading.Condition()
        self._waiting: dict[SnapshotType, Remembered] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None

    def lock(self, wait_s: float = 0.0) -> None:
        """Be the only data plane here; a predecessor that is ending gets `wait_s`. Raises StateInUse."""
        fd = os.open(self._path / "dataplane.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(fd)
                    raise StateInUse(f"another data plane uses {self._path}") from None
                time.sleep(LOCK_POLL_S)
            else:
                self._lock_fd = fd
                return

    def node_name(self) -> str:
        """This node's name, made at the first start and kept; what is no name is set aside for a new one."""
        path = self._path / "node"
        try:
            name = path.read_bytes().decode().strip()
        except FileNotFoundError:
            name = ""
        except (OSError, UnicodeDecodeError) as error:
            name = ""
            _put_aside(path, path.with_suffix(".corrupt"), f"it holds no name: {error}")
        if name and (len(name) > MAX_NAME_CHARACTERS or not name.isprintable()):
            _put_aside(path, path.with_suffix(".corrupt"), f"it holds no name, but {len(name)} characters")
            name = ""
        return name or self._new_name(path)

    def _new_name(self, path: Path) -> str:
        name = f"{socket.gethostname()[:48]}-{secrets.token_hex(2)}"
        try:
            self._replace(path, name.encode() + b"\n")
        except OSError as error:
            log.warning("node.name_not_kept", node=name, reason=error.strerror)
        return name

    # ---- draining

    def draining(self) -> bool:
        """Whether the node was draining when it was last told."""
        return (self._path / "draining").exists()

    def keep_draining(self, *, on: bool) -> None:
        """Remember it over a restart; a disk that does not take it is told of, and the node drains all the same."""
        path = self._path / "draining"
        try:
            if on:
                self._replace(path, b"")
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("draining.not_kept", on=on, reason=error.strerror)

    # ---- snapshots

    def load(self, kind: SnapshotType) -> Remembered | None:
        """The snapshot of a type that was in force last; None when there is none that can be read."""
        path = self._file(kind)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("snapshot.unreadable", file=str(path), reason=error.strerror)
            return None
        magic, digest, body = (
            data[: len(_MAGIC)],
            data[len(_MAGIC) : len(_MAGIC) + 32],
            data[len(_MAGIC) + 32 :],
        )
        try:
            if magic != _MAGIC or sha256(body).digest() != digest:
                raise ValueError("its contents do not match their digest")
            remembered = _decoder.decode(body)
            if remembered.snapshot.type != kind:
                raise ValueError(f"it is a snapshot of {remembered.snapshot.type}")
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            self.set_aside(kind, str(error))
            return None
        return remembered

    def set_aside(self, kind: SnapshotType, reason: str) -> None:
        """Keep a file that cannot be used under another name: somebody may want to look at it."""
        path = self._file(kind)
        _put_aside(path, path.with_suffix(".corrupt"), reason)

    def remember(self, kind: SnapshotType, remembered: Remembered) -> None:
        """Write a snapshot down soon, in place of the one before; never waits for the disk."""
        with self._changed:
            self._waiting[kind] = remembered
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="state", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _file(self, kind: SnapshotType) -> Path:
        return self._path / f"{kind}.snapshot"

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if not self._waiting:
                    return
                kind = next(iter(self._waiting))
                remembered = self._waiting.pop(kind)
            try:
                self._write(kind, encode(remembered))
            except OSError as error:
                log.warning("snapshot.not_kept", type=kind, reason=error.strerror)

    def _write(self, kind: SnapshotType, body: bytes) -> None:
        self._replace(self._file(kind), _MAGIC + sha256(body).digest() + body)

    def _replace(self, path: Path, data: bytes) -> None:
        """A file has these contents or those before, never half of them. Raises OSError."""
        making = path.with_suffix(".new")
        try:
            fd = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            making.replace(path)
        except OSError:
            with suppress(OSError):  # what a full disk took of it
                making.unlink()
            raise
        folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Write what waits, and let the directory go."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=2)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def _put_aside(path: Path, aside: Path, reason: str) -> None:
    """Give a file another name, and tell; where that cannot be, it stays."""
    kept_as = path
    with suppress(OSError):
        path.replace(aside)
        kept_as = aside
    log.warning("snapshot.set_aside", file=str(path), kept_as=str(kept_as), reason=reason)

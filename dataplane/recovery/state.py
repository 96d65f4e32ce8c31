"""The state directory: its lock, the node's name, and the snapshots in force.

Acknowledged snapshots are saved in the background (a temporary file, fsync, rename), so that a restarted data plane has
its settings at once. A file that cannot be read is renamed, and a warning is logged.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from dataplane.base.durable_files import checked_body, replace_checked, replace_file
from dataplane.base.state_folder import check_state_folder, unusable
from dataplane.base.visible import is_printable
from dataplane.protocol.codec import encode
from dataplane.protocol.control.snapshots import Snapshot, SnapshotType
from dataplane.recovery.record import CacheRecord, save

LOCK_POLL_S = 0.005
MAX_NAME_CHARACTERS = 128
_MAGIC = b"LARDERSN1\n"

log = structlog.stdlib.get_logger()


class StateInUse(Exception):
    """Another data plane uses this state directory."""


class SavedSnapshot(msgspec.Struct):
    """A snapshot in force, with the data needed to apply it again."""

    snapshot: Snapshot
    bodies: dict[str, bytes] = {}
    """Pin bodies by digest."""
    ends: dict[str, float] = {}
    """Expiry of pins that hits have extended, by name; Unix seconds."""


_decoder = msgspec.msgpack.Decoder(SavedSnapshot)


class StateDirectory:
    """Exclusive use of the directory, from `lock` to `close`."""

    def __init__(self, path: Path) -> None:
        """Create the directory if it does not exist. Raises SettingsError if other users may write to it, or
        OSError."""
        check_state_folder(path)
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise unusable(path, error) from None
        self._path = path
        self._lock_fd = -1
        self._changed = threading.Condition()
        self._waiting: dict[SnapshotType, SavedSnapshot] = {}
        self._cache: CacheRecord | None = None
        """Record of the cache's contents that is not written yet."""
        self._stopping = False
        self._thread: threading.Thread | None = None

    def lock(self, wait_s: float = 0.0) -> None:
        """Lock the directory. Waits up to `wait_s` seconds for a predecessor that is ending. Raises StateInUse, and
        OSError if the lock cannot be created."""
        try:
            fd = os.open(self._path / "dataplane.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(self._path, error) from None
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
                self._thread = threading.Thread(target=self._run, name="state", daemon=True)
                self._thread.start()
                return

    @property
    def lock_fd(self) -> int:
        """The descriptor that locks the directory."""
        return self._lock_fd

    def node_name(self) -> str:
        """Return this node's name, which is created at the first start and kept. An invalid name is set aside and
        replaced."""
        path = self._path / "node"
        try:
            name = path.read_bytes().decode().strip()
        except FileNotFoundError:
            name = ""
        except (OSError, UnicodeDecodeError) as error:
            name = ""
            _put_aside(path, path.with_suffix(".corrupt"), f"its name cannot be read: {error}")
        if name and (len(name) > MAX_NAME_CHARACTERS or not is_printable(name)):
            _put_aside(path, path.with_suffix(".corrupt"), f"its {len(name)} characters are not a valid name")
            name = ""
        return name or self._new_name(path)

    def _new_name(self, path: Path) -> str:
        name = f"{socket.gethostname()[:48]}-{secrets.token_hex(2)}"
        try:
            replace_file(path, name.encode() + b"\n")
        except OSError as error:
            log.warning("node.name_not_saved", node=name, reason=error.strerror)
        return name

    # ---- draining

    def draining(self) -> bool:
        """Return whether the node was draining when that was last saved."""
        return (self._path / "draining").exists()

    def keep_draining(self, *, on: bool) -> None:
        """Save whether the node drains. A failed write is logged, and the node drains anyway."""
        path = self._path / "draining"
        try:
            if on:
                replace_file(path, b"")
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("draining.not_saved", on=on, reason=error.strerror)

    # ---- snapshots

    def load(self, kind: SnapshotType) -> SavedSnapshot | None:
        """Return the last snapshot of a type that was in force; None if none can be read."""
        path = self._file(kind)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("snapshot.unreadable", file=str(path), reason=error.strerror)
            return None
        try:
            saved = _decoder.decode(checked_body(data, _MAGIC))
            if saved.snapshot.type != kind:
                raise ValueError(f"it is a snapshot of {saved.snapshot.type}")
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            self.set_aside(kind, str(error))
            return None
        return saved

    def set_aside(self, kind: SnapshotType, reason: str) -> None:
        """Rename a file that cannot be used, so that an operator can inspect it."""
        path = self._file(kind)
        _put_aside(path, path.with_suffix(".corrupt"), reason)

    def save_snapshot(self, kind: SnapshotType, saved: SavedSnapshot) -> None:
        """Save a snapshot in the background, replacing the previous one of its type; never waits for the disk."""
        with self._changed:
            self._waiting[kind] = saved
            self._changed.notify()

    @property
    def path(self) -> Path:
        return self._path

    def record(self, cache: CacheRecord) -> None:
        """Write the record of the cache in the background."""
        with self._changed:
            self._cache = cache
            self._changed.notify()

    def _file(self, kind: SnapshotType) -> Path:
        return self._path / f"{kind}.snapshot"

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._cache or self._stopping)
                cache, self._cache = self._cache, None
                if cache is None and not self._waiting:
                    return
                kind = next(iter(self._waiting), None)
                saved = None if kind is None else self._waiting.pop(kind)
            if cache is not None:
                with suppress(OSError):  # on a full disk, a cold start reports less
                    save(self._path, cache)
            if kind is None or saved is None:
                continue
            body = encode(saved)
            try:
                replace_checked(self._file(kind), _MAGIC, body)
            except OSError as error:
                log.warning("snapshot.not_saved", type=kind, reason=error.strerror)

    def close(self) -> None:
        """Write pending data and unlock the directory."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=2)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def _put_aside(path: Path, aside: Path, reason: str) -> None:
    """Rename a file and log that; if renaming fails, the file stays."""
    set_aside_as = path
    with suppress(OSError):
        path.replace(aside)
        set_aside_as = aside
    log.warning("snapshot.set_aside", file=str(path), kept_as=str(set_aside_as), reason=reason)

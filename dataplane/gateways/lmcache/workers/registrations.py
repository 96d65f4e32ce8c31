"""Registrations of workers on disk, one file each, so that a restarted data plane knows its clients.

Clients register only once, and not again for a data plane that was gone for a second. Each file is written before its
registration is answered. Unreadable files are renamed and logged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from dataplane.base.durable_files import checked_body, read_bounded, replace_checked
from dataplane.gateways.lmcache.wire.messages import EngineContext, Group, Hints
from dataplane.gateways.lmcache.zmtp.processes import Owner
from dataplane.protocol.codec import encode

_MAGIC = b"LARDERLM1\n"
_SUFFIX = ".registration"
MAX_FILE_BYTES = 64 << 20

log = structlog.stdlib.get_logger()


class DeviceContext(msgspec.Struct):
    """Registration of a worker whose cache this node copies."""

    wrappers: list[bytes]
    model_name: str
    world_size: int
    engine_type: str
    hints: Hints | None
    groups: list[Group]


class RegisteredWorker(msgspec.Struct):
    """One stored registration."""

    instance: int
    pid: int
    started: int
    client: int
    """Client number of its engine in the core."""
    memory: int
    """Identity of the core's memory to which the client number belongs."""
    named: int = 0
    """Identity of the named segment that an engine-driven worker maps."""
    engine: EngineContext | None = None
    device: DeviceContext | None = None

    @property
    def owner(self) -> Owner:
        return self.pid, self.started

    @property
    def model_name(self) -> str:
        return (self.engine or self._device).model_name

    @property
    def world_size(self) -> int:
        return (self.engine or self._device).world_size

    @property
    def _device(self) -> DeviceContext:
        assert self.device is not None
        return self.device


_decoder = msgspec.msgpack.Decoder(RegisteredWorker)


class Registrations:
    """The folder of stored registrations."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self) -> Iterator[RegisteredWorker]:
        """Yield the stored registrations. Rename files that cannot be read."""
        try:
            paths = sorted(self._folder.glob(f"*{_SUFFIX}"))
        except OSError as error:
            log.warning("lmcache.registrations_unreadable", folder=str(self._folder), reason=error.strerror)
            return
        for path in paths:
            try:
                yield _read(path)
            except (OSError, msgspec.DecodeError, ValueError, RecursionError) as error:
                aside = path.with_suffix(".corrupt")
                with suppress(OSError):
                    path.replace(aside)
                log.warning("lmcache.registration_set_aside", file=str(path), reason=str(error))

    def keep(self, registered: RegisteredWorker) -> None:
        """Store a registration in place of an earlier one. Log a warning if it cannot be written."""
        path = self._path(registered)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_checked(path, _MAGIC, encode(registered))
        except OSError as error:
            log.warning("lmcache.registration_not_saved", instance=registered.instance, reason=error.strerror)

    def drop(self, registered: RegisteredWorker) -> None:
        """Delete the registration of a worker that unregistered or is gone."""
        with suppress(OSError):
            self._path(registered).unlink(missing_ok=True)

    def _path(self, registered: RegisteredWorker) -> Path:
        return self._folder / f"{registered.instance:016x}-{registered.pid}-{registered.started}{_SUFFIX}"


def _read(path: Path) -> RegisteredWorker:
    registered = _decoder.decode(checked_body(read_bounded(path, MAX_FILE_BYTES), _MAGIC))
    if (registered.engine is None) == (registered.device is None):
        raise ValueError("expected exactly one of engine and device")
    return registered

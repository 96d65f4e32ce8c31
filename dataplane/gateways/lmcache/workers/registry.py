"""The registry of workers: who is registered, by number and process, and which layouts their models have.

Two processes may use the same number, so a worker is identified by its number and its process.

The registry stores registrations, one file each, so that a restarted data plane knows its clients: they register only
once, and not again for a data plane that was gone for a second. Each file is written before its registration is
answered. Unreadable files are renamed and logged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType

import msgspec
import structlog

from dataplane.base.durable_files import checked_body, read_bounded, replace_checked
from dataplane.gateways.lmcache.workers.chunk_layouts import ChunkLayout
from dataplane.gateways.lmcache.workers.registrations import RegisteredWorker
from dataplane.gateways.lmcache.workers.transfers import Transfers
from dataplane.gateways.lmcache.zmtp.connections import ZmtpPeer
from dataplane.gateways.lmcache.zmtp.processes import Owner
from dataplane.protocol.codec import encode

_MAGIC = b"LARDERLM1\n"
_SUFFIX = ".registration"
MAX_FILE_BYTES = 64 << 20
_decoder = msgspec.msgpack.Decoder(RegisteredWorker)

log = structlog.stdlib.get_logger()


class WorkerState(IntEnum):
    """What is known of a worker. `Instances` explains the states."""

    ATTACHED = 0
    AWAY = 1
    SILENT = 2
    ENDED = 3
    """It is over, but its process may still access memory."""
    GONE = 4


NEXT = MappingProxyType(
    {
        WorkerState.ATTACHED: frozenset({WorkerState.AWAY, WorkerState.SILENT, WorkerState.ENDED, WorkerState.GONE}),
        WorkerState.AWAY: frozenset({WorkerState.ATTACHED, WorkerState.SILENT, WorkerState.ENDED, WorkerState.GONE}),
        WorkerState.SILENT: frozenset({WorkerState.ATTACHED, WorkerState.ENDED, WorkerState.GONE}),
        WorkerState.ENDED: frozenset({WorkerState.GONE}),
        WorkerState.GONE: frozenset[WorkerState](),
    }
)
"""The states that may follow each state."""


@dataclass(eq=False, slots=True)
class Instance:
    """One registered worker."""

    registered: RegisteredWorker
    chunk_layout: ChunkLayout
    client: int
    """Client number of its engine in the core; 0 while it has none."""
    spaces: list[int]
    """The core's space number for each rank."""
    seen: float
    transfers: Transfers
    connection: bytes | None = None
    """Identity of the connection that it used last; None when that is gone."""
    pinged: bool = False
    state: WorkerState = WorkerState.AWAY
    reason: str = ""
    """Why it is not attached."""
    parent: int = 0
    """Parent of its process; 0 if unknown. It is the scheduler's process, or the worker is in that process."""
    copying: int = 0
    """Number of copies that run for it on another thread."""

    @property
    def attached(self) -> bool:
        return self.state is WorkerState.ATTACHED

    @property
    def counts(self) -> bool:
        """Whether a look-up of its model hits only blocks that are in its spaces too."""
        return self.state <= WorkerState.AWAY

    @property
    def over(self) -> bool:
        return self.state >= WorkerState.ENDED

    @property
    def key(self) -> tuple[int, Owner]:
        return self.registered.instance, self.registered.owner


class Registry:
    """All registered workers."""

    def __init__(self, folder: Path) -> None:
        """`folder` stores registrations."""
        self._folder = folder
        self._by_number: dict[int, dict[Owner, Instance]] = {}
        self._layouts: dict[tuple[str, int, int], list[list[int]]] = {}
        """Cached results of `layouts`, valid until the workers change."""

    def __iter__(self) -> Iterator[Instance]:
        for owners in list(self._by_number.values()):
            yield from list(owners.values())

    def __len__(self) -> int:
        return sum(map(len, self._by_number.values()))

    def find(self, number: int, connection: ZmtpPeer) -> Instance | None:
        """Return the worker of a number that a connection can speak for, or None."""
        owners = self._by_number.get(number)
        if not owners:
            return None
        exact = owners.get(connection.owner)
        if exact is not None:
            return exact
        # A peer without a pid may be any process; a peer with a pid matches only its own.
        unknown = [instance for owner, instance in owners.items() if not (owner[0] and connection.owner[0])]
        return max(unknown, key=lambda instance: instance.seen, default=None)

    # ---- what the next data plane needs

    def saved(self) -> Iterator[RegisteredWorker]:
        """Yield the registrations that the previous data plane stored. Rename files that cannot be read."""
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

    def save(self, registered: RegisteredWorker) -> None:
        """Store a registration in place of an earlier one. Log a warning if it cannot be written."""
        path = self._path(registered)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_checked(path, _MAGIC, encode(registered))
        except OSError as error:
            log.warning("lmcache.registration_not_saved", instance=registered.instance, reason=error.strerror)

    def discard(self, registered: RegisteredWorker) -> None:
        """Delete a stored registration."""
        with suppress(OSError):
            self._path(registered).unlink(missing_ok=True)

    def _path(self, registered: RegisteredWorker) -> Path:
        return self._folder / f"{registered.instance:016x}-{registered.pid}-{registered.started}{_SUFFIX}"

    # ---- workers that come and go

    def add(self, instance: Instance) -> None:
        """Add a worker, and save its registration."""
        self._by_number.setdefault(instance.registered.instance, {})[instance.registered.owner] = instance
        self.save(instance.registered)

    def to(self, instance: Instance, state: WorkerState, reason: str = "") -> None:
        """Change the state of a worker. Remove one that is over, and its saved registration. Raise ValueError if the
        state cannot follow: a defect."""
        if state not in NEXT[instance.state]:
            raise ValueError(f"worker {instance.registered.instance}: {instance.state.name} to {state.name}")
        instance.state, instance.reason = state, reason
        self._layouts.clear()
        number, owner = instance.key
        owners = self._by_number.get(number, {})
        if instance.over and owners.get(owner) is instance:
            del owners[owner]
            if not owners:
                del self._by_number[number]
            self.discard(instance.registered)

    def layouts(self, model: str, world_size: int, scheduler: int = 0) -> list[list[int]]:
        """Return, for each chunk layout of a model's workers, the space numbers by rank.

        The wire does not say which workers are a scheduler's. If some are in the process `scheduler` (a pid; 0 for
        none) or are its children, only these count; otherwise all do.
        """
        cached = self._layouts.get((model, world_size, scheduler))
        if cached is not None:
            return cached
        workers = [worker for worker in self if worker.counts and _serves(worker, model, world_size)]
        own_workers = [
            worker for worker in workers if scheduler and scheduler in (worker.registered.pid, worker.parent)
        ]
        spaces_by_layout: dict[str, list[int]] = {}
        for instance in sorted(own_workers or workers, key=lambda worker: not worker.attached):
            spaces_by_layout.setdefault(_name_of(instance.chunk_layout), instance.spaces)
        if spaces_by_layout:  # unregistered models are not cached, because peers choose the names
            self._layouts[model, world_size, scheduler] = list(spaces_by_layout.values())
        return list(spaces_by_layout.values())

    def log_other_layouts(self, instance: Instance) -> None:
        """Log that the workers of a model have another layout than the one that has registered."""
        registered, own_layout = instance.registered, _name_of(instance.chunk_layout)
        workers = [
            worker for worker in self if worker.counts and _serves(worker, registered.model_name, registered.world_size)
        ]
        other_layouts = {_name_of(worker.chunk_layout) for worker in workers} - {own_layout}
        if other_layouts:
            log.warning(
                "lmcache.layouts_differ",
                model=registered.model_name[:64],
                world_size=registered.world_size,
                instance=registered.instance,
                layout=own_layout,
                other=min(other_layouts),
                effect="no chunk is shared; a scheduler whose workers are not known by process hits what is in both",
            )


def _serves(instance: Instance, model: str, world_size: int) -> bool:
    return (instance.registered.model_name, instance.registered.world_size) == (model, world_size)


def _name_of(chunk_layout: ChunkLayout) -> str:
    return f"{chunk_layout.layout} {chunk_layout.dtype}"


def _read(path: Path) -> RegisteredWorker:
    registered = _decoder.decode(checked_body(read_bounded(path, MAX_FILE_BYTES), _MAGIC))
    if (registered.engine is None) == (registered.device is None):
        raise ValueError("expected exactly one of engine and device")
    return registered

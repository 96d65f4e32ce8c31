"""Registered workers: their identity, their liveness, and their engines in the core.

A worker's engine is attached while the worker sends requests. The worker is *away* once its connection has closed or it
was silent for too long. Its rights then end and the blocks that it was writing are quarantined, as for every lost
engine. Its registration stays, and its next request attaches it again: clients register only once, so a worker that was
merely slow must not be forgotten. The worker is *over* when it unregisters or its process is proven gone. Memory that
it may still access is released only with that proof.

Two processes may use the same number, so a worker is identified by its number and its process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from dataplane.copies.copying import CopyFailed
from dataplane.copies.devices import Devices
from dataplane.core.inprocess import InProcess
from dataplane.gateways.lmcache.failures import OperationFailed, Reason
from dataplane.gateways.lmcache.workers.chunk_layouts import ChunkLayout, chunk_layout_of
from dataplane.gateways.lmcache.workers.device_opens import DeviceOpens
from dataplane.gateways.lmcache.workers.registrations import RegisteredWorker, Registrations
from dataplane.gateways.lmcache.workers.transfers import LEASE_TTL_S, Transfers
from dataplane.gateways.lmcache.zmtp.connections import ZmtpPeer
from dataplane.gateways.lmcache.zmtp.processes import Owner, ProcessWatch
from dataplane.io.peers import parent_of
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.engine import VERSION, Attach, SpaceRequest
from dataplane.protocol.spaces import LMCACHE

MAX_INSTANCE = (1 << 64) - 1
MAX_INSTANCES = 4096
LOST_TTL_S = 300.0
"""Time after which a peer without a pid whose connection is gone counts as gone, because there can be no proof."""
WORKER = "LMCache worker"
MAX_REGISTRATION_REQUESTS = 64
"""Maximum number of workers per connection that are asked to register."""

log = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class Timeouts:
    """For how long workers may be silent, in seconds."""

    silent_s: float = 120.0
    """Limit for a worker that has pinged or whose connection has closed."""
    never_pinged_s: float = 3600.0


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
    attached: bool = True
    counts: bool = True
    """Whether a look-up of its model hits only blocks that are in its spaces too."""
    parent: int = 0
    """Parent of its process; 0 if unknown. It is the scheduler's process, or the worker is in that process."""
    over: bool = False
    copying: int = 0
    """Number of copies that run for it on another thread."""
    when_idle: list[Callable[[], None]] = field(default_factory=list)
    """Calls to make when its copies have ended."""

    @property
    def key(self) -> tuple[int, Owner]:
        return self.registered.instance, self.registered.owner


class Instances:
    """All registered workers."""

    def __init__(
        self,
        cache: InProcess,
        named: int,
        registrations: Registrations,
        watch: ProcessWatch,
        clock: Callable[[], float],
        timeouts: Timeouts,
        devices: Devices,
        openings: DeviceOpens,
    ) -> None:
        """Create an empty set of workers.

        `named` is the identity of the named segment.
        """
        self._cache = cache
        self._memory = cache.memory_identity
        self._named = named
        self._registrations = registrations
        self._watch = watch
        self._clock = clock
        self._timeouts = timeouts
        self._devices = devices
        self._openings = openings
        self._by_number: dict[int, dict[Owner, Instance]] = {}
        self._layouts: dict[tuple[str, int, int], list[list[int]]] = {}
        """Cached results of `layouts`, valid until the workers change."""
        self._registration_requests: dict[bytes, set[int]] = {}
        """Unknown workers that were asked to register, by connection."""
        self._leaving: dict[int, float] = {}
        """Time at which engines whose process cannot be watched were lost, by client number."""

    def __iter__(self) -> Iterator[Instance]:
        for owners in list(self._by_number.values()):
            yield from list(owners.values())

    def __len__(self) -> int:
        return sum(map(len, self._by_number.values()))

    # ---- registration

    def register(self, registered: RegisteredWorker, connection: ZmtpPeer, now: float) -> None:
        """Register a worker that copies by itself, or refresh its registration. Raise OperationFailed on failure."""
        self._check(registered, connection)
        before = self._find(registered.instance, connection)
        # Only engine-driven registrations are compared: the same description of device memory may name other memory.
        if before is not None and before.registered.engine == registered.engine:
            self._note_request(before, connection, now)
        else:
            self._enter(registered, chunk_layout_of(registered, self._devices), connection, now)

    def register_device(
        self, registered: RegisteredWorker, connection: ZmtpPeer, then: Callable[[OperationFailed | None], None]
    ) -> None:
        """Register a worker that lets this node copy. Raise OperationFailed on failure.

        `then` is called with None once the worker's memory is open, or with the failure.
        """
        self._check(registered, connection)
        chunk_layout = chunk_layout_of(registered, self._devices)
        copier = chunk_layout.copier
        assert copier is not None

        def opened(failed: CopyFailed | None) -> None:
            try:
                if failed is not None:
                    raise OperationFailed(Reason.UNSUPPORTED, str(failed))
                self._check(registered, connection)
                self._enter(registered, chunk_layout, connection, self._clock())
            except OperationFailed as error:
                self._openings.close(copier)
                then(error)
            else:
                then(None)

        if not self._openings.open(copier, opened, loose=True):
            raise OperationFailed(Reason.REFUSED, "too many copies are queued")

    def _check(self, registered: RegisteredWorker, connection: ZmtpPeer) -> None:
        if not 0 <= registered.instance <= MAX_INSTANCE:
            raise OperationFailed(
                Reason.BAD_ARGUMENTS, f"instance_id: expected 0 to 2**64 - 1, got {registered.instance}"
            )
        if not connection.open:
            raise OperationFailed(Reason.UNKNOWN_INSTANCE, "the connection of this worker is closed")

    def _enter(self, registered: RegisteredWorker, chunk_layout: ChunkLayout, connection: ZmtpPeer, now: float) -> None:
        """Add a worker and end its earlier registration. Raise OperationFailed on failure."""
        before = self._find(registered.instance, connection)
        if before is not None:
            self._end(before, "registered again", now)
        if len(self) >= MAX_INSTANCES:
            raise OperationFailed(Reason.REFUSED, f"at most {MAX_INSTANCES} workers are registered")
        registered.pid, registered.started = connection.owner
        registered.named = self._named
        instance = Instance(registered, chunk_layout, 0, [], now, Transfers(self._cache, chunk_layout))
        instance.connection = connection.identity
        self._attach(instance, now)
        self._by_number.setdefault(registered.instance, {})[registered.owner] = instance
        self._registrations.keep(registered)
        self._watch_process(instance)
        self._compare_layouts(instance)

    def restore(self, now: float) -> None:
        """Restore the workers that were registered with the previous data plane.

        Device memory is opened in the background; only copies of the same worker wait for it.
        """
        for registered in self._registrations.load():
            if registered.engine is not None and registered.named != self._named:
                # The worker maps an old segment that is no longer in use.
                log.warning(
                    "lmcache.registration_outdated",
                    instance=registered.instance,
                    pid=registered.pid,
                    effect="its next heartbeat makes it register again",
                )
                self._registrations.drop(registered)
                continue
            instance = Instance(registered, _NO_FORM, 0, [], now, Transfers(self._cache, _NO_FORM))
            try:
                instance.chunk_layout = instance.transfers.chunk_layout = chunk_layout_of(registered, self._devices)
                self._attach(instance, now)
            except OperationFailed as error:
                log.warning(
                    "lmcache.registration_not_restored",
                    instance=registered.instance,
                    pid=registered.pid,
                    reason=str(error),
                )
                self._openings.close(instance.chunk_layout.copier)
                self._registrations.drop(registered)
                continue
            self._by_number.setdefault(registered.instance, {})[registered.owner] = instance
            self._registrations.keep(registered)
            inherited = self._cache.held(instance.client)
            if instance.chunk_layout.copier is not None:  # its copies ended with the previous data plane
                self._cache.release(instance.client, inherited)
            elif inherited:
                instance.transfers.inherit(inherited, now + LEASE_TTL_S)
            self._watch_process(instance)
            self._open_again(instance)

    def _open_again(self, instance: Instance) -> None:
        """Open the device memory of a restored worker.

        A worker whose memory cannot be opened is forgotten; its next heartbeat makes it register again.
        """

        def opened(failed: CopyFailed | None) -> None:
            if failed is not None and not instance.over:
                log.warning(
                    "lmcache.registration_not_restored",
                    instance=instance.registered.instance,
                    pid=instance.registered.pid,
                    reason=str(failed),
                )
                self._end(instance, "its memory cannot be opened", self._clock())

        # If too many copies are queued, the first copy opens the memory.
        if instance.chunk_layout.copier is not None:
            self._openings.open(instance.chunk_layout.copier, opened, loose=False)

    def _attach(self, instance: Instance, now: float) -> None:
        """Attach the worker's engine, or resume its earlier one. Raise OperationFailed on failure."""
        registered = instance.registered
        before = self._cache.node.engines.get(registered.client) if registered.memory == self._memory else None
        message = Attach(
            0,
            VERSION,
            f"{LMCACHE}:{registered.instance}",
            [
                SpaceRequest(space)
                for space in instance.chunk_layout.spaces(registered.model_name, registered.world_size)
            ],
            engine=WORKER,
            resume=registered.client,
            resume_memory=registered.memory,
            # The worker may still be writing, so nothing is released before it says so. Copies by the previous data
            # plane, in contrast, ended with that process.
            writing=list(before.expired) if before is not None and instance.chunk_layout.copier is None else [],
        )
        try:
            engine, spaces = self._cache.node.attach(message, *_split(registered.owner, now), gateway=LMCACHE)
        except ProtocolError as error:
            raise OperationFailed(Reason.REFUSED, f"{error.field}: {error.message}") from None
        if before is not None and before.client != engine.client and not before.connected:
            self._lost(before.client, registered.owner, now)
        instance.parent = parent_of(registered.pid) if registered.pid else 0
        instance.client = registered.client = engine.client
        registered.memory = self._memory
        instance.spaces = spaces
        instance.transfers.client = engine.client
        instance.attached = instance.counts = True
        self._layouts.clear()

    # ---- requests of workers

    def of(self, number: int, connection: ZmtpPeer, now: float) -> Instance:
        """Return the worker that a request names, and note that it is alive. Raise OperationFailed on failure."""
        instance = self._find(number, connection)
        if instance is None:
            raise OperationFailed(Reason.UNKNOWN_INSTANCE, f"no worker {number} is registered by this process")
        self._note_request(instance, connection, now)
        if not instance.attached:
            raise OperationFailed(Reason.UNKNOWN_INSTANCE, f"worker {number} is lost")
        return instance

    def ping(self, number: int, connection: ZmtpPeer, now: float, *, usable: bool = True) -> bool:
        """Note that a worker is alive, and return the answer to its ping.

        The answer is False once per connection for a worker that is not registered, because clients register again when
        the server is healthy after it was not. The answer is always True while there is no `usable` memory to register
        for.
        """
        instance = self._find(number, connection)
        if instance is not None:
            instance.pinged = True
            self._note_request(instance, connection, now)
            return True
        requested = self._registration_requests.setdefault(connection.identity, set())
        if not usable or number in requested or len(requested) >= MAX_REGISTRATION_REQUESTS:
            return True
        requested.add(number)
        return False

    def _find(self, number: int, connection: ZmtpPeer) -> Instance | None:
        owners = self._by_number.get(number)
        if not owners:
            return None
        exact = owners.get(connection.owner)
        if exact is not None:
            return exact
        # A peer without a pid may be any process; a peer with a pid matches only its own.
        unknown = [each for owner, each in owners.items() if not (owner[0] and connection.owner[0])]
        return max(unknown, key=lambda each: each.seen, default=None)

    def _note_request(self, instance: Instance, connection: ZmtpPeer, now: float) -> None:
        if not connection.open:
            return
        instance.seen = now
        instance.connection = connection.identity
        if instance.attached and instance.counts:
            return
        instance.counts = True
        self._layouts.clear()
        if instance.attached:
            return
        engine = self._cache.node.engines.get(instance.client)
        if engine is not None and engine.connected:  # the engine's detach still waits for a copy to end
            instance.attached = True
            return
        self._attach(instance, now)
        self._registrations.keep(instance.registered)
        self._watch_process(instance)

    # ---- loss and end of workers

    def unregister(self, number: int, connection: ZmtpPeer, now: float) -> None:
        """End a worker's registration at its own request. Raise OperationFailed on failure."""
        instance = self._find(number, connection)
        if instance is None:
            raise OperationFailed(Reason.UNKNOWN_INSTANCE, f"no worker {number} is registered by this process")
        self._end(instance, "unregistered", now)

    def disconnected(self, identity: bytes, now: float) -> None:
        """Mark the workers that used a closed connection as away."""
        self._registration_requests.pop(identity, None)
        for instance in self:
            if instance.connection == identity:
                instance.connection = None
                instance.seen = now
                self._detach(instance, "connection closed", now)

    def reap(self, now: float) -> None:
        """Mark workers that were silent for too long as away or over. Called every second."""
        for instance in self:
            instance.transfers.expire(now)
            patient = instance.pinged or instance.connection is None
            timeouts = self._timeouts.silent_s if patient else self._timeouts.never_pinged_s
            if instance.counts and now - instance.seen > timeouts:
                instance.counts = False
                self._layouts.clear()
                log.warning(
                    "lmcache.worker_silent",
                    instance=instance.registered.instance,
                    pid=instance.registered.pid,
                    seconds=round(now - instance.seen, 1),
                )
                self._detach(instance, "silent", now)
            elif (
                not instance.counts
                and not instance.registered.pid
                and now - instance.seen > self._timeouts.never_pinged_s
            ):
                self._end(instance, "silent", now)
        for client, since in list(self._leaving.items()):
            if now - since > LOST_TTL_S:
                del self._leaving[client]
                self._cache.node.process_gone(client, now)

    def _detach(self, instance: Instance, reason: str, now: float) -> None:
        """End a worker's rights. Its open transfers stay until it sends a request again or is gone."""
        if not instance.attached:
            return
        instance.attached = False

        def detach() -> None:
            if not instance.attached:
                self._cache.node.detach(instance.client, reason, self._clock())
                if not instance.registered.pid:
                    self._leaving[instance.client] = self._clock()

        self._once_idle(instance, detach)

    def _end(self, instance: Instance, reason: str, now: float) -> None:
        """End a registration. Blocks that were being written are never published."""
        self._forget(instance)
        idle = not instance.transfers.open and not self._has_expired(instance.client)

        def leave() -> None:
            at = self._clock()
            self._openings.close(instance.chunk_layout.copier)
            if idle:
                self._watch.end(instance.client)
                self._cache.node.detach_cleanly(instance.client, at)
            else:  # the worker may still access its bytes
                self._cache.node.detach(instance.client, reason, at)
                self._lost(instance.client, instance.registered.owner, at)

        self._once_idle(instance, leave)

    def _has_expired(self, client: int) -> bool:
        engine = self._cache.node.engines.get(client)
        return engine is not None and bool(engine.expired or engine.reservations)

    def _gone(self, instance: Instance) -> None:
        """End a registration whose process is proven gone."""
        self._forget(instance)

        def gone() -> None:
            self._openings.close(instance.chunk_layout.copier)
            self._cache.node.process_gone(instance.client, self._clock())

        self._once_idle(instance, gone)

    def _forget(self, instance: Instance) -> None:
        instance.over, instance.attached, instance.counts = True, False, False
        self._layouts.clear()
        number, owner = instance.key
        owners = self._by_number.get(number, {})
        if owners.get(owner) is instance:
            del owners[owner]
            if not owners:
                del self._by_number[number]
            self._registrations.drop(instance.registered)

    def _lost(self, client: int, owner: Owner, now: float) -> None:
        """Release the bytes of an engine whose worker is over once its process is proven gone."""
        if not owner[0]:
            self._leaving[client] = now
        elif not self._watch.begin(client, owner, lambda: self._cache.node.process_gone(client, self._clock())):
            self._cache.node.process_gone(client, now)

    def _watch_process(self, instance: Instance) -> None:
        self._leaving.pop(instance.client, None)
        if not self._watch.begin(instance.client, instance.registered.owner, lambda: self._gone(instance)):
            self._gone(instance)

    # ---- running copies

    def _once_idle(self, instance: Instance, call: Callable[[], None]) -> None:
        """Call once no copy runs for the worker, because until then this process accesses its bytes."""
        if instance.copying:
            instance.when_idle.append(call)
        else:
            call()

    def copy_ended(self, instance: Instance) -> None:
        """Note the end of a copy."""
        instance.copying -= 1
        if not instance.copying:
            waiting, instance.when_idle = instance.when_idle, []
            for call in waiting:
                call()

    # ---- layouts of registered workers

    def layouts(self, model: str, world_size: int, scheduler: int = 0) -> list[list[int]]:
        """Return, for each chunk layout of a model's workers, the space numbers by rank.

        The wire does not say which workers are a scheduler's. If some are in the process `scheduler` (a pid; 0 for
        none) or are its children, only these count; otherwise all do.
        """
        known = self._layouts.get((model, world_size, scheduler))
        if known is not None:
            return known
        workers = [each for each in self if each.counts and _serves(each, model, world_size)]
        own = [each for each in workers if scheduler and scheduler in (each.registered.pid, each.parent)]
        found: dict[str, list[int]] = {}
        for instance in sorted(own or workers, key=lambda each: not each.attached):
            found.setdefault(_name_of(instance.chunk_layout), instance.spaces)
        if found:  # unregistered models are not cached, because peers choose the names
            self._layouts[model, world_size, scheduler] = list(found.values())
        return list(found.values())

    def _compare_layouts(self, instance: Instance) -> None:
        """Log that the workers of a model have another layout than the one that has registered."""
        registered, own = instance.registered, _name_of(instance.chunk_layout)
        workers = [each for each in self if each.counts and _serves(each, registered.model_name, registered.world_size)]
        others = {_name_of(each.chunk_layout) for each in workers} - {own}
        if others:
            log.warning(
                "lmcache.layouts_differ",
                model=registered.model_name[:64],
                world_size=registered.world_size,
                instance=registered.instance,
                layout=own,
                other=min(others),
                effect="no chunk is shared; a scheduler whose workers are not known by process hits what is in both",
            )

    def close(self) -> None:
        """Close the device memory of all workers. No copy may be running."""
        self._openings.end(instance.chunk_layout.copier for instance in self)


def _serves(instance: Instance, model: str, world_size: int) -> bool:
    return (instance.registered.model_name, instance.registered.world_size) == (model, world_size)


def _name_of(chunk_layout: ChunkLayout) -> str:
    return f"{chunk_layout.layout} {chunk_layout.dtype}"


_NO_FORM = ChunkLayout("", "", 0, [])


def _split(owner: Owner, now: float) -> tuple[int, float, int]:
    """Return (pid, now, start), in the order of the core's arguments."""
    return owner[0], now, owner[1]

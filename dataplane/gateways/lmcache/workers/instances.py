"""The liveness of registered workers, and their engines in the core.

A worker's engine is attached while the worker sends requests. The worker is *away* once its connection has closed, and
*silent* once it has sent nothing for too long: look-ups then do not count on it. Its rights end and the blocks that it
was writing are quarantined, as for every lost engine. Its registration stays, and its next request attaches it again:
clients register only once, so a worker that was merely slow must not be forgotten. The worker is over when it
unregisters (*ended*) or its process is proven *gone*. Memory that it may still access is released only with that proof.
The `registry` beside this module says who is registered, and has the table of the states.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import structlog

from dataplane.copies.copying import CopyFailed
from dataplane.copies.devices import Devices
from dataplane.core.inprocess import InProcess
from dataplane.gateways.lmcache.failures import OperationFailed, Reason
from dataplane.gateways.lmcache.workers.chunk_layouts import ChunkLayout, chunk_layout_of
from dataplane.gateways.lmcache.workers.copies import Copier
from dataplane.gateways.lmcache.workers.device_opens import DeviceOpens
from dataplane.gateways.lmcache.workers.registrations import RegisteredWorker
from dataplane.gateways.lmcache.workers.registry import Instance, Registry, WorkerState
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


class Instances:
    """Registers workers, and attaches and detaches their engines as they come and go."""

    def __init__(
        self,
        registry: Registry,
        cache: InProcess,
        named: int,
        watch: ProcessWatch,
        clock: Callable[[], float],
        timeouts: Timeouts,
        devices: Devices,
        openings: DeviceOpens,
    ) -> None:
        """`named` is the identity of the named segment."""
        self._registry = registry
        self._cache = cache
        self._memory = cache.memory_identity
        self._named = named
        self._watch = watch
        self._clock = clock
        self._timeouts = timeouts
        self._devices = devices
        self._openings = openings
        self._registration_requests: dict[bytes, set[int]] = {}
        """Unknown workers that were asked to register, by connection."""
        self._leaving: dict[int, float] = {}
        """Time at which engines whose process cannot be watched were lost, by client number."""

    # ---- registration

    def register(self, registered: RegisteredWorker, connection: ZmtpPeer, now: float) -> None:
        """Register a worker that copies by itself, or refresh its registration. Raise OperationFailed on failure."""
        self._check(registered, connection)
        before = self._registry.find(registered.instance, connection)
        # Only engine-driven registrations are compared: the same description of device memory may name other memory.
        if before is not None and before.registered.engine == registered.engine:
            self._note_request(before, connection, now)
        else:
            self._enter(registered, chunk_layout_of(registered, self._devices), connection, now)

    def register_device(
        self, registered: RegisteredWorker, connection: ZmtpPeer, finish: Callable[[Callable[[], None]], None]
    ) -> None:
        """Register a worker that lets this node copy. Raise OperationFailed on failure.

        `finish` is called once the worker's memory is open, or could not be opened. It gets the rest of the
        registration, which raises the failure.
        """
        self._check(registered, connection)
        chunk_layout = chunk_layout_of(registered, self._devices)
        copier = chunk_layout.copier
        assert copier is not None

        def opened(failed: CopyFailed | None) -> None:
            with ExitStack() as undo:
                undo.callback(self._openings.close, copier)
                if failed is not None:
                    raise OperationFailed(Reason.UNSUPPORTED, str(failed))
                self._check(registered, connection)
                self._enter(registered, chunk_layout, connection, self._clock())
                undo.pop_all()

        if not self._openings.open(copier, lambda failed: finish(partial(opened, failed))):
            self._openings.close(copier)
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
        before = self._registry.find(registered.instance, connection)
        if before is not None:
            self._leave(before, WorkerState.ENDED, "registered again")
        if len(self._registry) >= MAX_INSTANCES:
            raise OperationFailed(Reason.REFUSED, f"at most {MAX_INSTANCES} workers are registered")
        registered.pid, registered.started = connection.owner
        registered.named = self._named
        instance = self._attached(registered, chunk_layout, now)
        instance.connection = connection.identity
        try:
            self._registry.add(instance)
            self._watch_process(instance)
            self._registry.log_other_layouts(instance)
        except BaseException:
            if not instance.over:  # otherwise its process has exited
                self._leave(instance, WorkerState.ENDED, "its registration failed")
            raise

    def restore(self, now: float) -> None:
        """Restore the workers that were registered with the previous data plane.

        Device memory is opened in the background; only copies of the same worker wait for it.
        """
        for registered in self._registry.saved():
            if registered.engine is not None and registered.named != self._named:
                # The worker maps an old segment that is no longer in use.
                log.warning(
                    "lmcache.registration_outdated",
                    instance=registered.instance,
                    pid=registered.pid,
                    effect="its next heartbeat makes it register again",
                )
                self._registry.discard(registered)
                continue
            copier: Copier | None = None
            try:
                chunk_layout = chunk_layout_of(registered, self._devices)
                copier = chunk_layout.copier
                instance = self._attached(registered, chunk_layout, now)
            except OperationFailed as error:
                _log_not_restored(registered, str(error))
                self._openings.close(copier)
                self._registry.discard(registered)
                continue
            self._registry.add(instance)
            inherited = self._cache.held(instance.client)
            if copier is not None:  # its copies ended with the previous data plane
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
                _log_not_restored(instance.registered, str(failed))
                self._leave(instance, WorkerState.ENDED, "its memory cannot be opened")

        # If too many copies are queued, the first copy opens the memory.
        if instance.chunk_layout.copier is not None:
            self._openings.open(instance.chunk_layout.copier, opened)

    def _attached(self, registered: RegisteredWorker, chunk_layout: ChunkLayout, now: float) -> Instance:
        """Return a worker whose engine is attached. Raise OperationFailed on failure."""
        instance = Instance(registered, chunk_layout, 0, [], now, Transfers(self._cache, chunk_layout))
        self._attach(instance, now)
        return instance

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
            engine, spaces = self._cache.node.attach(message, registered.pid, now, registered.started, gateway=LMCACHE)
        except ProtocolError as error:
            raise OperationFailed(Reason.REFUSED, f"{error.field}: {error.message}") from None
        if before is not None and before.client != engine.client and not before.connected:
            self._lost(before.client, registered.owner, now)
        instance.parent = parent_of(registered.pid) if registered.pid else 0
        instance.client = registered.client = engine.client
        registered.memory = self._memory
        instance.spaces = spaces
        instance.transfers.client = engine.client
        self._registry.to(instance, WorkerState.ATTACHED)

    # ---- requests of workers

    def of(self, number: int, connection: ZmtpPeer, now: float) -> Instance:
        """Return the worker that a request names, and note that it is alive. Raise OperationFailed on failure."""
        instance = self._registry.find(number, connection)
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
        instance = self._registry.find(number, connection)
        if instance is not None:
            instance.pinged = True
            self._note_request(instance, connection, now)
            return True
        requested = self._registration_requests.setdefault(connection.identity, set())
        if not usable or number in requested or len(requested) >= MAX_REGISTRATION_REQUESTS:
            return True
        requested.add(number)
        return False

    def _note_request(self, instance: Instance, connection: ZmtpPeer, now: float) -> None:
        if not connection.open:
            return
        instance.seen = now
        instance.connection = connection.identity
        if instance.attached:
            return
        engine = self._cache.node.engines.get(instance.client)
        if engine is not None and engine.connected:  # the engine's detach still waits for a copy to end
            self._registry.to(instance, WorkerState.ATTACHED)
            return
        self._attach(instance, now)
        self._registry.save(instance.registered)
        self._watch_process(instance)

    # ---- loss and end of workers

    def unregister(self, number: int, connection: ZmtpPeer) -> None:
        """End a worker's registration at its own request. Raise OperationFailed on failure."""
        instance = self._registry.find(number, connection)
        if instance is None:
            raise OperationFailed(Reason.UNKNOWN_INSTANCE, f"no worker {number} is registered by this process")
        self._leave(instance, WorkerState.ENDED, "unregistered")

    def disconnected(self, identity: bytes, now: float) -> None:
        """Mark the workers that used a closed connection as away."""
        self._registration_requests.pop(identity, None)
        for instance in self._registry:
            if instance.connection == identity:
                instance.connection = None
                instance.seen = now
                if instance.attached:
                    self._leave(instance, WorkerState.AWAY, "connection closed")

    def reap(self, now: float) -> None:
        """Mark workers that were silent for too long as away or over. Called every second."""
        for instance in self._registry:
            instance.transfers.expire(now)
            patient = instance.pinged or instance.connection is None
            timeouts = self._timeouts.silent_s if patient else self._timeouts.never_pinged_s
            if instance.counts and now - instance.seen > timeouts:
                log.warning(
                    "lmcache.worker_silent",
                    instance=instance.registered.instance,
                    pid=instance.registered.pid,
                    seconds=round(now - instance.seen, 1),
                )
                self._leave(instance, WorkerState.SILENT, "silent")
            elif (
                not instance.counts
                and not instance.registered.pid
                and now - instance.seen > self._timeouts.never_pinged_s
            ):
                self._leave(instance, WorkerState.ENDED, "silent")
        for client, since in list(self._leaving.items()):
            if now - since > LOST_TTL_S:
                del self._leaving[client]
                self._cache.node.process_gone(client, now)

    def _leave(self, instance: Instance, state: WorkerState, reason: str) -> None:
        """Note that a worker is away, silent or over. Blocks that were being written are never published."""
        self._registry.to(instance, state, reason)
        self._settle(instance)

    def copy_ended(self, instance: Instance) -> None:
        """Note the end of a copy."""
        instance.copying -= 1
        self._settle(instance)

    def _settle(self, instance: Instance) -> None:
        """Do with a worker's engine what the worker's state says, once no copy runs for it, because until then this
        process accesses its bytes."""
        if instance.copying or instance.attached:
            return
        node, client, now = self._cache.node, instance.client, self._clock()
        engine = node.engines.get(client)
        may_access = instance.transfers.open or (engine is not None and (engine.expired or engine.reservations))
        if instance.over:
            self._openings.close(instance.chunk_layout.copier)
        if instance.state is WorkerState.GONE:
            node.process_gone(client, now)
        elif instance.over and not may_access:
            self._watch.end(client)
            node.detach_cleanly(client, now)
        elif instance.over or (engine is not None and engine.connected):
            node.detach(client, instance.reason, now)
            if instance.over or not instance.registered.pid:
                self._lost(client, instance.registered.owner, now)

    def _lost(self, client: int, owner: Owner, now: float) -> None:
        """Release the bytes of an engine whose worker is over once its process is proven gone."""
        if not owner[0]:
            self._leaving[client] = now
        elif not self._watch.begin(client, owner, lambda: self._cache.node.process_gone(client, self._clock())):
            self._cache.node.process_gone(client, now)

    def _watch_process(self, instance: Instance) -> None:
        self._leaving.pop(instance.client, None)
        gone = partial(self._leave, instance, WorkerState.GONE, "process exited")
        if not self._watch.begin(instance.client, instance.registered.owner, gone):
            gone()

    def close(self) -> None:
        """Close the device memory of all workers. No copy may be running."""
        self._openings.end()


def _log_not_restored(registered: RegisteredWorker, reason: str) -> None:
    log.warning("lmcache.registration_not_restored", instance=registered.instance, pid=registered.pid, reason=reason)

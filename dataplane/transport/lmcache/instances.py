"""Registered workers: who they are, whether they live, and their engines in the core.

A worker's engine is attached while the worker is heard of. It is *away* once its connection closed or it kept silent
for too long: then its rights end and what it was writing is quarantined, as with every engine that is lost; its
registration stays, and the next word of it attaches it again. Clients register once, so a worker that was merely slow
must not find itself forgotten. It is *over* when it unregistered or its process is proven gone; what it may still touch
is given back with that proof, never before.

The same number may be given by two processes: a worker is a number and a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.engine import VERSION, Attach, SpaceRequest
from dataplane.protocol.spaces import LMCACHE
from dataplane.transport.copying import CopyFailed
from dataplane.transport.devices import Devices
from dataplane.transport.lmcache.cache import Cache
from dataplane.transport.lmcache.connections import Connection
from dataplane.transport.lmcache.failures import Failed, Reason
from dataplane.transport.lmcache.forms import Form, form_of
from dataplane.transport.lmcache.openings import Openings
from dataplane.transport.lmcache.processes import Owner, Watch
from dataplane.transport.lmcache.registrations import Registered, Registrations
from dataplane.transport.lmcache.sessions import LEASE_TTL_S
from dataplane.transport.lmcache.transfers import Transfers

MAX_INSTANCE = (1 << 64) - 1
MAX_INSTANCES = 4096
LOST_TTL_S = 300.0
"""After which a peer without a pid, whose connection is gone, is taken for gone: nobody can prove it."""
WORKER = "LMCache worker"
MAX_TOLD = 64
"""Workers of one connection that are told to register."""

log = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class Patience:
    """For how long workers may keep silent, in seconds."""

    silent_s: float = 120.0
    """One that pings, or whose connection closed."""
    never_pinged_s: float = 3600.0


@dataclass(eq=False, slots=True)
class Instance:
    """One registered worker."""

    registered: Registered
    form: Form
    client: int
    """Its engine in the core; 0 while it has none."""
    spaces: list[int]
    """The core's number of each rank's space."""
    seen: float
    transfers: Transfers
    connection: bytes | None = None
    """Identity of the connection that spoke for it last; None when that is gone."""
    pinged: bool = False
    attached: bool = True
    counts: bool = True
    """Look-ups of its model must find blocks in its spaces too."""
    over: bool = False
    copying: int = 0
    """Copies that run for it on another thread."""
    when_idle: list[Callable[[], None]] = field(default_factory=list)
    """What waits for the end of its copies."""

    @property
    def key(self) -> tuple[int, Owner]:
        return self.registered.instance, self.registered.owner


class Instances:
    """All of them."""

    def __init__(
        self,
        cache: Cache,
        memory: int,
        named: int,
        registrations: Registrations,
        watch: Watch,
        clock: Callable[[], float],
        patience: Patience,
        devices: Devices,
        openings: Openings,
    ) -> None:
        """`memory` is the identity of the core's memory, by which engines are gone on with after a restart, and `named`
        that of the named segment."""
        self._cache = cache
        self._memory = memory
        self._named = named
        self._registrations = registrations
        self._watch = watch
        self._clock = clock
        self._patience = patience
        self._devices = devices
        self._openings = openings
        self._by_number: dict[int, dict[Owner, Instance]] = {}
        self._layouts: dict[tuple[str, int], list[list[int]]] = {}
        """Answers of `layouts` while nothing changes."""
        self._leaving: dict[int, float] = {}
        """Engines in the core that are lost and whose process cannot be watched, with the time of their loss."""

    def __iter__(self) -> Iterator[Instance]:
        for owners in list(self._by_number.values()):
            yield from list(owners.values())

    def __len__(self) -> int:
        return sum(map(len, self._by_number.values()))

    # ---- they come

    def register(self, registered: Registered, connection: Connection, now: float) -> None:
        """Take a worker in that copies by itself, or hear of it again. Raises Failed."""
        self._check(registered, connection)
        before = self._find(registered.instance, connection)
        # Memory that is named again may be another one under the same name.
        if before is not None and before.registered.engine == registered.engine:
            self._heard(before, connection, now)
        else:
            self._enter(registered, form_of(registered, self._devices), connection, now)

    def register_device(
        self, registered: Registered, connection: Connection, then: Callable[[Failed | None], None]
    ) -> None:
        """Take a worker in that lets this node copy; `then` is told when its memory is open, or why it is not. Raises
        Failed."""
        self._check(registered, connection)
        form = form_of(registered, self._devices)
        copier = form.copier
        assert copier is not None

        def opened(failed: CopyFailed | None) -> None:
            try:
                if failed is not None:
                    raise Failed(Reason.UNSUPPORTED, str(failed))
                self._check(registered, connection)
                self._enter(registered, form, connection, self._clock())
            except Failed as error:
                self._openings.close(copier)
                then(error)
            else:
                then(None)

        if not self._openings.open(copier, opened, loose=True):
            raise Failed(Reason.REFUSED, "too many copies wait")

    def _check(self, registered: Registered, connection: Connection) -> None:
        if not 0 <= registered.instance <= MAX_INSTANCE:
            raise Failed(
                Reason.BAD_ARGUMENTS, f"instance_id: expected 0 to 2**64 - 1, got {registered.instance}"
            )
        if not connection.open:
            raise Failed(Reason.UNKNOWN_INSTANCE, "the connection of this worker is closed")

    def _enter(self, registered: Registered, form: Form, connection: Connection, now: float) -> None:
        """Raises Failed."""
        before = self._find(registered.instance, connection)
        if before is not None:
            self._end(before, "registered anew", now)
        if len(self) >= MAX_INSTANCES:
            raise Failed(Reason.REFUSED, f"at most {MAX_INSTANCES} workers are registered")
        registered.pid, registered.started = connection.owner
        registered.named = self._named
        instance = Instance(registered, form, 0, [], now, Transfers(self._cache, form))
        instance.connection = connection.identity
        self._attach(instance, now)
        self._by_number.setdefault(registered.instance, {})[registered.owner] = instance
        self._registrations.keep(registered)
        self._watch_process(instance)

    def restore(self, now: float) -> None:
        """Take in again who was registered with the data plane before this one. Memory of devices is opened meanwhile:
        who copies before that waits for it, and nobody else does."""
        for registered in self._registrations.load():
            if registered.engine is not None and registered.named != self._named:
                # Where it maps memory, nobody looks any more.
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
                instance.form = instance.transfers.form = form_of(registered, self._devices)
                self._attach(instance, now)
            except Failed as error:
                log.warning(
                    "lmcache.registration_not_restored",
                    instance=registered.instance,
                    pid=registered.pid,
                    reason=str(error),
                )
                self._openings.close(instance.form.copier)
                self._registrations.drop(registered)
                continue
            self._by_number.setdefault(registered.instance, {})[registered.owner] = instance
            self._registrations.keep(registered)
            inherited = self._cache.held(instance.client)
            if instance.form.copier is not None:  # what was copied for it ended with the process that did
                self._cache.let_go(instance.client, inherited)
            elif inherited:
                instance.transfers.inherit(inherited, now + LEASE_TTL_S)
            self._watch_process(instance)
            self._open_again(instance)

    def _open_again(self, instance: Instance) -> None:
        """One whose memory cannot be opened is forgotten: its next heartbeat makes it register again."""

        def opened(failed: CopyFailed | None) -> None:
            if failed is not None and not instance.over:
                log.warning(
                    "lmcache.registration_not_restored",
                    instance=instance.registered.instance,
                    pid=instance.registered.pid,
                    reason=str(failed),
                )
                self._end(instance, "its memory cannot be opened", self._clock())

        if instance.form.copier is not None:  # where too much waits, its first copy opens it
            self._openings.open(instance.form.copier, opened, loose=False)

    def _attach(self, instance: Instance, now: float) -> None:
        """Attach its engine, or go on with the one that it had. Raises Failed."""
        registered = instance.registered
        before = self._cache.engines.get(registered.client) if registered.memory == self._memory else None
        message = Attach(
            0,
            VERSION,
            f"{LMCACHE}:{registered.instance}",
            [
                SpaceRequest(space)
                for space in instance.form.spaces(registered.model_name, registered.world_size)
            ],
            engine=WORKER,
            resume=registered.client,
            resume_memory=registered.memory,
            # It may be writing still: nothing is given back before it says so. What this process was copying for it
            # ended with this process.
            writing=list(before.expired) if before is not None and instance.form.copier is None else [],
        )
        try:
            engine, spaces = self._cache.attach(message, *_split(registered.owner, now), gateway=LMCACHE)
        except ProtocolError as error:
            raise Failed(Reason.REFUSED, f"{error.field}: {error.message}") from None
        if before is not None and before.client != engine.client and not before.connected:
            self._lost(before.client, registered.owner, now)
        instance.client = registered.client = engine.client
        registered.memory = self._memory
        instance.spaces = spaces
        instance.transfers.client = engine.client
        instance.attached = instance.counts = True
        self._layouts.clear()

    # ---- they speak

    def of(self, number: int, connection: Connection, now: float) -> Instance:
        """The worker that a request names; it was heard of now. Raises Failed."""
        instance = self._find(number, connection)
        if instance is None:
            raise Failed(Reason.UNKNOWN_INSTANCE, f"no worker {number} is registered by this process")
        self._heard(instance, connection, now)
        if not instance.attached:
            raise Failed(Reason.UNKNOWN_INSTANCE, f"worker {number} is lost")
        return instance

    def ping(self, number: int, connection: Connection, now: float) -> bool:
        """A worker says that it lives. False, once a connection, to one that is not registered: clients register again
        when they find the server well after it was not."""
        instance = self._find(number, connection)
        if instance is not None:
            instance.pinged = True
            self._heard(instance, connection, now)
            return True
        if number in connection.told or len(connection.told) >= MAX_TOLD:
            return True
        connection.told.add(number)
        return False

    def _find(self, number: int, connection: Connection) -> Instance | None:
        owners = self._by_number.get(number)
        if not owners:
            return None
        exact = owners.get(connection.owner)
        if exact is not None:
            return exact
        # Who has no pid may be anybody's process; who has one, only its own.
        unknown = [each for owner, each in owners.items() if not (owner[0] and connection.owner[0])]
        return max(unknown, key=lambda each: each.seen, default=None)

    def _heard(self, instance: Instance, connection: Connection, now: float) -> None:
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
        engine = self._cache.engines.get(instance.client)
        if engine is not None and engine.connected:  # it waits for the end of a copy to be detached
            instance.attached = True
            return
        self._attach(instance, now)
        self._registrations.keep(instance.registered)
        self._watch_process(instance)

    # ---- they go

    def unregister(self, number: int, connection: Connection, now: float) -> None:
        """A worker ends its registration. Raises Failed."""
        instance = self._find(number, connection)
        if instance is None:
            raise Failed(Reason.UNKNOWN_INSTANCE, f"no worker {number} is registered by this process")
        self._end(instance, "unregistered", now)

    def disconnected(self, identity: bytes, now: float) -> None:
        """A connection closed: the workers that spoke through it are away."""
        for instance in self:
            if instance.connection == identity:
                instance.connection = None
                instance.seen = now
                self._away(instance, "connection closed", now)

    def reap(self, now: float) -> None:
        """Let go who kept silent for too long. Called every second."""
        for instance in self:
            instance.transfers.expire(now)
            patient = instance.pinged or instance.connection is None
            patience = self._patience.silent_s if patient else self._patience.never_pinged_s
            if instance.counts and now - instance.seen > patience:
                instance.counts = False
                self._layouts.clear()
                log.warning(
                    "lmcache.worker_silent",
                    instance=instance.registered.instance,
                    pid=instance.registered.pid,
                    seconds=round(now - instance.seen, 1),
                )
                self._away(instance, "silent", now)
            elif (
                not instance.counts
                and not instance.registered.pid
                and now - instance.seen > self._patience.never_pinged_s
            ):
                self._end(instance, "silent", now)
        for client, since in list(self._leaving.items()):
            if now - since > LOST_TTL_S:
                del self._leaving[client]
                self._cache.process_gone(client, now)

    def _away(self, instance: Instance, reason: str, now: float) -> None:
        """Its rights end. What it writes and reads stays as it is until it speaks again or is gone."""
        if not instance.attached:
            return
        instance.attached = False

        def detach() -> None:
            if not instance.attached:
                self._cache.detach(instance.client, reason, self._clock())
                if not instance.registered.pid:
                    self._leaving[instance.client] = self._clock()

        self._once_idle(instance, detach)

    def _end(self, instance: Instance, reason: str, now: float) -> None:
        """A registration is over. Nothing that was being written is ever published."""
        self._forget(instance)
        idle = not instance.transfers.open and not self._has_expired(instance.client)

        def leave() -> None:
            at = self._clock()
            self._openings.close(instance.form.copier)
            if idle:
                self._watch.end(instance.client)
                self._cache.goodbye(instance.client, at)
            else:  # it may touch its bytes still
                self._cache.detach(instance.client, reason, at)
                self._lost(instance.client, instance.registered.owner, at)

        self._once_idle(instance, leave)

    def _has_expired(self, client: int) -> bool:
        engine = self._cache.engines.get(client)
        return engine is not None and bool(engine.expired or engine.reservations)

    def _gone(self, instance: Instance) -> None:
        """Its process is proven gone."""
        self._forget(instance)

        def gone() -> None:
            self._openings.close(instance.form.copier)
            self._cache.process_gone(instance.client, self._clock())

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
        """An engine of the core whose worker is over: its bytes come back when its process is proven gone."""
        if not owner[0]:
            self._leaving[client] = now
        elif not self._watch.begin(client, owner, lambda: self._cache.process_gone(client, self._clock())):
            self._cache.process_gone(client, now)

    def _watch_process(self, instance: Instance) -> None:
        self._leaving.pop(instance.client, None)
        if not self._watch.begin(instance.client, instance.registered.owner, lambda: self._gone(instance)):
            self._gone(instance)

    # ---- copies that run

    def _once_idle(self, instance: Instance, call: Callable[[], None]) -> None:
        """Call when no copy runs for the worker: until then its bytes are being touched by this process."""
        if instance.copying:
            instance.when_idle.append(call)
        else:
            call()

    def copy_ended(self, instance: Instance) -> None:
        """One copy fewer runs."""
        instance.copying -= 1
        if not instance.copying:
            waiting, instance.when_idle = instance.when_idle, []
            for call in waiting:
                call()

    # ---- what is registered

    def layouts(self, model: str, world_size: int) -> list[list[int]]:
        """The spaces of a model, rank by rank, for each form of chunks that its workers have."""
        known = self._layouts.get((model, world_size))
        if known is not None:
            return known
        found: dict[str, list[int]] = {}
        for instance in sorted(self, key=lambda each: not each.attached):
            registered = instance.registered
            if instance.counts and (registered.model_name, registered.world_size) == (model, world_size):
                found.setdefault(f"{instance.form.layout} {instance.form.dtype}", instance.spaces)
        if found:  # what nobody registered is not kept: its name is the peer's to choose
            self._layouts[model, world_size] = list(found.values())
        return list(found.values())

    def close(self) -> None:
        """No copy runs any more."""
        self._openings.end(instance.form.copier for instance in self)


_NO_FORM = Form("", "", 0, [])


def _split(owner: Owner, now: float) -> tuple[int, float, int]:
    """pid, time and start, as the core takes them."""
    return owner[0], now, owner[1]

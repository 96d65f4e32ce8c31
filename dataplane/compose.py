"""Composition root of the data plane: creates and wires its parts. Gateways and tiers wire what they consist of."""

from __future__ import annotations

import atexit
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import structlog
import zmq

from dataplane.base import tracing
from dataplane.base.allocator import trim_memory
from dataplane.base.connection_guard import LOOK_S
from dataplane.base.process_figures import ProcessFigures
from dataplane.copies.copying import CopyThreads
from dataplane.copies.devices import Devices
from dataplane.copies.gpu_copies import GpuCopyService
from dataplane.core.blocks.leases import LeaseTable
from dataplane.core.blocks.ports import Fence
from dataplane.core.node import Node
from dataplane.devices.find import FindRuntime, find
from dataplane.gateways.build import lmcache_gateway
from dataplane.gateways.lmcache.server import LMCacheServer
from dataplane.gateways.lmcache.zmtp.sockets import AdoptedSocket
from dataplane.holding import SOCKETS
from dataplane.holding.connection import RETRY_S, HolderConnection
from dataplane.io.loop import Loop
from dataplane.io.peers import may_pin
from dataplane.kv_events.build import kv_event_publisher
from dataplane.kv_events.publisher import KvEventPublisher
from dataplane.membership import STEP_S, JoinFailed, Membership, membership
from dataplane.memory.memory import NodeMemory
from dataplane.memory.named import NamedFile
from dataplane.memory.prefault import Prefault
from dataplane.observe.bus import EventFanout
from dataplane.observe.ipc import IpcWatcher
from dataplane.observe.log import log_event
from dataplane.observe.trace import RequestSpans
from dataplane.protocol import barrier
from dataplane.protocol.control.nodes import Expel, Expelled
from dataplane.protocol.control.snapshots import Snapshot
from dataplane.protocol.events import CacheStartedCold, GatewayNameLost, GatewayNameRestored, NodeStarted, NodeStopped
from dataplane.protocol.spaces import LMCACHE
from dataplane.protocol.stats.processes import CacheStart
from dataplane.recovery.adoption import WRITER_ENDS_S, CoreFactory, begin, segment_bytes
from dataplane.recovery.record import load
from dataplane.recovery.retained_cache import Ending, RetainedCache
from dataplane.recovery.service_manager import ServiceManager
from dataplane.recovery.snapshot_store import SnapshotStore
from dataplane.recovery.start import cache_start, status
from dataplane.recovery.state import StateDirectory
from dataplane.recovery.supervision import SupervisorConnection
from dataplane.report import NodeReport, StatePublisher
from dataplane.settings import DataPlaneSettings, check_machine, rank_url
from dataplane.sockets.control import ControlServer, Introduction
from dataplane.sockets.engine import EngineServer
from dataplane.sockets.publisher import Publisher
from dataplane.sockets.session import EngineServices
from dataplane.tiering.build import node_tiers
from dataplane.tiering.service import TierService

COLLECT_INTERVAL_S = 10.0
TRIM_INTERVAL_S = 60.0
"""Interval at which freed memory goes back to the system. Without it, a heap with 14 MB in use grew by 11 MB in 25
minutes of engines that come and go."""
GIVE_BACK_INTERVAL_S = 5.0
LOCK_S = 2.0
"""Time in which a holder closes the duplicate of a killed predecessor's lock of the state directory."""
NAME_INTERVAL_S = 0.25
"""Interval at which the name of the memory that LMCache clients map is checked."""
REMEMBER_INTERVAL_S = 5.0
"""Limit on how much of a pin's extension a crash can lose."""

log = structlog.stdlib.get_logger()

HeldFile = tuple[str, int, int]
"""Kind, number and descriptor of a file that the holder kept."""


def steady_clock() -> Callable[[], float]:
    """Return a clock of Unix seconds that never steps back: the wall clock at start, advanced by the monotonic
    clock."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


@dataclass(frozen=True, slots=True)
class MemoryUsers:
    """Passes on which memory was dropped, to the holder and to those who use segments, and asks them whether pages may
    go."""

    holder: HolderConnection
    segment_retired: list[Callable[[int], None]] = field(default_factory=list)
    """Called with the number of each segment that is dropped."""
    addressed: list[Callable[[], bool]] = field(default_factory=list)
    """Return whether a device may write to pages of the named segment by address."""

    def dropped(self, kind: str, number: int) -> None:
        self.holder.dropped(kind, number)
        if kind == "segment":
            for retired in self.segment_retired:
                retired(number)

    def may_give_back(self) -> bool:
        """Return whether pages of the named segment may go back to the machine."""
        return not any(addressed() for addressed in self.addressed)


@dataclass(frozen=True, slots=True)
class TakenMemory:
    """The first stage: the locked state directory, and what the holder kept of the previous data plane."""

    state: StateDirectory
    holder: HolderConnection
    files: list[HeldFile]
    sockets: list[HeldFile]
    failure: str
    """Why a holder did not hand the memory over; empty if it did, or if there is none."""


@dataclass(frozen=True, slots=True)
class CoreStage:
    """The second stage: memory, the node over it, and what works on the node's blocks without a socket."""

    memory: NodeMemory
    node: Node
    start: CacheStart
    prefault: Prefault | None
    memory_users: MemoryUsers
    membarrier: bool
    bus: EventFanout
    retained_cache: RetainedCache
    tiers: TierService
    snapshots: SnapshotStore
    devices: Devices
    gpu_copies: GpuCopyService


@dataclass(frozen=True, slots=True)
class Servers:
    """The third stage: what peers connect to, and what the node publishes."""

    engines: EngineServer
    lmcache: LMCacheServer | None
    kv_events: KvEventPublisher | None
    publisher: Publisher
    control: ControlServer
    report: NodeReport
    publishing: StatePublisher


class DataPlane:
    """One running data plane. `run` serves until `stop` is called."""

    def __init__(
        self,
        settings: DataPlaneSettings,
        leases: Callable[[Fence], LeaseTable] = LeaseTable,
        supervisor: SupervisorConnection | None = None,
        find_devices: FindRuntime = find,
        service_manager: ServiceManager | None = None,
        holder: HolderConnection | None = None,
    ) -> None:
        """Build the data plane. `find_devices` finds the GPU runtime when the first engine with a GPU registers.
        Without a `holder`, the memory ends with this process."""
        barrier.check_machine()
        # A full collection walks every block of the pool, and no request is served for tens of milliseconds. Blocks
        # leave no reference cycles, so only young objects are collected, on a timer.
        gc.disable()
        self.clock = steady_clock()
        self._settings = settings
        self._supervisor = supervisor
        self._service_manager = service_manager or ServiceManager()
        self._ending = Ending.RELEASE
        self._join_failed: JoinFailed | None = None
        self._taken = _take_memory(settings, holder or HolderConnection(), supervised=supervisor is not None)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._membership = None if supervisor is not None else membership(settings, self._context)
        self._loop = Loop()
        self._figures = ProcessFigures()
        self._ipc = IpcWatcher(settings.table.ipc_interval_s, self.clock)
        self._core = core = self._make_core(leases, find_devices)
        self.node = core.node
        self._servers = self._make_servers(core)
        self._begin_timers()

    # ---- the stages

    def _make_core(self, leases: Callable[[Fence], LeaseTable], find_devices: FindRuntime) -> CoreStage:
        """Adopt the memory or begin with fresh memory, and put the saved records in force."""
        settings, taken, loop, clock = self._settings, self._taken, self._loop, self.clock
        table, state = settings.table, taken.state
        membarrier = table.membarrier and barrier.register()
        if not membarrier:
            log.warning("membarrier.off", effect="leases go by message: slower lookups, nothing else changes")
        fence = barrier.fence if membarrier else (lambda: None)
        bus = EventFanout(table.block_events_per_s)
        prefault = _prefault(settings)
        users = MemoryUsers(taken.holder)
        factory = CoreFactory(
            settings,
            table.node or state.node_name(),
            taken.files,
            lambda: leases(fence),
            clock,
            bus.publish,
            taken.holder.made,
            users.dropped,
            users.may_give_back,
            prefault,
        )
        begun = begin(taken.files, factory)
        memory, node = begun.memory, begun.node
        if begun.restored is None:
            taken.holder.began_cold()
        adopted_sockets = [(kind, number, AdoptedSocket(fd)) for kind, number, fd in taken.sockets]
        taken.holder.list_all([*memory.files(), *adopted_sockets])
        start = cache_start(begun, load(state.path), clock(), taken.failure)
        retained_cache = RetainedCache(state, node, memory, clock, table.keep_memory_s, taken.holder)
        named = memory.named
        devices = Devices(find_devices, memory.segments, None if named is None else named.device_view)
        users.segment_retired.append(devices.retired)
        users.addressed.extend((lambda: devices.named_is_pinned, partial(_device_may_write, node)))
        memory.allocate_ahead(node.options.capacity_bytes)
        tiers = node_tiers(settings, loop, node, memory, clock, state.path)
        snapshots = SnapshotStore(state, node.intent, tiers)
        snapshots.apply(clock())
        tiers.step()
        tiers.wait_opened()
        node.drain(on=state.draining())
        copying = CopyThreads(loop)
        gpu_copies = GpuCopyService(node.gpu_copies, node.engines, memory, devices, copying, clock)
        return CoreStage(
            memory, node, start, prefault, users, membarrier, bus, retained_cache, tiers, snapshots, devices, gpu_copies
        )

    def _make_servers(self, core: CoreStage) -> Servers:
        """Bind the sockets. Engines of the previous data plane can resume from now on."""
        settings, loop, clock = self._settings, self._loop, self.clock
        common, node, memory = settings.common, core.node, core.memory
        _make_parent(common.events_url)
        gate = None if self._membership is None else self._membership.gate
        publisher = Publisher(self._context, common.events_url, gate if _is_tcp(common.events_url) else None)
        kv_events = kv_event_publisher(settings, self._context, loop, node, clock)
        spans = RequestSpans()
        services = EngineServices(node, memory, clock, core.membarrier, core.gpu_copies, core.tiers, spans)
        engines = EngineServer(loop, services, common.engine_socket, frozenset(settings.table.allowed_uids))
        lmcache = lmcache_gateway(
            settings,
            loop,
            node,
            memory,
            clock,
            self._taken.holder,
            self._taken.sockets,
            core.devices,
            core.gpu_copies,
            spans,
            None if kv_events is None or kv_events.token_ids is None else kv_events.token_ids.add,
        )
        core.memory_users.segment_retired.append(engines.segment_retired)
        engines.adopt_engines()
        report = NodeReport(
            node, core.start, core.bus, loop, self._figures, self._ipc, core.tiers, kv_events, lmcache, self._membership
        )
        publishing = StatePublisher(node, report, core.bus, spans, memory.named, clock)
        control = ControlServer(
            self._context,
            common.control_url,
            node,
            core.tiers,
            Introduction(os.getpid(), common.engine_socket, publisher.url, settings.table.labels),
            report.stats,
            lambda: publisher.seq,
            clock,
            self._acknowledged,
            self._drained,
            self._expel,
            None if lmcache is None else lmcache.digests.begin,
            gate if _is_tcp(common.control_url) else None,
        )
        loop.register_zmq(control.socket, control.on_readable)
        if tracing.on():
            core.bus.subscribe(spans)
        core.bus.subscribe(log_event)
        core.bus.subscribe(publisher)
        return Servers(engines, lmcache, kv_events, publisher, control, report, publishing)

    def _begin_timers(self) -> None:
        loop, table, core, servers = self._loop, self._settings.table, self._core, self._servers
        self._join()
        if core.memory.named is not None:
            loop.every(GIVE_BACK_INTERVAL_S, core.memory.give_back)
            loop.every(
                NAME_INTERVAL_S, partial(_look_at_name, core.memory.named, core.node, servers.publishing, self.clock)
            )
        loop.every(LOOK_S, self._guard_sockets)
        loop.every(table.tick_s, self._tick)
        loop.every(table.stats_interval_s, servers.publishing.publish)
        loop.every(REMEMBER_INTERVAL_S, core.snapshots.refresh)
        loop.every(REMEMBER_INTERVAL_S, core.retained_cache.record)
        loop.every(COLLECT_INTERVAL_S, _collect_young)
        loop.every(TRIM_INTERVAL_S, trim_memory)
        loop.every(RETRY_S, self._taken.holder.step)

    # ---- the fleet

    def _join(self) -> None:
        """Begin to announce this node to the fleet's management plane, if it joins or has joined a fleet."""
        if self._membership is None:
            return
        self._loop.register_zmq(self._membership.gate.socket, self._membership.gate.on_readable)
        self._membership.begin(self.node.options.name, self._servers.control.url, self._servers.publisher.url)
        self._loop.every(STEP_S, partial(self._announce, self._membership, self._servers.control))

    def _guard_sockets(self) -> None:
        self._servers.publisher.guard.step()
        if self._servers.control.guard.step() and self._membership is not None:
            self._membership.on_departure()

    def _announce(self, membership: Membership, control: ControlServer) -> None:
        try:
            joined = membership.step()
        except JoinFailed as error:
            self._join_failed = error
            self.stop()
            return
        if joined is not None:
            control.introduction = replace(control.introduction, events_url=joined.events_url)

    # ---- the run

    def run(self) -> None:
        """Serve until `stop`, then clean up. Raises JoinFailed if the node's first join was refused."""
        options, start = self.node.options, self._core.start
        self.node.emit(NodeStarted(self.clock(), options.name, options.epoch, os.getpid(), options.capacity_bytes))
        if start.kind == "cold":
            self.node.emit(
                CacheStartedCold(start.at, start.reason, start.released, start.lost_blocks, start.lost_bytes)
            )
        named = self._core.memory.named
        self._taken.holder.serving([] if named is None else [str(path) for path in named.paths])
        if self._supervisor is not None:
            self._supervisor.serving()
        self._service_manager.ready(status(start))
        self._core.retained_cache.record()
        try:
            self._loop.run()
            self.node.emit(NodeStopped(self.clock()))
        except BaseException:
            # The next process checks the memory before it adopts it, as after a kill.
            self._ending = Ending.HAND_OVER
            raise
        finally:
            self._tick()
            self._core.bus.deliver()
            self.close()
        if self._join_failed is not None:
            raise self._join_failed

    def stop(self, ending: Ending = Ending.RELEASE) -> None:
        """Make `run` end soon; safe in a signal handler. `ending` says what happens to the memory."""
        self._ending = ending
        self._loop.stop()

    @property
    def handed_over(self) -> bool:
        """Whether the data plane ended and left its memory to its holders."""
        return self._ending is Ending.HAND_OVER

    def close(self) -> None:
        core, servers, taken = self._core, self._servers, self._taken
        self._service_manager.stopping()
        if core.prefault is not None:
            core.prefault.stop()
        servers.engines.close()
        if servers.lmcache is not None:
            servers.lmcache.close(hand_over=self._ending is Ending.HAND_OVER)
        released = core.retained_cache.end(self._ending)
        taken.holder.end()
        core.tiers.close(self.clock())
        core.gpu_copies.close()
        core.devices.close()
        servers.control.close()
        servers.publisher.close()
        if servers.kv_events is not None:
            servers.kv_events.close(released=released)
        self._figures.close()
        self._ipc.close()
        if self._membership is not None:
            self._membership.close()
        self._context.term()
        for url in _endpoints(self._settings):
            if url.startswith("ipc://"):
                Path(url.removeprefix("ipc://")).unlink(missing_ok=True)  # libzmq does not remove it
        self._loop.close()
        if core.memory.named is not None:
            if released:
                core.memory.named.remove()
            else:
                atexit.unregister(core.memory.named.remove)
        core.memory.close()
        core.snapshots.refresh()
        taken.state.close()

    def _tick(self) -> None:
        self.node.tick(self.clock())
        self._core.gpu_copies.step()
        self._servers.publishing.deliver()

    # ---- what a manager changed; the node's state is published before the answer is sent

    def _acknowledged(self, snapshot: Snapshot) -> None:
        self._core.snapshots.acknowledged(snapshot)
        self._servers.publishing.publish()

    def _drained(self, on: bool) -> None:
        log.info("node.drain_started" if on else "node.drain_ended", node=self.node.options.name)
        self._taken.state.keep_draining(on=on)
        self._servers.publishing.publish()

    def _expel(self, message: Expel) -> Expelled:
        answer = self._servers.engines.expel(message)
        self._servers.publishing.publish()
        return answer


def _take_memory(settings: DataPlaneSettings, holder: HolderConnection, *, supervised: bool) -> TakenMemory:
    """Lock the state directory and take what the holder has. Raises SettingsError, StateInUse, OSError."""
    state = StateDirectory(Path(settings.common.state_dir))
    state.lock(WRITER_ENDS_S if supervised else LOCK_S)
    taken, failure = holder.take(state.lock_fd)
    files = [held for held in taken if held[0] not in SOCKETS]
    check_machine(settings, segment_bytes(files), supervised=supervised)
    return TakenMemory(state, holder, files, [held for held in taken if held[0] in SOCKETS], failure)


def _look_at_name(named: NamedFile, node: Node, publishing: StatePublisher, clock: Callable[[], float]) -> None:
    """Check the name that LMCache clients open, and publish whether it was lost or restored."""
    named.look()
    changes = named.take_problems()
    for problem in changes:
        if problem:
            node.emit(GatewayNameLost(clock(), LMCACHE, problem))
        else:
            node.emit(GatewayNameRestored(clock(), LMCACHE))
    if changes:
        publishing.publish()


def _device_may_write(node: Node) -> bool:
    """Return whether a client of the gateway may have registered the named segment's pages with a device."""
    return any(engine.gateway and engine.spaces and may_pin(engine.pid) for engine in node.engines.values())


def _endpoints(settings: DataPlaneSettings) -> list[str]:
    """Return the addresses of the ZeroMQ sockets."""
    common, table = settings.common, settings.table
    ranked = (common.kv_events_url, table.kv_events_replay_url)
    ranks = range(table.kv_events_ranks)
    return [common.control_url, common.events_url, *(rank_url(url, rank) for url in ranked for rank in ranks)]


def _collect_young() -> None:
    gc.collect(1)


def _prefault(settings: DataPlaneSettings) -> Prefault | None:
    table = settings.table
    if not table.prefault:
        return None
    return Prefault(
        _prefault_failed,
        ahead_bytes=table.prefault_ahead_bytes,
        segment_bytes=table.segment_bytes,
        huge=table.huge_pages,
        lock=table.mlock,
    )


def _prefault_failed(name: str, error: OSError) -> None:
    log.warning(
        "prefault.failed",
        memory=name,
        error=error.strerror,
        effect="no memory is allocated ahead for a while; the pool is served as before",
    )


def _is_tcp(url: str) -> bool:
    """Return whether the endpoint is TCP. Access to other sockets is controlled by file permissions."""
    return url.startswith("tcp://")


def _make_parent(url: str) -> None:
    if url.startswith("ipc://"):
        Path(url.removeprefix("ipc://")).parent.mkdir(parents=True, exist_ok=True, mode=0o700)

"""Composition root of the data plane: the only module that creates and wires its objects."""

from __future__ import annotations

import atexit
import gc
import os
import time
from collections.abc import Callable
from dataclasses import replace
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
from dataplane.devices.find import FindRuntime, find
from dataplane.gateways.build import lmcache_gateway
from dataplane.gateways.lmcache.zmtp.sockets import AdoptedSocket
from dataplane.holding import SOCKETS
from dataplane.holding.connection import RETRY_S, HolderConnection
from dataplane.io.loop import Loop
from dataplane.io.peers import may_pin
from dataplane.kv_events.build import kv_event_publisher
from dataplane.membership import STEP_S, JoinFailed, membership
from dataplane.memory.named import NamedFile
from dataplane.memory.prefault import Prefault
from dataplane.memory.shared_file import SharedFile
from dataplane.observe.bus import EventFanout
from dataplane.observe.ipc import IpcWatcher
from dataplane.observe.log import log_event
from dataplane.protocol import barrier
from dataplane.protocol.control.nodes import Expel, Expelled
from dataplane.protocol.control.snapshots import Snapshot
from dataplane.protocol.events import CacheStartedCold, GatewayNameLost, GatewayNameRestored, NodeStarted, NodeStopped
from dataplane.protocol.join import Joined
from dataplane.protocol.spaces import LMCACHE
from dataplane.recovery.adoption import WRITER_ENDS_S, CoreFactory, begin, segment_bytes
from dataplane.recovery.record import load
from dataplane.recovery.retained_cache import Ending, RetainedCache
from dataplane.recovery.service_manager import ServiceManager
from dataplane.recovery.snapshot_store import SnapshotStore
from dataplane.recovery.start import cache_start, status
from dataplane.recovery.supervision import SupervisorConnection
from dataplane.report import NodeReport
from dataplane.settings import DataPlaneSettings, check_machine, rank_url
from dataplane.sockets.control import ControlServer, Introduction
from dataplane.sockets.engine import EngineServer
from dataplane.sockets.publisher import Publisher
from dataplane.state import StateDirectory
from dataplane.tiering.build import node_tiers

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


def steady_clock() -> Callable[[], float]:
    """Return a clock of Unix seconds that never steps back: the wall clock at start, advanced by the monotonic
    clock."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


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
        self._state = StateDirectory(Path(settings.common.state_dir))
        self._state.lock(WRITER_ENDS_S if supervisor is not None else LOCK_S)
        self._ending = Ending.RELEASE
        self._supervisor = supervisor
        self._service_manager = service_manager or ServiceManager()
        self._holder = holder or HolderConnection()
        taken, holder_failure = self._holder.take(self._state.lock_fd)
        handed = [each for each in taken if each[0] not in SOCKETS]
        sockets = [each for each in taken if each[0] in SOCKETS]
        check_machine(settings, segment_bytes(handed), supervised=supervisor is not None)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._membership = None if supervisor is not None else membership(settings, self._context)
        self._join_failed: JoinFailed | None = None
        self._server: EngineServer | None = None
        self._overflowed = False
        self._short = False
        self.clock = steady_clock()
        kv_event_urls = (settings.common.kv_events_url, settings.table.kv_events_replay_url)
        self._endpoints = (
            settings.common.control_url,
            settings.common.events_url,
            *(rank_url(url, rank) for url in kv_event_urls for rank in range(settings.table.kv_events_ranks)),
        )
        self._loop = Loop()
        membarrier = settings.table.membarrier and barrier.register()
        if not membarrier:
            log.warning("membarrier.off", effect="leases go by message: slower lookups, nothing else changes")
        self._prefault = _prefault(settings)
        fence = barrier.fence if membarrier else (lambda: None)
        factory = CoreFactory(
            settings,
            settings.table.node or self._state.node_name(),
            handed,
            lambda: leases(fence),
            self.clock,
            self._memory_made,
            self._memory_dropped,
            self._prefault,
        )
        core = begin(handed, factory)
        self._memory, self.node = core.memory, core.node
        if core.restored is None:
            self._holder.began_cold()
        adopted_sockets = [(kind, number, AdoptedSocket(fd)) for kind, number, fd in sockets]
        self._holder.list_all([*self._memory.files(), *adopted_sockets])
        self._bus = EventFanout(self.node.counts.dropped_events, settings.table.block_events_per_s)
        self._figures = ProcessFigures()
        self._ipc = IpcWatcher(settings.table.ipc_interval_s, self.clock)
        self._start = cache_start(core, load(self._state.path), self.clock(), holder_failure)
        self._retained_cache = RetainedCache(
            self._state, self.node, self._memory, self.clock, settings.table.keep_memory_s, self._holder
        )
        if self._memory.named is not None:
            self._memory.named.may_give_back = self._no_device_writes
            self._loop.every(GIVE_BACK_INTERVAL_S, self._memory.give_back)
            self._watch_name(self._memory.named)
        self._begin_prefault()
        self._tiers = node_tiers(settings, self._loop, self.node, self._memory, self.clock, self._state.path)
        self.node.intent.tiers = self._tiers
        self._snapshot_store = SnapshotStore(self._state, self.node.intent)
        self._snapshot_store.apply(self.clock())
        self._tiers.step()
        self._tiers.wait_opened()
        self.node.drain(on=self._state.draining())
        self._devices = Devices(
            find_devices, self._memory.segments, None if self._memory.named is None else self._memory.named.device_view
        )
        self._gpu_copies = GpuCopyService(
            self.node.gpu_copies,
            self.node.engines,
            self._memory,
            self._devices,
            CopyThreads(self._loop),
            settings.table.gpu_pool_bytes,
            self.clock,
        )
        _make_parent(settings.common.events_url)
        gate = None if self._membership is None else self._membership.gate
        self._publisher = Publisher(
            self._context, settings.common.events_url, gate if _is_tcp(settings.common.events_url) else None
        )
        self._kv_events = kv_event_publisher(settings, self._context, self._loop, self.node, self.clock)
        server = self._server = EngineServer(
            self._loop,
            self.node,
            self._memory,
            settings.common.engine_socket,
            frozenset(settings.table.allowed_uids),
            membarrier,
            self.clock,
            self._gpu_copies,
            self._tiers,
        )
        self._lmcache = lmcache_gateway(
            settings,
            self._loop,
            self.node,
            self._memory,
            self.clock,
            self._holder,
            sockets,
            self._devices,
            self._gpu_copies,
        )
        if tracing.on():
            self._bus.subscribe(server.request_spans)
        self._spans = server.request_spans
        if self._lmcache is not None:
            self._lmcache.request_spans = server.request_spans
            if self._kv_events is not None and self._kv_events.token_ids is not None:
                self._lmcache.chains.on_hashed = self._kv_events.token_ids.add
        server.adopt_engines()
        self._report = NodeReport(
            self.node,
            self._start,
            self._loop,
            self._figures,
            self._ipc,
            self._tiers,
            self._kv_events,
            self._lmcache,
            self._membership,
        )
        self._control = ControlServer(
            self._context,
            settings.common.control_url,
            self.node,
            Introduction(os.getpid(), settings.common.engine_socket, self._publisher.url, settings.table.labels),
            self._report.stats,
            lambda: self._publisher.seq,
            self.clock,
            self._acknowledged,
            self._drained,
            partial(self._expel, server),
            gate if _is_tcp(settings.common.control_url) else None,
        )
        if self._lmcache is not None:
            self._control.digest = self._lmcache.digests.begin
        self._loop.register_zmq(self._control.socket, self._control.on_readable)
        self._join()
        self._loop.every(LOOK_S, self._guard_sockets)
        self._bus.subscribe(log_event)
        self._bus.subscribe(self._publisher)
        self._loop.every(settings.table.tick_s, self._tick)
        self._loop.every(settings.table.stats_interval_s, self._publish_stats)
        self._loop.every(REMEMBER_INTERVAL_S, self._snapshot_store.refresh)
        self._loop.every(REMEMBER_INTERVAL_S, self._retained_cache.record)
        self._loop.every(COLLECT_INTERVAL_S, _collect_young)
        self._loop.every(TRIM_INTERVAL_S, trim_memory)
        self._loop.every(RETRY_S, self._holder.step)

    def _join(self) -> None:
        """Begin to announce this node to the fleet's management plane, if it joins or has joined a fleet."""
        if self._membership is None:
            return
        self._loop.register_zmq(self._membership.gate.socket, self._membership.gate.on_readable)
        self._membership.begin(
            self.node.options.name, self._control.url, self._publisher.url, self._joined, self._not_joined
        )
        self._loop.every(STEP_S, self._membership.step)

    def _guard_sockets(self) -> None:
        self._publisher.guard.step()
        if self._control.guard.step() and self._membership is not None:
            self._membership.on_departure()

    def _joined(self, joined: Joined) -> None:
        self._control.introduction = replace(self._control.introduction, events_url=joined.events_url)

    def _not_joined(self, error: JoinFailed) -> None:
        self._join_failed = error
        self.stop()

    def _begin_prefault(self) -> None:
        """Begin to allocate memory ahead of use. The predecessor's memory must be known by then, because it counts
        toward the pool."""
        if self._memory.named is not None:
            name = self._memory.named.name
            self._memory.named.pages.on_failure = lambda error: _prefault_failed(name, error)
        if self._prefault is not None:
            for number, file in self._memory.segments.items():
                if self._prefault.locks or not file.part:
                    self._prefault.submit(number, file)
        self._memory.resize(self.node.options.capacity_bytes)

    def run(self) -> None:
        """Serve until `stop`, then clean up. Raises JoinFailed if the node's first join was refused."""
        options = self.node.options
        self.node.emit(NodeStarted(self.clock(), options.name, options.epoch, os.getpid(), options.capacity_bytes))
        start = self._start
        if start.kind == "cold":
            self.node.emit(
                CacheStartedCold(start.at, start.reason, start.released, start.lost_blocks, start.lost_bytes)
            )
        named = self._memory.named
        self._holder.serving([] if named is None else [str(path) for path in named.paths])
        if self._supervisor is not None:
            self._supervisor.serving()
        self._service_manager.ready(status(start))
        self._retained_cache.record()
        try:
            self._loop.run()
            self.node.emit(NodeStopped(self.clock()))
        except BaseException:
            # The next process checks the memory before it adopts it, as after a kill.
            self._ending = Ending.HAND_OVER
            raise
        finally:
            self._tick()
            self._bus.deliver()
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
        self._service_manager.stopping()
        if self._prefault is not None:
            self._prefault.stop()
        if self._server is not None:
            self._server.close()
        if self._lmcache is not None:
            self._lmcache.close(hand_over=self._ending is Ending.HAND_OVER)
        released = self._retained_cache.end(self._ending)
        self._holder.end()
        self._tiers.close(self.clock())
        self._gpu_copies.close()
        self._devices.close()
        self._control.close()
        self._publisher.close()
        if self._kv_events is not None:
            self._kv_events.close(released=released)
        self._figures.close()
        self._ipc.close()
        if self._membership is not None:
            self._membership.close()
        self._context.term()
        for url in self._endpoints:
            if url.startswith("ipc://"):
                Path(url.removeprefix("ipc://")).unlink(missing_ok=True)  # libzmq does not remove it
        self._loop.close()
        if self._memory.named is not None:
            if released:
                self._memory.named.remove()
            else:
                atexit.unregister(self._memory.named.remove)
        self._memory.close()
        self._snapshot_store.refresh()
        self._state.close()

    def _tick(self) -> None:
        self.node.tick(self.clock())
        self._gpu_copies.step()
        self._deliver()

    def _deliver(self) -> None:
        """Publish the events since the last call."""
        self._bus.publish(self.node.take_events())
        with tracing.outside():  # the events of everything since the last call
            self._bus.deliver(self.clock())
        if tracing.on():
            self._spans.flush()

    def _acknowledged(self, snapshot: Snapshot) -> None:
        """Save an applied snapshot, and publish the node's state before the answer is sent."""
        self._snapshot_store.acknowledged(snapshot)
        self._publish_stats()
        self._deliver()

    def _drained(self, on: bool) -> None:
        """Save whether the node drains, and publish its state before the answer is sent."""
        log.info("node.drain_started" if on else "node.drain_ended", node=self.node.options.name)
        self._state.keep_draining(on=on)
        self._publish_stats()
        self._deliver()

    def _expel(self, server: EngineServer, message: Expel) -> Expelled:
        """Expel an engine for an operator, and publish the node's stats before the answer is sent. Raises
        ProtocolError."""
        answer = server.expel(message)
        self._publish_stats()
        self._deliver()
        return answer

    def _publish_stats(self) -> None:
        overflowed = self.node.pool.table.names.overflowed
        if overflowed and not self._overflowed:
            log.error("names.overflowed", effect="until names go, the next start is cold")
        self._overflowed = overflowed
        short = self._memory.named is not None and self._memory.named.short
        if short and not self._short:
            log.error(
                "lmcache.memory_short",
                effect="/dev/shm or the machine is full: what LMCache clients store evicts their own or is refused",
            )
        self._short = short
        self.node.emit(self._report.stats(self.clock()))

    def _watch_name(self, named: NamedFile) -> None:
        if named.restored:  # it was removed after the previous data plane ended
            self.node.emit(GatewayNameLost(self.clock(), LMCACHE, "its name was removed"))
            self.node.emit(GatewayNameRestored(self.clock(), LMCACHE))
        elif named.problem:
            self.node.emit(GatewayNameLost(self.clock(), LMCACHE, named.problem))
        named.on_problem = self._name_changed
        self._loop.every(NAME_INTERVAL_S, named.look)

    def _name_changed(self, problem: str) -> None:
        now = self.clock()
        self.node.emit(GatewayNameLost(now, LMCACHE, problem) if problem else GatewayNameRestored(now, LMCACHE))
        self._publish_stats()
        self._deliver()

    def _no_device_writes(self) -> bool:
        """Return whether no client of the gateway may have registered the named segment's pages with a device."""
        return not any(
            engine.gateway and engine.spaces and may_pin(engine.pid) for engine in self.node.engines.values()
        )

    def _memory_made(self, kind: str, number: int, file: SharedFile) -> None:
        if self._prefault is not None and (kind == "segment" or (kind == "part" and self._prefault.locks)):
            self._prefault.submit(number, file)
        if kind != "part":
            self._holder.made(kind, number, file)

    def _memory_dropped(self, kind: str, number: int) -> None:
        if self._prefault is not None and kind in ("segment", "part"):
            self._prefault.cancel(number)
        if kind != "part":
            self._holder.dropped(kind, number)
            if kind == "segment" and self._server is not None:
                self._devices.retired(number)
                self._server.segment_retired(number)


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

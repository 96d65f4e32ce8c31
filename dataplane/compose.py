"""The composition root of the data plane: the only place where its objects are made and wired."""

from __future__ import annotations

import gc
import os
import resource
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog
import zmq

from dataplane import gateways, naming
from dataplane.adoption import WRITER_ENDS_S, Core, begin
from dataplane.core.books import B_CAPACITY, Books, Writer
from dataplane.core.leases import LeaseTable
from dataplane.core.names import Names
from dataplane.core.node import Node, NodeOptions
from dataplane.core.ports import Fence
from dataplane.devices.find import FindRuntime, find
from dataplane.membership import STEP_S, JoinFailed, membership
from dataplane.observe.bus import Bus
from dataplane.observe.log import log_event
from dataplane.protocol import barrier
from dataplane.protocol.control import Snapshot
from dataplane.protocol.events import NodeStarted, NodeStopping
from dataplane.protocol.join import Joined
from dataplane.protocol.layout import H_CLOSED
from dataplane.protocol.settings import SettingsError
from dataplane.remembrance import Remembrance
from dataplane.settings import Settings, check_machine
from dataplane.state import StateDirectory
from dataplane.tiers.inherited import NAMED, Inherited
from dataplane.tiers.memory import NodeMemory, SharedFile
from dataplane.tiers.pages import HUGE_BYTES, PAGE_BYTES
from dataplane.tiers.prefault import Prefault
from dataplane.transport.control import ControlServer, Introduction
from dataplane.transport.copying import Copying
from dataplane.transport.devices import Devices
from dataplane.transport.engine import EngineServer
from dataplane.transport.handover import Handover
from dataplane.transport.lmcache.sockets import SOCKETS, Kept
from dataplane.transport.loop import Loop
from dataplane.transport.peers import may_pin, started_at
from dataplane.transport.publisher import Publisher
from dataplane.transport.replicas import ReplicaCopies

COLLECT_INTERVAL_S = 10.0
GIVE_BACK_INTERVAL_S = 5.0
REMEMBER_INTERVAL_S = 5.0
"""How much of a moved pin's end a crash may forget."""

log = structlog.stdlib.get_logger()


def steady_clock() -> Callable[[], float]:
    """Unix seconds that never step back: the wall clock at start, advanced by the monotonic one."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


class DataPlane:
    """One running data plane. `run` serves until `stop`."""

    def __init__(
        self,
        settings: Settings,
        leases: Callable[[Fence], LeaseTable] = LeaseTable,
        handover: Handover | None = None,
        find_devices: FindRuntime = find,
    ) -> None:
        """`find_devices` finds the runtime of GPUs when the first engine of one registers."""
        barrier.check_machine()
        given = handover.memory if handover is not None else []
        handed = [each for each in given if each[0] not in SOCKETS]
        sockets = [each for each in given if each[0] in SOCKETS]
        check_machine(settings, sum(os.fstat(fd).st_size for kind, _, fd in handed if kind == "segment"))
        # A full collection walks every block of the pool: tens of milliseconds in which nobody is served. Blocks leave
        # no cycles behind, so only young objects are collected, and on a timer.
        gc.disable()
        self._state = StateDirectory(Path(settings.common.state_dir))
        self._state.lock(WRITER_ENDS_S if handover is not None else 0.0)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        if handover is not None and settings.table.join_token_file:
            raise SettingsError(
                "dataplane.join_token_file: the data plane that `larder up` starts belongs to it; "
                "start one that joins with `larder dataplane`"
            )
        self._membership = None if handover is not None else membership(settings, self._context)
        self._join_failed: JoinFailed | None = None
        self._server: EngineServer | None = None
        self._overflowed = False
        self._short = False
        self.clock = steady_clock()
        self._endpoints = (settings.common.control_url, settings.common.events_url)
        self._loop = Loop()
        self._bus = Bus()
        membarrier = settings.table.membarrier and barrier.register()
        if not membarrier:
            log.warning("membarrier.off", effect="leases go by message: slower lookups, nothing else changes")
        self._prefault = _prefault(settings)
        core = self._core(settings, leases, barrier.fence if membarrier else (lambda: None), handed)
        self._memory, self.node = core.memory, core.node
        if self._memory.named is not None:
            self._memory.named.may_give_back = self._no_device_writes
            self._loop.every(GIVE_BACK_INTERVAL_S, self._memory.give_back)
        self._begin_prefault()
        self._remembrance = Remembrance(self._state, self.node.intent)
        self._remembrance.apply(self.clock())
        self.node.drain(on=self._state.draining())
        self._devices = Devices(
            find_devices,
            self._memory.segments,
            None if self._memory.named is None else self._memory.named.view,
        )
        self._replicas = ReplicaCopies(
            self.node.replicas,
            self.node.engines,
            self._memory,
            self._devices,
            Copying(self._loop),
            settings.table.gpu_pool_bytes,
            self.clock,
        )
        _make_parent(settings.common.events_url)
        gate = None if self._membership is None else self._membership.gate
        self._publisher = Publisher(
            self._context, settings.common.events_url, gate if _is_tcp(settings.common.events_url) else None
        )
        server = self._server = EngineServer(
            self._loop,
            self.node,
            self._memory,
            settings.common.engine_socket,
            frozenset(settings.table.allowed_uids),
            membarrier,
            self.clock,
            self._devices,
            self._replicas,
        )
        if handover is not None:
            # From the first moment: should this process end at once, the next one gets them all.
            server.sockets = lambda: [(kind, number, Kept(fd)) for kind, number, fd in sockets]
            server.serve_supervisor(handover.connection)
        self._lmcache = gateways.lmcache(
            settings,
            self._loop,
            self.node,
            self._memory,
            self.clock,
            server,
            sockets,
            self._devices,
            self._replicas,
        )
        server.sockets = tuple
        if self._lmcache is not None:
            server.sockets = self._lmcache.connections.keepable
            self.node.gateway_stats = self._lmcache.stats
        server.adopt_engines()
        self._control = ControlServer(
            self._context,
            settings.common.control_url,
            self.node,
            Introduction(
                os.getpid(), settings.common.engine_socket, self._publisher.url, settings.table.labels
            ),
            lambda: self._publisher.seq,
            self.clock,
            self._acknowledged,
            self._drained,
            gate if _is_tcp(settings.common.control_url) else None,
        )
        if self._lmcache is not None:
            self._control.digest = self._lmcache.digests.begin
        self._loop.register_zmq(self._control.socket, self._control.on_readable)
        self._join()
        self._bus.subscribe(log_event)
        self._bus.subscribe(self._publisher)
        self._loop.every(settings.table.tick_s, self._tick)
        self._loop.every(settings.table.stats_interval_s, self._publish_stats)
        self._loop.every(REMEMBER_INTERVAL_S, self._remembrance.refresh)
        self._loop.every(COLLECT_INTERVAL_S, _collect_young)

    def _join(self) -> None:
        """Let the management plane of the fleet know of this node, where it is to be in one."""
        if self._membership is None:
            return
        self.node.lets_in = self._membership.managers
        self._loop.register_zmq(self._membership.gate.socket, self._membership.gate.on_readable)
        self._membership.begin(
            self.node.options.name, self._control.url, self._publisher.url, self._joined, self._not_joined
        )
        self._loop.register_zmq(self._membership.watch(self._control.socket), self._membership.on_departure)
        self._loop.every(STEP_S, self._membership.step)

    def _joined(self, joined: Joined) -> None:
        self._control.introduction = replace(self._control.introduction, events_url=joined.events_url)
        assert self._membership is not None
        self.node.lets_in = self._membership.managers

    def _not_joined(self, error: JoinFailed) -> None:
        self._join_failed = error
        self.stop()

    def _core(
        self,
        settings: Settings,
        leases: Callable[[Fence], LeaseTable],
        fence: Fence,
        handed: list[tuple[str, int, int]],
    ) -> Core:
        table = settings.table
        writer = Writer(secrets.randbits(63) | 1, os.getpid(), started_at(os.getpid()))

        left = {
            (status.st_dev, status.st_ino)
            for status in (os.fstat(fd) for kind, _, fd in handed if kind == NAMED)
        }

        def make_memory(private: dict[str, int], inherited: Inherited | None) -> NodeMemory:
            wanted = bool(settings.lmcache_port)
            named = None
            if inherited is not None and inherited.has(NAMED):
                named = naming.adopted(inherited.pop(NAMED), writer, wanted=wanted)
            if named is None and wanted:
                named = naming.fresh(settings, writer, left)
            return NodeMemory(
                settings.max_blocks,
                self._memory_made,
                self._memory_dropped,
                self._prefault,
                huge=table.huge_pages,
                private=private,
                inherited=inherited,
                named=named,
            )

        def make_node(memory: NodeMemory, books: Books, names: Names, needed_bytes: int) -> Node:
            options = NodeOptions(
                name=table.node or self._state.node_name(),
                epoch=f"{writer.epoch:016x}",
                # A pool that had grown stays as large: else what is stored before it is asked to grow anew would evict.
                capacity_bytes=max(
                    settings.pool_bytes // 4096 * 4096, needed_bytes, books.highest(B_CAPACITY)
                ),
                segment_bytes=table.segment_bytes,
                reservation_ttl_s=table.reservation_ttl_s,
                pin_budget_ratio=table.pin_budget_ratio,
                max_clients=table.max_clients,
                page_bytes=HUGE_BYTES if table.huge_pages else PAGE_BYTES,
                named_bytes=0 if memory.named is None else memory.named.nbytes,
            )
            return Node(options, memory.index, memory, leases(fence), self.clock(), books=books, names=names)

        return begin(handed, writer, settings.max_blocks, make_memory, make_node, self.clock)

    def _begin_prefault(self) -> None:
        """Memory is taken ahead once it is known what a predecessor left: all of it together is one pool."""
        if self._prefault is not None:
            for number, file in self._memory.segments.items():
                self._prefault.submit(number, file)
            self._prefault.resize(self.node.options.capacity_bytes)

    def run(self) -> None:
        """Serve until `stop`, then leave nothing behind. Raises JoinFailed when a first join was refused."""
        options = self.node.options
        self.node.emit(
            NodeStarted(self.clock(), options.name, options.epoch, os.getpid(), options.capacity_bytes)
        )
        try:
            self._loop.run()
        finally:
            self.node.emit(NodeStopping(self.clock()))
            self._tick()
            self.close()
        if self._join_failed is not None:
            raise self._join_failed

    def stop(self) -> None:
        """End `run` soon; safe in a signal handler."""
        self._loop.stop()

    def close(self) -> None:
        self._memory.index.header[H_CLOSED] = 1
        if self._prefault is not None:
            self._prefault.stop()
        if self._server is not None:
            self._server.close()
        if self._lmcache is not None:
            self._lmcache.close()
        self._replicas.close()
        self._devices.close()
        self._control.close()
        self._publisher.close()
        if self._membership is not None:
            self._membership.close()
        self._context.term()
        for url in self._endpoints:
            if url.startswith("ipc://"):
                Path(url.removeprefix("ipc://")).unlink(missing_ok=True)  # libzmq leaves it
        self._loop.close()
        if self._memory.named is not None:
            self._memory.named.remove()
        self._memory.close()
        self._remembrance.refresh()
        self._state.close()

    def _tick(self) -> None:
        self.node.tick(self.clock())
        self._replicas.step()
        self._bus.publish(self.node.take_events())
        self._bus.deliver()

    def _acknowledged(self, snapshot: Snapshot) -> None:
        """A snapshot is in force: written down, and seen in the node's state before its answer is."""
        self._remembrance.acknowledged(snapshot)
        self._publish_stats()
        self._bus.publish(self.node.take_events())
        self._bus.deliver()

    def _drained(self, on: bool) -> None:
        """The node takes nothing new, or takes it again: kept, and seen in its state before the answer is."""
        log.info("node.draining" if on else "node.taking_again", node=self.node.options.name)
        self._state.keep_draining(on=on)
        self._publish_stats()
        self._bus.publish(self.node.take_events())
        self._bus.deliver()

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
        self.node.emit(self.node.stats(self.clock()))

    def _no_device_writes(self) -> bool:
        """No client of the gateway may have given the named segment's pages to a device by address."""
        return not any(
            engine.gateway and engine.spaces and may_pin(engine.pid) for engine in self.node.engines.values()
        )

    def _memory_made(self, kind: str, number: int, file: SharedFile) -> None:
        if self._prefault is not None and kind in ("segment", "part"):
            self._prefault.submit(number, file)
        if self._server is not None and kind != "part":
            self._server.made(kind, number, file)

    def _memory_dropped(self, kind: str, number: int) -> None:
        if self._prefault is not None and kind in ("segment", "part"):
            self._prefault.cancel(number)
        if self._server is not None and kind != "part":
            self._server.dropped(kind, number)


def serve(settings: Settings, handover: Handover | None = None) -> int:
    """Run a data plane in this process until SIGTERM or SIGINT; the exit code."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:  # every engine and every segment takes a few descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    plane = DataPlane(settings, handover=handover)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: plane.stop())
    plane.run()
    return 0


def _collect_young() -> None:
    gc.collect(1)


def _prefault(settings: Settings) -> Prefault | None:
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
        effect="nothing is taken ahead for a while; the pool is served as before",
    )


def _is_tcp(url: str) -> bool:
    """Sockets in the file system are guarded by its modes."""
    return url.startswith("tcp://")


def _make_parent(url: str) -> None:
    if url.startswith("ipc://"):
        Path(url.removeprefix("ipc://")).parent.mkdir(parents=True, exist_ok=True, mode=0o700)

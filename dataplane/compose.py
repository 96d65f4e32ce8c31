"""The composition root of the data plane: the only place where its objects are made and wired."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import structlog
import zmq

from dataplane.core.leases import LeaseTable
from dataplane.core.node import Node, NodeOptions
from dataplane.core.ports import Fence
from dataplane.eviction.lru import Lru
from dataplane.observe.bus import Bus
from dataplane.observe.log import log_event
from dataplane.protocol import barrier
from dataplane.protocol.events import NodeStarted, NodeStopping
from dataplane.protocol.layout import H_CLOSED
from dataplane.settings import Settings
from dataplane.tiers.memory import NodeMemory, SharedFile
from dataplane.tiers.prefault import Prefault
from dataplane.transport.control import ControlServer, Introduction
from dataplane.transport.engine import EngineServer
from dataplane.transport.loop import Loop
from dataplane.transport.publisher import Publisher

COLLECT_INTERVAL_S = 10.0

log = structlog.stdlib.get_logger()


class StateInUse(Exception):
    """Another data plane uses this state directory."""


def steady_clock() -> Callable[[], float]:
    """Unix seconds that never step back: the wall clock at start, advanced by the monotonic one."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


class DataPlane:
    """One running data plane. `run` serves until `stop`."""

    def __init__(self, settings: Settings, leases: Callable[[Fence], LeaseTable] = LeaseTable) -> None:
        barrier.check_machine()
        state = Path(settings.common.state_dir)
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock_fd = _lock_state(state)
        self.clock = steady_clock()
        self._endpoints = (settings.common.control_url, settings.common.events_url)
        self._loop = Loop()
        self._bus = Bus()
        membarrier = barrier.register()
        if not membarrier:
            log.warning(
                "membarrier.missing", effect="leases go by message: slower lookups, nothing else changes"
            )
        self._prefault = Prefault(_prefault_failed) if settings.table.prefault else None
        self._memory = NodeMemory(settings.max_blocks, self._memory_made, self._memory_dropped)
        options = NodeOptions(
            name=settings.table.node or _node_name(state),
            epoch=secrets.token_hex(8),
            capacity_bytes=settings.pool_bytes // 4096 * 4096,
            segment_bytes=settings.table.segment_bytes,
            reservation_ttl_s=settings.table.reservation_ttl_s,
            pin_budget_bytes=int(settings.pool_bytes * settings.table.pin_budget_ratio),
            max_clients=settings.table.max_clients,
        )
        self._memory.index.format(int(options.epoch, 16), os.getpid())
        fence = barrier.fence if membarrier else (lambda: None)
        self.node = Node(options, self._memory.index, self._memory, leases(fence), Lru, self.clock())
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        _make_parent(settings.common.events_url)
        self._publisher = Publisher(self._context, settings.common.events_url)
        self._server = EngineServer(
            self._loop,
            self.node,
            self._memory,
            settings.common.engine_socket,
            frozenset(settings.table.allowed_uids),
            membarrier,
            self.clock,
        )
        self._control = ControlServer(
            self._context,
            settings.common.control_url,
            self.node,
            Introduction(os.getpid(), settings.common.engine_socket, self._publisher.url),
            lambda: self._publisher.seq,
            self.clock,
        )
        self._loop.register_zmq(self._control.socket, self._control.on_readable)
        self._bus.subscribe(log_event)
        self._bus.subscribe(self._publisher)
        self._loop.every(settings.table.tick_s, self._tick)
        self._loop.every(settings.table.stats_interval_s, self._publish_stats)
        # A full collection walks every block of the pool: tens of milliseconds in which nobody is served. Blocks leave
        # no cycles behind, so only young objects are collected, and on a timer.
        gc.disable()
        self._loop.every(COLLECT_INTERVAL_S, _collect_young)

    def run(self) -> None:
        """Serve until `stop`, then leave nothing behind."""
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

    def stop(self) -> None:
        """End `run` soon; safe in a signal handler."""
        self._loop.stop()

    def close(self) -> None:
        self._memory.index.header[H_CLOSED] = 1
        if self._prefault is not None:
            self._prefault.stop()
        self._server.close()
        self._control.close()
        self._publisher.close()
        self._context.term()
        for url in self._endpoints:
            if url.startswith("ipc://"):
                Path(url.removeprefix("ipc://")).unlink(missing_ok=True)  # libzmq leaves it
        self._loop.close()
        self._memory.close()
        os.close(self._lock_fd)

    def _tick(self) -> None:
        self.node.tick(self.clock())
        self._bus.publish(self.node.take_events())
        self._bus.deliver()

    def _publish_stats(self) -> None:
        self.node.emit(self.node.stats(self.clock()))

    def _memory_made(self, kind: str, number: int, file: SharedFile) -> None:
        if self._prefault is not None and kind == "segment":
            self._prefault.submit(number, file)
        self._server.memory_made(kind, number, file)

    def _memory_dropped(self, kind: str, number: int) -> None:
        if self._prefault is not None and kind == "segment":
            self._prefault.cancel(number)
        self._server.memory_dropped(kind, number)


def serve(settings: Settings) -> int:
    """Run a data plane in this process until SIGTERM or SIGINT; the exit code."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:  # every engine and every segment takes a few descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    plane = DataPlane(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: plane.stop())
    plane.run()
    return 0


def _collect_young() -> None:
    gc.collect(1)


def _prefault_failed(name: str, error: OSError) -> None:
    log.warning("prefault.failed", memory=name, error=error.strerror)


def _make_parent(url: str) -> None:
    if url.startswith("ipc://"):
        Path(url.removeprefix("ipc://")).parent.mkdir(parents=True, exist_ok=True, mode=0o700)


def _lock_state(state: Path) -> int:
    fd = os.open(state / "dataplane.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise StateInUse(f"another data plane uses {state}") from None
    return fd


def _node_name(state: Path) -> str:
    """This node's name, made at the first start and kept."""
    path = state / "node"
    if path.exists():
        return path.read_text(encoding="utf-8").strip()
    name = f"{socket.gethostname()[:48]}-{secrets.token_hex(2)}"
    path.write_text(name + "\n", encoding="utf-8")
    return name

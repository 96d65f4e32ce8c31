"""The LMCache gateway's life: it continues with what the previous data plane left, serves, and hands over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from dataplane.copies.copying import CopyThreads
from dataplane.copies.devices import Devices
from dataplane.copies.gpu_copies import GpuCopyService
from dataplane.core.inprocess import InProcess
from dataplane.gateways.lmcache.dispatcher import Dispatcher
from dataplane.gateways.lmcache.handlers.chains import OnHashed, RequestChains
from dataplane.gateways.lmcache.handlers.clients import GatewayClients
from dataplane.gateways.lmcache.handlers.counters import Counters
from dataplane.gateways.lmcache.handlers.operations import GatewayHandlers
from dataplane.gateways.lmcache.handlers.parts import GatewayParts
from dataplane.gateways.lmcache.handlers.pending_requests import PendingRequests
from dataplane.gateways.lmcache.handlers.report import gateway_stats
from dataplane.gateways.lmcache.handlers.sessions import LookupSessions, delete_results, load_results, save_results
from dataplane.gateways.lmcache.wire.frames import MAX_REQUEST_FRAMES
from dataplane.gateways.lmcache.workers.device_opens import DeviceOpens
from dataplane.gateways.lmcache.workers.digests import Digests
from dataplane.gateways.lmcache.workers.instances import Instances, Timeouts
from dataplane.gateways.lmcache.workers.registry import Registry
from dataplane.gateways.lmcache.zmtp.connections import ZmtpPeer, ZmtpServer
from dataplane.gateways.lmcache.zmtp.processes import ProcessWatch
from dataplane.gateways.lmcache.zmtp.sockets import InheritedSocket, SocketStore
from dataplane.io.loop import Loop
from dataplane.memory.named import NamedFile
from dataplane.observe.trace import RequestSpans
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.events import LeaseBroken
from dataplane.protocol.spaces import LMCACHE
from dataplane.protocol.stats.gateways import GatewayStats

TICK_S = 1.0
UNREGISTERED_S = 15.0
"""How long the leases of the previous data plane's schedulers are kept after a restart, so that their workers can read
the blocks."""
log = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Settings of a gateway."""

    url: str
    """Address at which it listens."""
    folder: Path
    """Folder that stores registrations."""
    allow_clear: bool
    timeouts: Timeouts


class LMCacheServer:
    """Serve LMCache clients on one TCP port, from the sockets of the previous data plane to those for the next."""

    def __init__(
        self,
        options: GatewayOptions,
        loop: Loop,
        cache: InProcess,
        pool: NamedFile,
        expect_worker: Callable[[], None],
        clock: Callable[[], float],
        devices: Devices,
        holder: SocketStore,
        *,
        inherited: Sequence[InheritedSocket],
        gpu_copies: GpuCopyService,
        request_spans: RequestSpans,
        on_hashed: OnHashed | None,
    ) -> None:
        """Restore the previous data plane's state and start to listen. Raise OSError if the port is not available.

        `expect_worker` prepares `pool` for a worker that registers; `holder` and `inherited` are the arguments of
        `ZmtpServer`, `on_hashed` that of `RequestChains`.
        """
        folder = options.folder
        self._clock = clock
        self._cache = cache
        self._folder = folder
        self.counters = Counters()
        self._clients = GatewayClients()
        self._pending_requests = PendingRequests(folder)
        self.sessions = LookupSessions(cache, self.counters, clock, load_results(folder))
        self._watch = ProcessWatch(loop)
        self._copying = CopyThreads(loop)
        self.registry = Registry(folder)
        self.instances = Instances(
            self.registry,
            cache,
            pool.identity,
            self._watch,
            clock,
            options.timeouts,
            devices,
            DeviceOpens(self._copying, devices),
        )
        self._parts = GatewayParts(
            cache,
            pool,
            expect_worker,
            self.registry,
            self.instances,
            self.sessions,
            RequestChains(on_hashed),
            self._copying,
            self.counters,
            clock,
            loop.once,
            gpu_copies,
            options.allow_clear,
        )
        self._operations = GatewayHandlers(self._parts)
        dispatcher = Dispatcher(self._parts, self._operations, self._clients, self._pending_requests, request_spans)
        self.digests = Digests(self.registry, self.instances, self._copying)
        self.connections = ZmtpServer(
            loop, options.url, dispatcher.dispatch, self._closed, MAX_REQUEST_FRAMES, holder, inherited
        )
        delete_results(folder)
        self.url = self.connections.url
        self._begun_at = clock()
        self._unregistered = self._restore(self._begun_at)
        self._answer_inherited()
        loop.every(TICK_S, self.tick)

    def _restore(self, now: float) -> set[int]:
        """Restore the workers and the look-ups of the previous data plane. Return the clients of its engines that
        nothing continues."""
        unregistered = {engine.client for engine in self._cache.lost(LMCACHE)}
        self.instances.restore(now)
        unregistered -= {instance.client for instance in self.registry}
        lookups = self._operations.lookups
        lookups.inherit()
        try:
            lookups.attach_common(now)
        except ProtocolError:
            # Restarts left too many engines without a known process, which share one limit.
            self._end_unregistered(unregistered, now)
            unregistered = set()
            try:
                lookups.attach_common(now)
            except ProtocolError as error:  # the node is draining, or full
                log.warning("lmcache.no_common_engine", reason=error.message)
        return unregistered

    # ---- requests

    def _answer_inherited(self) -> None:
        """Send failure answers for the copies of the previous data plane, which ended with its process."""
        for head in self._pending_requests.inherited:
            peer = self.connections.numbered(head.connection)
            if peer is not None:
                log.warning("lmcache.copy_ended", reason="the previous data plane was killed during the copy")
                peer.answer([head.uid, head.operation, *([head.failure] if head.failure else [])])
                peer.flush()
        self._pending_requests.settled()

    def stats(self, now: float) -> GatewayStats:
        """Return the gateway's current state and its totals."""
        return gateway_stats(self._parts, self._clients, self.url, len(self.connections), now)

    # ---- connections and time

    def _closed(self, connection: ZmtpPeer) -> None:
        now = self._clock()
        self._clients.closed(connection)
        self._operations.lookups.disconnected(connection.identity, now)
        self.instances.disconnected(connection.identity, now)

    def tick(self) -> None:
        """Do the periodic work. Called every second."""
        now = self._clock()
        self.connections.tick()
        self.sessions.expire(now)
        for (client, reason), blocks in self.sessions.take_broken().items():
            self._cache.node.emit(LeaseBroken(now, client, reason, blocks))
        self.instances.reap(now)
        if now - self._begun_at > UNREGISTERED_S:
            self.sessions.forget_handed_over()
            if self._unregistered:
                self._end_unregistered(self._unregistered, now)
                self._unregistered = set()

    def _end_unregistered(self, clients: Iterable[int], now: float) -> None:
        """Detach the schedulers of the previous data plane. By now, their workers hold the blocks themselves."""
        self._operations.lookups.forget_inherited()
        for client in clients:
            engine = self._cache.node.engines.get(client)
            if engine is not None and not engine.expired:  # an engine that was writing may still be writing
                self._cache.node.detach_cleanly(client, now)

    def close(self, *, hand_over: bool = False) -> None:
        """Stop serving. The next data plane continues with the registrations and, with `hand_over`, with the
        connections."""
        self._copying.close()
        if hand_over:
            save_results(self._folder, self.sessions.not_fetched())
        self.connections.close(hand_over=hand_over)
        self._watch.close()
        self.instances.close()
        self._pending_requests.close()

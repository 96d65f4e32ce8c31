"""The LMCache server: receive requests of LMCache clients and answer each one. No peer message makes it raise.

The protocol has no authentication: any client that can reach the socket may use it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from dataplane.base import tracing
from dataplane.copies.copying import CopyThreads
from dataplane.copies.devices import Devices
from dataplane.copies.gpu_copies import GpuCopyService
from dataplane.core.inprocess import InProcess
from dataplane.gateways.lmcache.failures import OperationFailed, Reason
from dataplane.gateways.lmcache.handlers.chains import OnHashed, RequestChains, TokenChain
from dataplane.gateways.lmcache.handlers.clients import GatewayClients
from dataplane.gateways.lmcache.handlers.counters import UNKNOWN, Counters
from dataplane.gateways.lmcache.handlers.operations import GatewayHandlers
from dataplane.gateways.lmcache.handlers.parts import GatewayParts
from dataplane.gateways.lmcache.handlers.pending_requests import PendingHead, PendingRequests
from dataplane.gateways.lmcache.handlers.report import gateway_stats
from dataplane.gateways.lmcache.handlers.requests import LATER, GatewayRequest, Result
from dataplane.gateways.lmcache.handlers.sessions import LeasedLookup, LookupSessions, save_results, take_results
from dataplane.gateways.lmcache.wire.frames import MAX_REQUEST_FRAMES, RawRequest, number_or_name, split
from dataplane.gateways.lmcache.wire.messages import Key
from dataplane.gateways.lmcache.wire.operations import DecodedRequest, RequestDecoder
from dataplane.gateways.lmcache.workers.device_opens import DeviceOpens
from dataplane.gateways.lmcache.workers.digests import Digests
from dataplane.gateways.lmcache.workers.instances import Instances, Timeouts
from dataplane.gateways.lmcache.workers.named_pool import NamedPool
from dataplane.gateways.lmcache.workers.registrations import Registrations
from dataplane.gateways.lmcache.zmtp.connections import ZmtpPeer, ZmtpServer
from dataplane.gateways.lmcache.zmtp.processes import ProcessWatch
from dataplane.gateways.lmcache.zmtp.sockets import InheritedSocket, SocketStore
from dataplane.io.loop import Loop
from dataplane.observe.trace import RequestSpans
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.events import LeaseBroken
from dataplane.protocol.keys import TokenError
from dataplane.protocol.stats.gateways import GatewayStats

TICK_S = 1.0
UNREGISTERED_S = 15.0
"""How long the leases of the previous data plane's schedulers are kept after a restart, so that their workers can read
the blocks."""
SETTLE_BLOCKS = 32
"""Number of used blocks at which their use is processed between two requests. A tick of the node would process hundreds
at once, and delay one request in a hundred."""

log = structlog.stdlib.get_logger()


class LMCacheServer:
    """Serve LMCache clients on one TCP port."""

    def __init__(
        self,
        loop: Loop,
        url: str,
        cache: InProcess,
        pool: NamedPool,
        memory: int,
        folder: Path,
        clock: Callable[[], float],
        *,
        allow_clear: bool,
        timeouts: Timeouts,
        devices: Devices,
        holder: SocketStore | None = None,
        inherited: Sequence[InheritedSocket] = (),
        gpu_copies: GpuCopyService | None = None,
        request_spans: RequestSpans | None = None,
        on_hashed: OnHashed | None = None,
    ) -> None:
        """Restore the previous data plane's state and start to listen. Raise OSError if the port is not available.

        `memory` is the identity of the core's memory; `folder` stores registrations; `holder` and `inherited` are the
        arguments of `ZmtpServer`.
        """
        self._clock = clock
        self._loop = loop
        self._request_spans = request_spans or RequestSpans()
        self._cache = cache
        self._settling = False
        self.counters = Counters()
        self._clients = GatewayClients()
        self.connections = ZmtpServer(loop, url, self._on_message, self._closed, MAX_REQUEST_FRAMES, holder, inherited)
        self.url = self.connections.url
        self._unanswered = PendingRequests(folder)
        self.chains = RequestChains(on_hashed)
        self._folder = folder
        self.sessions = LookupSessions(
            cache.release,
            cache.node.pool.lookups,
            partial(_count_lookup, cache, self.counters, clock),
            handed_over=take_results(folder),
        )
        self._watch = ProcessWatch(loop)
        self._copying = CopyThreads(loop)
        self.instances = Instances(
            cache,
            memory,
            pool.identity,
            Registrations(folder),
            self._watch,
            clock,
            timeouts,
            devices,
            DeviceOpens(self._copying, devices),
        )
        self._parts = GatewayParts(
            cache,
            pool,
            self.instances,
            self.sessions,
            self.chains,
            self._copying,
            self.counters,
            clock,
            loop.once,
            gpu_copies,
            allow_clear,
        )
        self._operations = GatewayHandlers(self._parts)
        self.digests = Digests(self.instances, self._copying)
        self._unregistered = {engine.client for engine in cache.lost("lmcache")}
        self._begun_at = clock()
        self.instances.restore(self._begun_at)
        self._unregistered -= {instance.client for instance in self.instances}
        self._operations.lookups.inherit()
        try:
            self._operations.lookups.attach_common(self._begun_at)
        except ProtocolError:
            # Restarts left too many engines without a known process, which share one limit.
            self._end_unregistered(self._begun_at)
            try:
                self._operations.lookups.attach_common(self._begun_at)
            except ProtocolError as error:  # the node is draining, or full
                log.warning("lmcache.no_common_engine", reason=error.message)
        self._answer_left()
        loop.every(TICK_S, self.tick)

    # ---- requests

    def _on_message(self, peer: ZmtpPeer, frames: list[bytes]) -> None:
        """Handle a message, and answer it at once or later."""
        began = time.perf_counter()
        evicted = self._cache.node.pool.totals.evicted_blocks if tracing.on() else 0
        raw = split(frames)
        if raw is None:
            return
        now = self._clock()
        client = self._clients.of(peer)
        (operation, arguments, error), same = self._decoded(raw, client.decoder)
        if operation is None:
            self.counters.of(UNKNOWN).requests += 1
            name = number_or_name(raw.operation)
            shown = raw.operation if name is None else name
            failed = OperationFailed(Reason.UNKNOWN_OPERATION, f"unknown operation {shown!r}")
            self.counters.failed(UNKNOWN, failed.reason, str(failed), now)
            client.note_failed(UNKNOWN, failed)
            client.note_unknown(peer, str(failed))
            peer.answer(raw.answer(None))
            return
        tally = self.counters.of(operation.name)
        tally.requests += 1
        request = GatewayRequest(peer, client, operation, now, same, raw, began, self._answer_later)
        if error is not None:
            result: Result = self._parts.failed(request, OperationFailed(Reason.BAD_ARGUMENTS, error))
            client.note_unknown(peer, f"{operation.name}: {error}")
        else:
            client.note_key(peer, raw, arguments)
            result = self._result(request, arguments)
            if self._cache.unsettled >= SETTLE_BLOCKS and not self._settling:
                self._settling = True
                self._loop.once(0.0, self._settle)  # after the answers are sent
        if result is LATER:
            raw.arguments.clear()  # megabytes that are not needed while the copy waits
            if not request.answered:
                request.slot = self._unanswered.begin(
                    PendingHead(peer.number, raw.uid, raw.operation, operation.failure)
                )
        else:
            peer.answer(raw.answer(result))
            seconds = time.perf_counter() - began
            tally.took(seconds)
            if tracing.on():
                evicted = self._cache.node.pool.totals.evicted_blocks - evicted
                self._request_spans.gateway_request(operation.name, seconds, evicted)

    def _result(self, request: GatewayRequest, arguments: list[Any]) -> Result:
        """Return the result of an operation, or its failure answer. Never raise."""
        try:
            return self._operations.handle(request, arguments)
        except (OperationFailed, ProtocolError, TokenError) as error:
            return self._parts.failed(request, error)
        except Exception as error:  # without an answer, the client would wait for minutes
            failed = OperationFailed(Reason.INTERNAL, f"{type(error).__name__}: {error}")
            name = request.operation.name
            if not self.counters.of(name).failures[Reason.INTERNAL]:  # the first time, with its trace
                log.exception("lmcache.internal", operation=name)
            return self._parts.failed(request, failed)

    def _decoded(self, raw: RawRequest, decoder: RequestDecoder) -> tuple[DecodedRequest, TokenChain | None]:
        """Decode a request. Return it with the chain of its key's tokens if they were left out, else with None."""
        if not raw.arguments:
            return decoder.decode(raw), None
        first, same = self.chains.shortened(raw.arguments[0])
        decoded = decoder.decode(raw._replace(arguments=[first, *raw.arguments[1:]]))
        if same is not None and not _left_out(decoded.arguments):
            same = None
        return decoded, same

    def _settle(self) -> None:
        self._settling = False
        self._cache.settle(self._clock())

    # ---- answers

    def _answer_later(self, request: GatewayRequest, result: bytes | None) -> None:
        peer, request.answered = request.peer, True
        if peer.open:
            peer.answer(request.request.answer(result))
            self.connections.flush(peer)
        else:
            self.counters.unanswered += 1
        self._unanswered.end(request.slot)
        seconds = time.perf_counter() - request.began
        self.counters.of(request.operation.name).took(seconds)
        if tracing.on():
            self._request_spans.gateway_request(request.operation.name, seconds)

    def _answer_left(self) -> None:
        """Send failure answers for the copies of the previous data plane, which ended with its process."""
        for head in self._unanswered.left:
            peer = self.connections.numbered(head.connection)
            if peer is not None:
                log.warning("lmcache.copy_ended", reason="the previous data plane was killed during the copy")
                peer.answer([head.uid, head.operation, *([head.failure] if head.failure else [])])
                self.connections.flush(peer)
        self._unanswered.settled()

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
                self._end_unregistered(now)

    def _end_unregistered(self, now: float) -> None:
        """Detach the schedulers of the previous data plane. By now, their workers hold the blocks themselves."""
        self._operations.lookups.forget_inherited()
        for client in self._unregistered:
            engine = self._cache.node.engines.get(client)
            if engine is not None and not engine.expired:  # an engine that was writing may still be writing
                self._cache.node.detach_cleanly(client, now)
        self._unregistered.clear()

    def close(self, *, hand_over: bool = False) -> None:
        """Stop serving. The next data plane continues with the registrations and, with `hand_over`, with the
        connections."""
        self._copying.close()
        if hand_over:
            save_results(self._folder, self.sessions.not_fetched())
        self.connections.close(hand_over=hand_over)
        self._watch.close()
        self.instances.close()
        self._unanswered.close()


def _count_lookup(cache: InProcess, counters: Counters, clock: Callable[[], float], lookup: LeasedLookup) -> None:
    counters.moved.looked_up(lookup.requested, lookup.used_hits, max(0, lookup.used - lookup.in_memory))
    cache.looked_up(lookup.tenant, lookup.space, lookup.requested, lookup.used_hits, clock())


def _left_out(arguments: Sequence[Any]) -> bool:
    return bool(arguments) and isinstance(arguments[0], Key) and bytes(arguments[0].token_ids) == b"\x90"

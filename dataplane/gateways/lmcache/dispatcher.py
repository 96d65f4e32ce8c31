"""Answer requests of LMCache clients: decode each one, handle it, and answer it at once or later. No peer message makes
it raise.

The protocol has no authentication: any client that can reach the socket may use it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog

from dataplane.base import tracing
from dataplane.gateways.lmcache.failures import OperationFailed, Reason
from dataplane.gateways.lmcache.handlers.chains import TokenChain
from dataplane.gateways.lmcache.handlers.clients import GatewayClients
from dataplane.gateways.lmcache.handlers.counters import UNKNOWN
from dataplane.gateways.lmcache.handlers.operations import GatewayHandlers
from dataplane.gateways.lmcache.handlers.parts import GatewayParts
from dataplane.gateways.lmcache.handlers.pending_requests import PendingHead, PendingRequests
from dataplane.gateways.lmcache.handlers.requests import LATER, GatewayRequest, MakeResult, Result
from dataplane.gateways.lmcache.wire.frames import RawRequest, number_or_name, split
from dataplane.gateways.lmcache.wire.messages import Key
from dataplane.gateways.lmcache.wire.operations import DecodedRequest, RequestDecoder
from dataplane.gateways.lmcache.zmtp.connections import ZmtpPeer
from dataplane.observe.trace import RequestSpans
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.keys import TokenError

SETTLE_BLOCKS = 32
"""Number of used blocks at which their use is processed between two requests. A tick of the node would process hundreds
at once, and delay one request in a hundred."""

log = structlog.stdlib.get_logger()


class Dispatcher:
    """Passes each request to its handler and returns the answer to its client."""

    def __init__(
        self,
        parts: GatewayParts,
        handlers: GatewayHandlers,
        clients: GatewayClients,
        pending_requests: PendingRequests,
        request_spans: RequestSpans,
    ) -> None:
        self._parts = parts
        self._cache = parts.cache
        self._counters = parts.counters
        self._handlers = handlers
        self._clients = clients
        self._pending_requests = pending_requests
        self._request_spans = request_spans
        self._settling = False

    def dispatch(self, peer: ZmtpPeer, frames: list[bytes]) -> None:
        """Handle a message, and answer it at once or later."""
        began = time.perf_counter()
        evicted_before = self._cache.totals.evicted_blocks
        raw = split(frames)
        if raw is None:
            return
        now = self._parts.clock()
        client = self._clients.of(peer)
        (operation, arguments, error), same = self._decoded(raw, client.decoder)
        if operation is None:
            self._counters.of(UNKNOWN).requests += 1
            name = number_or_name(raw.operation)
            shown = raw.operation if name is None else name
            failed = OperationFailed(Reason.UNKNOWN_OPERATION, f"unknown operation {shown!r}")
            self._counters.failed(UNKNOWN, failed.reason, str(failed), now)
            client.note_failed(UNKNOWN, failed)
            client.note_unknown(peer, str(failed))
            peer.answer(raw.answer(None))
            return
        self._counters.of(operation.name).requests += 1
        request = GatewayRequest(peer, client, operation, now, same, raw, began, self._finish)
        if error is not None:
            result: Result = self._parts.failed(request, OperationFailed(Reason.BAD_ARGUMENTS, error))
            client.note_unknown(peer, f"{operation.name}: {error}")
        else:
            client.note_arguments(peer, raw, arguments)
            result = self._result(request, partial(self._handlers.handle, request, arguments))
            if self._cache.unsettled >= SETTLE_BLOCKS and not self._settling:
                self._settling = True
                self._parts.later(0.0, self._settle)  # after the answers are sent
        if result is LATER:
            raw.arguments.clear()  # megabytes that are not needed while the copy waits
            if not request.answered:
                request.slot = self._pending_requests.begin(
                    PendingHead(peer.number, raw.uid, raw.operation, operation.failure)
                )
        else:
            peer.answer(raw.answer(result))
            self._took(request, self._cache.totals.evicted_blocks - evicted_before)

    def _result(self, request: GatewayRequest, make_result: MakeResult) -> Result:
        """Return the result of an operation, or its failure answer. Never raise."""
        try:
            return make_result()
        except (OperationFailed, ProtocolError, TokenError) as error:
            return self._parts.failed(request, error)
        except Exception as error:  # without an answer, the client would wait for minutes
            failed = OperationFailed(Reason.INTERNAL, f"{type(error).__name__}: {error}")
            name = request.operation.name
            if not self._counters.of(name).failures.get(Reason.INTERNAL):  # the first time, with its trace
                log.exception("lmcache.internal", operation=name)
            return self._parts.failed(request, failed)

    def _decoded(self, raw: RawRequest, decoder: RequestDecoder) -> tuple[DecodedRequest, TokenChain | None]:
        """Decode a request. Return it with the chain of its key's tokens if they were left out, else with None."""
        if not raw.arguments:
            return decoder.decode(raw), None
        first, same = self._parts.chains.shortened(raw.arguments[0])
        decoded = decoder.decode(raw._replace(arguments=[first, *raw.arguments[1:]]))
        if same is not None and not _left_out(decoded.arguments):
            same = None
        return decoded, same

    def _settle(self) -> None:
        self._settling = False
        self._cache.settle(self._parts.clock())

    def _finish(self, request: GatewayRequest, make_result: MakeResult) -> None:
        """Answer a deferred operation, unless its result is still to follow."""
        request.now = self._parts.clock()
        result = self._result(request, make_result)
        if result is LATER:
            return
        peer, request.answered = request.peer, True
        if peer.open:
            peer.answer(request.raw.answer(result))
            peer.flush()
        else:
            self._counters.unanswered += 1
        self._pending_requests.end(request.slot)
        self._took(request)

    def _took(self, request: GatewayRequest, evicted: int = 0) -> None:
        """Count the duration of an answered request, and make a span of it."""
        name, seconds = request.operation.name, time.perf_counter() - request.began
        self._counters.took(name, seconds)
        if tracing.on():
            self._request_spans.gateway_request(name, seconds, evicted)


def _left_out(arguments: Sequence[Any]) -> bool:
    return bool(arguments) and isinstance(arguments[0], Key) and bytes(arguments[0].token_ids) == b"\x90"

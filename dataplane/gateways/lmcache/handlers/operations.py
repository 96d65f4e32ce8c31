"""The handlers of all operations of the protocol. The handler of an operation is the method of its name.

A handler takes the decoded arguments and returns the encoded result, None for an answer without a result frame, or
LATER if `GatewayRequest.finish` follows. Failures raise `OperationFailed` or `ProtocolError`; the server counts them
and sends the operation's failure answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from dataplane.gateways.lmcache.failures import OperationFailed, Reason
from dataplane.gateways.lmcache.handlers.copies import CopyHandlers
from dataplane.gateways.lmcache.handlers.lookups import LookupHandlers
from dataplane.gateways.lmcache.handlers.parts import GatewayParts
from dataplane.gateways.lmcache.handlers.requests import LATER, GatewayRequest, Result
from dataplane.gateways.lmcache.wire.messages import FALSE, YES, EngineContext, Group, Hints, PoolReply, Wrapper, encode
from dataplane.gateways.lmcache.wire.operations import OPERATIONS, Operation
from dataplane.gateways.lmcache.wire.tokens import CHUNK_TOKENS
from dataplane.gateways.lmcache.workers.registrations import DeviceContext, RegisteredWorker
from dataplane.protocol.spaces import LMCACHE

Method = Callable[..., Result]


class GatewayHandlers:
    """Handlers by operation. Registration and simple operations are here; look-ups and copies have their own."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts
        self.lookups = LookupHandlers(parts)
        groups = (self, self.lookups, CopyHandlers(parts))
        self._methods = {operation: self._method(operation, groups) for operation in OPERATIONS}

    def _method(self, operation: Operation, groups: Sequence[object]) -> Method:
        """Return the handler of an operation: the method of its name."""
        if not operation.served:
            return self._unserved
        (method,) = (getattr(group, operation.name) for group in groups if hasattr(group, operation.name))
        return cast(Method, method)

    def handle(self, request: GatewayRequest, arguments: list[Any]) -> Result:
        """Return the result of a request. Raise OperationFailed, ProtocolError or TokenError on failure."""
        return self._methods[request.operation](request, *arguments)

    def get_chunk_size(self, request: GatewayRequest) -> Result:
        return encode(CHUNK_TOKENS)

    def negotiate_chunk_size(self, request: GatewayRequest, alignment: int) -> Result:
        if alignment <= 0:
            raise OperationFailed(
                Reason.BAD_ARGUMENTS, f"required_chunk_alignment: expected at least 1, got {alignment}"
            )
        if CHUNK_TOKENS % alignment:
            raise OperationFailed(
                Reason.UNSUPPORTED, f"chunks of {CHUNK_TOKENS} tokens, which blocks of {alignment} tokens do not fill"
            )
        return encode(CHUNK_TOKENS)

    def noop(self, request: GatewayRequest) -> Result:
        return encode("OK")

    def get_experimental(self, request: GatewayRequest) -> Result:
        return encode([])

    def ping(self, request: GatewayRequest, instance: int | None = None) -> Result:
        # A worker that failed to open the memory is asked to register again once the memory can be opened.
        usable = not self._parts.pool.problem
        if instance is not None and not self._parts.instances.ping(instance, request.peer, request.now, usable=usable):
            return FALSE
        return YES

    def report_block_allocation(self, request: GatewayRequest, *arguments: object) -> Result:
        return None

    unregister_q_cache = report_block_allocation

    def _unserved(self, request: GatewayRequest, *arguments: object) -> Result:
        raise OperationFailed(Reason.UNSUPPORTED, "this gateway does not serve the operation")

    def clear(self, request: GatewayRequest, force: bool = False) -> Result:
        if not self._parts.allow_clear:
            raise OperationFailed(Reason.NOT_ALLOWED, "dataplane.lmcache_allow_clear is off")
        self._parts.cache.node.clear_gateway(LMCACHE, request.now, force=bool(force))
        self._parts.cache.node.when_recorded(partial(request.finish, lambda: None))
        return LATER

    # ---- registration

    def register_kv_cache_engine_driven_context(self, request: GatewayRequest, context: EngineContext) -> Result:
        self._parts.pool.look()
        if self._parts.pool.problem:
            raise OperationFailed(Reason.UNSUPPORTED, self._parts.pool.problem)
        self._parts.expect_worker()
        registered = RegisteredWorker(context.instance_id, 0, 0, 0, 0, engine=context)
        self._parts.instances.register(registered, request.peer, request.now)
        return encode(PoolReply(self._parts.pool.name, self._parts.pool.nbytes))

    def register_kv_cache(
        self,
        request: GatewayRequest,
        instance: int,
        wrappers: list[Wrapper],
        model: str,
        world_size: int,
        engine_type: str,
        hints: Hints | None,
        groups: list[Group],
    ) -> Result:
        bodies = [wrapper.body for wrapper in wrappers]
        device = DeviceContext(bodies, model, world_size, engine_type, hints, groups)
        registered = RegisteredWorker(instance, 0, 0, 0, 0, device=device)
        self._parts.instances.register_device(registered, request.peer, request.finish)
        return LATER

    def unregister_kv_cache(self, request: GatewayRequest, instance: int) -> Result:
        self._parts.instances.unregister(instance, request.peer)
        return None

    unregister_kv_cache_engine_driven_context = unregister_kv_cache

"""The handlers of all operations of the protocol, by operation name.

A handler takes the decoded arguments and returns the encoded result, None for an answer without a result frame, or
LATER if the answer follows a copy. Failures raise `OperationFailed` or `ProtocolError`; the server counts them and
sends the operation's failure answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dataplane.copies.copying import CopyThreads
from dataplane.copies.gpu_copies import GpuCopyService
from dataplane.core.inprocess import InProcess
from dataplane.gateways.lmcache.handlers.chains import CHUNK_TOKENS, RequestChains
from dataplane.gateways.lmcache.handlers.client_copies import ClientCopyHandlers
from dataplane.gateways.lmcache.handlers.counters import BytesMoved
from dataplane.gateways.lmcache.handlers.driven import DrivenCopyHandlers
from dataplane.gateways.lmcache.handlers.failures import FALSE, YES, OperationFailed, Reason
from dataplane.gateways.lmcache.handlers.instances import Instances
from dataplane.gateways.lmcache.handlers.lookups import LookupHandlers
from dataplane.gateways.lmcache.handlers.named_pool import NamedPool
from dataplane.gateways.lmcache.handlers.registrations import DeviceContext, RegisteredWorker
from dataplane.gateways.lmcache.handlers.sessions import LookupSessions
from dataplane.gateways.lmcache.handlers.tier_waits import Later
from dataplane.gateways.lmcache.readiness import PageReadiness
from dataplane.gateways.lmcache.wire.messages import UNSERVED, EngineContext, Group, Hints, Wrapper, encode
from dataplane.gateways.lmcache.wire.messages import PoolReply as PoolAnswer
from dataplane.gateways.lmcache.wire.requests import LATER, GatewayRequest, Result, chunks_of
from dataplane.protocol.spaces import LMCACHE

Method = Callable[..., Result]


class GatewayHandlers:
    """Handlers by operation. Registration and simple operations are here; look-ups and transfers have their own."""

    def __init__(
        self,
        cache: InProcess,
        pool: NamedPool,
        instances: Instances,
        sessions: LookupSessions,
        chains: RequestChains,
        copying: CopyThreads,
        moved: BytesMoved,
        clock: Callable[[], float],
        failed: Callable[[str, OperationFailed], None],
        later: Later,
        *,
        allow_clear: bool,
        gpu_copies: GpuCopyService | None,
    ) -> None:
        """Create the handlers. `failed` counts failures that occur after the handler of a request has returned;
        `later` calls a function on the loop after so many seconds."""
        self._cache = cache
        self._pool = pool
        self._instances = instances
        self._allow_clear = allow_clear
        self._failed = failed
        resolve = partial(chunks_of, chains, instances)
        self.lookups = lookups = LookupHandlers(cache, instances, sessions, chains, moved, clock, later)
        readiness = PageReadiness(cache, pool, copying, clock, failed)
        slots = ClientCopyHandlers(pool, sessions, resolve, moved, readiness)
        driven = DrivenCopyHandlers(
            pool, instances, sessions, resolve, moved, copying, clock, failed, gpu_copies, readiness
        )
        self.methods: dict[str, Method] = {
            "get_chunk_size": self._get_chunk_size,
            "get_experimental": self._get_experimental,
            "noop": self._noop,
            "ping": self._ping,
            "report_block_allocation": self._nothing,
            "clear": self._clear,
            "register_kv_cache_engine_driven_context": self._register_engine,
            "unregister_kv_cache_engine_driven_context": self._unregister,
            "register_kv_cache": self._register_device,
            "unregister_kv_cache": self._unregister,
            "register_q_cache": self._hidden_states,
            "unregister_q_cache": self._nothing,
            "store_q": self._hidden_states,
            "lookup": lookups.lookup,
            "query_prefetch_status": lookups.query_prefetch_status,
            "wait_prefetch_status": lookups.wait_prefetch_status,
            "free_lookup_locks": lookups.free_lookup_locks,
            "end_session": lookups.end_session,
            "prepare_store": slots.prepare_store,
            "commit_store": slots.commit_store,
            "prepare_retrieve": slots.prepare_retrieve,
            "commit_retrieve": slots.commit_retrieve,
            "store": driven.store,
            "retrieve": driven.retrieve,
            **dict.fromkeys(UNSERVED, self._unserved),
        }

    def _get_chunk_size(self, request: GatewayRequest) -> Result:
        return encode(CHUNK_TOKENS)

    def _noop(self, request: GatewayRequest) -> Result:
        return encode("OK")

    def _get_experimental(self, request: GatewayRequest) -> Result:
        return encode([])

    def _ping(self, request: GatewayRequest, instance: int | None = None) -> Result:
        # A worker that failed to open the memory is asked to register again once the memory can be opened.
        usable = not self._pool.problem
        if instance is not None and not self._instances.ping(
            instance, request.peer, request.now, usable=usable
        ):
            return FALSE
        return YES

    def _nothing(self, request: GatewayRequest, *arguments: object) -> Result:
        return None

    def _hidden_states(self, request: GatewayRequest, *arguments: object) -> Result:
        raise OperationFailed(Reason.UNSUPPORTED, "hidden states are not stored")

    def _unserved(self, request: GatewayRequest, *arguments: object) -> Result:
        raise OperationFailed(Reason.UNSUPPORTED, "this gateway does not serve the operation")

    def _clear(self, request: GatewayRequest, force: bool = False) -> Result:
        if not self._allow_clear:
            raise OperationFailed(Reason.NOT_ALLOWED, "dataplane.lmcache_allow_clear is off")
        self._cache.node.clear_gateway(LMCACHE, request.now, force=bool(force))
        self._cache.node.when_recorded(partial(request.reply, None))
        return LATER

    # ---- registration

    def _register_engine(self, request: GatewayRequest, context: EngineContext) -> Result:
        self._pool.look()
        if self._pool.problem:
            raise OperationFailed(Reason.UNSUPPORTED, self._pool.problem)
        self._pool.expect()
        registered = RegisteredWorker(context.instance_id, 0, 0, 0, 0, engine=context)
        self._instances.register(registered, request.peer, request.now)
        return encode(PoolAnswer(self._pool.name, self._pool.nbytes))

    def _register_device(
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

        def ended(failed: OperationFailed | None) -> None:
            if failed is not None:
                self._failed(request.operation, failed)
            request.reply(None)

        self._instances.register_device(
            RegisteredWorker(instance, 0, 0, 0, 0, device=device), request.peer, ended
        )
        return LATER

    def _unregister(self, request: GatewayRequest, instance: int) -> Result:
        self._instances.unregister(instance, request.peer, request.now)
        return None

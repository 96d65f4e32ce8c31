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
        *,
        allow_clear: bool,
        gpu_copies: GpuCopyService | None,
    ) -> None:
        """Create the handlers. `failed` counts failures that occur after the handler of a request has returned."""
        self._cache = cache
        self._pool = pool
        self._instances = instances
        self._allow_clear = allow_clear
        self._failed = failed
        resolve = partial(chunks_of, chains, instances)
        self.lookups = lookups = LookupHandlers(cache, instances, sessions, chains, moved)
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

    def _get_chunk_size(self, asked: GatewayRequest) -> Result:
        return encode(CHUNK_TOKENS)

    def _noop(self, asked: GatewayRequest) -> Result:
        return encode("OK")

    def _get_experimental(self, asked: GatewayRequest) -> Result:
        return encode([])

    def _ping(self, asked: GatewayRequest, instance: int | None = None) -> Result:
        # A worker that failed to open the memory is asked to register again once the memory can be opened.
        usable = not self._pool.problem
        if instance is not None and not self._instances.ping(instance, asked.peer, asked.now, usable=usable):
            return FALSE
        return YES

    def _nothing(self, asked: GatewayRequest, *arguments: object) -> Result:
        return None

    def _hidden_states(self, asked: GatewayRequest, *arguments: object) -> Result:
        raise OperationFailed(Reason.UNSUPPORTED, "hidden states are not stored")

    def _unserved(self, asked: GatewayRequest, *arguments: object) -> Result:
        raise OperationFailed(Reason.UNSUPPORTED, "this gateway does not serve the operation")

    def _clear(self, asked: GatewayRequest, force: bool = False) -> Result:
        if not self._allow_clear:
            raise OperationFailed(Reason.NOT_ALLOWED, "dataplane.lmcache_allow_clear is off")
        self._cache.node.clear_gateway(LMCACHE, asked.now, force=bool(force))
        return None

    # ---- registration

    def _register_engine(self, asked: GatewayRequest, context: EngineContext) -> Result:
        self._pool.look()
        if self._pool.problem:
            raise OperationFailed(Reason.UNSUPPORTED, self._pool.problem)
        self._pool.expect()
        registered = RegisteredWorker(context.instance_id, 0, 0, 0, 0, engine=context)
        self._instances.register(registered, asked.peer, asked.now)
        return encode(PoolAnswer(self._pool.name, self._pool.nbytes))

    def _register_device(
        self,
        asked: GatewayRequest,
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
                self._failed(asked.operation, failed)
            asked.reply(None)

        self._instances.register_device(
            RegisteredWorker(instance, 0, 0, 0, 0, device=device), asked.peer, ended
        )
        return LATER

    def _unregister(self, asked: GatewayRequest, instance: int) -> Result:
        self._instances.unregister(instance, asked.peer, asked.now)
        return None

"""Every operation of the wire, by name: arguments in, the bytes of its result out.

A method returns the encoded result, None for a result that is left out, or LATER when a copy has yet to end. What goes
wrong raises `Failed` or `ProtocolError`; the server turns both into the operation's failure answer and counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dataplane.protocol.spaces import LMCACHE
from dataplane.transport.copying import Copying
from dataplane.transport.lmcache.cache import Cache, Pool
from dataplane.transport.lmcache.chains import CHUNK_TOKENS, Chains
from dataplane.transport.lmcache.counters import Moved
from dataplane.transport.lmcache.driven import Driven
from dataplane.transport.lmcache.failures import FALSE, YES, Failed, Reason
from dataplane.transport.lmcache.instances import Instances
from dataplane.transport.lmcache.lookups import Lookups
from dataplane.transport.lmcache.messages import EngineContext, Group, Hints, Wrapper, encode
from dataplane.transport.lmcache.messages import Pool as PoolAnswer
from dataplane.transport.lmcache.registrations import DeviceContext, Registered
from dataplane.transport.lmcache.requests import LATER, Asked, Result, chunks_of
from dataplane.transport.lmcache.sessions import Sessions
from dataplane.transport.lmcache.slots import Slots
from dataplane.transport.replicas import ReplicaCopies

Method = Callable[..., Result]


class Operations:
    """What the gateway does. Registration and small talk are here; look-ups and transfers have modules of their own."""

    def __init__(
        self,
        cache: Cache,
        pool: Pool,
        instances: Instances,
        sessions: Sessions,
        chains: Chains,
        copying: Copying,
        moved: Moved,
        clock: Callable[[], float],
        failed: Callable[[str, Failed], None],
        *,
        allow_clear: bool,
        replicas: ReplicaCopies | None,
    ) -> None:
        """`failed` counts what failed after its request was served."""
        self._cache = cache
        self._pool = pool
        self._instances = instances
        self._allow_clear = allow_clear
        self._failed = failed
        resolve = partial(chunks_of, chains, instances)
        self.lookups = lookups = Lookups(cache, instances, sessions, chains, moved)
        slots = Slots(pool, sessions, resolve, moved)
        driven = Driven(pool, instances, sessions, resolve, moved, copying, clock, failed, replicas)
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
        }

    def _get_chunk_size(self, asked: Asked) -> Result:
        return encode(CHUNK_TOKENS)

    def _noop(self, asked: Asked) -> Result:
        return encode("OK")

    def _get_experimental(self, asked: Asked) -> Result:
        return encode([])

    def _ping(self, asked: Asked, instance: int | None = None) -> Result:
        if instance is not None and not self._instances.ping(instance, asked.peer, asked.now):
            return FALSE
        return YES

    def _nothing(self, asked: Asked, *arguments: object) -> Result:
        return None

    def _hidden_states(self, asked: Asked, *arguments: object) -> Result:
        raise Failed(Reason.UNSUPPORTED, "hidden states are not stored")

    def _clear(self, asked: Asked, force: bool = False) -> Result:
        if not self._allow_clear:
            raise Failed(Reason.NOT_ALLOWED, "dataplane.lmcache_allow_clear is off")
        self._cache.clear_gateway(LMCACHE, asked.now, force=bool(force))
        return None

    # ---- registration

    def _register_engine(self, asked: Asked, context: EngineContext) -> Result:
        registered = Registered(context.instance_id, 0, 0, 0, 0, engine=context)
        self._instances.register(registered, asked.peer, asked.now)
        return encode(PoolAnswer(self._pool.name, self._pool.nbytes))

    def _register_device(
        self,
        asked: Asked,
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

        def ended(failed: Failed | None) -> None:
            if failed is not None:
                self._failed(asked.operation, failed)
            asked.reply(None)

        self._instances.register_device(Registered(instance, 0, 0, 0, 0, device=device), asked.peer, ended)
        return LATER

    def _unregister(self, asked: Asked, instance: int) -> Result:
        self._instances.unregister(instance, asked.peer, asked.now)
        return None

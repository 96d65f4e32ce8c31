"""What schedulers ask: how many chunks are there, held until their workers come."""

from __future__ import annotations

from contextlib import suppress

from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST, VERSION, Attach
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.spaces import LMCACHE, LMCACHE_SCHEDULERS
from dataplane.transport.lmcache.cache import Cache
from dataplane.transport.lmcache.chains import CHUNK_TOKENS, Chains
from dataplane.transport.lmcache.counters import Moved
from dataplane.transport.lmcache.failures import Failed, Reason
from dataplane.transport.lmcache.instances import Instances
from dataplane.transport.lmcache.messages import Key, encode
from dataplane.transport.lmcache.requests import Asked, Result, check_key, whole
from dataplane.transport.lmcache.sessions import LEASE_TTL_S, Lock, Lookup, Sessions

SCHEDULER = "LMCache scheduler"


class Lookups:
    """Operations of schedulers."""

    def __init__(
        self, cache: Cache, instances: Instances, sessions: Sessions, chains: Chains, moved: Moved
    ) -> None:
        self._cache = cache
        self._moved = moved
        self._instances = instances
        self._sessions = sessions
        self._chains = chains
        self._common = 0
        """The core's engine for schedulers that cannot have one of their own."""

    def lookup(self, asked: Asked, key: Key, tensor_parallel: int = 1) -> Result:
        check_key(key)
        layouts = self._instances.layouts(key.model_name, key.world_size)
        keys = b""
        if layouts:
            chain, count = self._chains.of(key, asked.same)
            keys = chain.keys(0, whole(min(key.end, count)))
        keys = keys[: MAX_KEYS_PER_REQUEST * KEY_BYTES]
        if not keys:  # whatever it held before, it asks for something else now
            self._sessions.end(asked.peer.identity, key.request_id)
        if not layouts:
            raise Failed(
                Reason.UNKNOWN_INSTANCE,
                f"no worker of model {key.model_name[:64]!r} and world size {key.world_size} is registered",
            )
        if not keys or not asked.peer.open:
            return None
        client = self._scheduler(asked)
        # One set of leases: the new one is taken before that of an earlier look-up of this request goes.
        hits, held = self._hold(client, layouts, keys, key.cache_salt, asked.now)
        readers = max(1, key.num_kv_readers or tensor_parallel)
        locks = {space: Lock(each, [readers] * len(each)) for space, each in held.items() if each}
        deadline = asked.now + LEASE_TTL_S
        self._sessions.begin(
            Lookup(asked.peer.identity, key.request_id, client, keys, hits, deadline, locks=locks)
        )
        self._moved.looked_up(len(keys) // KEY_BYTES, hits)
        self._cache.looked_up(key.cache_salt, layouts[0][0], len(keys) // KEY_BYTES, hits, asked.now)
        return None

    def _hold(
        self, client: int, layouts: list[list[int]], keys: bytes, tenant: str, now: float
    ) -> tuple[int, dict[int, list[int]]]:
        """Chunks that every rank has in every form, held: their number, and descriptors by space."""
        hits = len(keys) // KEY_BYTES
        held: dict[int, list[int]] = {}
        try:
            for space in (space for ranks in layouts for space in ranks):
                found = self._cache.hold(client, space, keys, tenant, now, asked=False, used=False, most=hits)
                held[space] = found.descriptors
                hits = len(found.descriptors)
                if not hits:
                    break
        except ProtocolError as error:
            hits = 0
            if error.code is not Code.UNKNOWN_SPACE:  # a space that nothing is in was forgotten
                raise
        finally:
            for space, descriptors in held.items():
                if len(descriptors) > hits:
                    self._cache.let_go(client, descriptors[hits:])
                    held[space] = descriptors[:hits]
        return hits, held

    def _scheduler(self, asked: Asked) -> int:
        """The core's engine that holds what this connection looks up; a common one when there are too many, and until
        it is known whose process this is: what an engine holds ends with its process."""
        peer = asked.peer
        if peer.known and not peer.client and peer.found is not None:
            pid, started = peer.found
            group = f"{LMCACHE}:scheduler:{peer.identity.hex()}"
            with suppress(ProtocolError):
                peer.client = self._attach(group, pid, started, asked.now)
        if peer.client:
            return peer.client
        if self._common not in self._cache.engines:
            self.attach_common(asked.now)
        return self._common

    def attach_common(self, now: float) -> None:
        """Be ready for schedulers that cannot have an engine of their own. Raises ProtocolError."""
        self._common = self._attach(LMCACHE_SCHEDULERS, 0, 0, now)

    def _attach(self, group: str, pid: int, started: int, now: float) -> int:
        message = Attach(0, VERSION, group, [], engine=SCHEDULER)
        return self._cache.attach(message, pid, now, started, gateway=LMCACHE)[0].client

    def query_prefetch_status(self, asked: Asked, request_id: str) -> Result:
        return encode(self._sessions.take_result(asked.peer.identity, request_id))

    def wait_prefetch_status(self, asked: Asked, request_id: str, seconds: float) -> Result:
        """A look-up has its result at once: nobody need wait."""
        return self.query_prefetch_status(asked, request_id)

    def free_lookup_locks(self, asked: Asked, key: Key, tensor_parallel: int = 1) -> Result:
        check_key(key)
        lookup = self._sessions.find(asked.peer.identity, key.request_id)
        if lookup is None or key.start >= key.end:
            return None
        lock = next(iter(lookup.locks.values()), None)
        if lock is not None and lookup.client in self._cache.engines:
            # The engine has these chunks in its own memory: they were of use all the same.
            chunks = slice(key.start // CHUNK_TOKENS, -(-key.end // CHUNK_TOKENS))
            pairs = zip(lock.descriptors[chunks], lock.readers[chunks], strict=True)
            used = [descriptor for descriptor, readers in pairs if readers]
            if used:
                self._cache.use(lookup.client, used, asked.now)
        self._sessions.free(lookup, key.start, key.end)
        return None

    def end_session(self, asked: Asked, request_id: str) -> Result:
        self._sessions.end(asked.peer.identity, request_id)
        return None

"""Operations of schedulers: count the cached chunks of a request and hold them until the workers read them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from dataplane.core.blocks.lookup_leases import LookupLease, SpaceLock
from dataplane.core.engines.requests import MissFinding
from dataplane.gateways.lmcache.failures import OperationFailed, Reason
from dataplane.gateways.lmcache.handlers.parts import GatewayParts
from dataplane.gateways.lmcache.handlers.requests import LATER, GatewayRequest, Result, check_key, whole
from dataplane.gateways.lmcache.handlers.sessions import NOTHING_MISSING, SCHEDULER, LeasedLookup, is_recorded
from dataplane.gateways.lmcache.handlers.tier_waits import LookupTierWait, LookupTierWaits
from dataplane.gateways.lmcache.wire.messages import Key, encode
from dataplane.gateways.lmcache.wire.tokens import CHUNK_TOKENS
from dataplane.gateways.lmcache.workers.transfers import LEASE_TTL_S
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.requests import RequestRecord
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST, VERSION, Attach
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.spaces import LMCACHE, LMCACHE_SCHEDULERS

PENDING = encode(None)
"""Result of a look-up that waits for tiers."""


class LookupHandlers:
    """Handle the operations of schedulers."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts
        self._cache = parts.cache
        self._sessions = parts.sessions
        self._tiers = LookupTierWaits(parts.cache, parts.clock, parts.later)
        self._engines: dict[bytes, int] = {}
        """Client numbers of the engines of schedulers, by connection."""
        self._common = 0
        """Client number of the engine that schedulers without an engine of their own share."""
        self._inherited: list[LookupLease] = []
        """What the schedulers of the previous data plane hold."""

    def inherit(self) -> None:
        """Let the leases be taken back that the look-ups of the previous data plane left."""
        for engine in self._cache.lost(LMCACHE):
            if engine.name != SCHEDULER:
                continue
            for descriptors in self._cache.held_by_tenant(engine.client):
                lease = LookupLease(engine.client, {0: SpaceLock(descriptors, [1] * len(descriptors))})
                self._inherited.append(lease)
                self._cache.lookups.add(lease)

    def forget_inherited(self) -> None:
        """Forget the leases that `inherit` found, because their engines are detached."""
        for lease in self._inherited:
            self._cache.lookups.discard(lease)
        self._inherited.clear()

    def lookup(self, request: GatewayRequest, key: Key, tensor_parallel: int = 1) -> Result:
        check_key(key)
        layouts = self._parts.registry.layouts(key.model_name, key.world_size)
        if len(layouts) > 1:  # only then, because the search for the peer's process takes milliseconds
            layouts = self._parts.registry.layouts(key.model_name, key.world_size, request.peer.owner[0])
        keys = b""
        if layouts:
            chain, count = self._parts.chains.of(key, request.same)
            keys = chain.keys(0, whole(min(key.end, count)))
        keys = keys[: MAX_KEYS_PER_REQUEST * KEY_BYTES]
        if not keys:  # end an earlier look-up of this request, because it now asks for something else
            self._sessions.end(request.peer.identity, key.request_id, counted=False)
        if not layouts:
            raise OperationFailed(
                Reason.UNKNOWN_INSTANCE,
                f"no worker of model {key.model_name[:64]!r} and world size {key.world_size} is registered",
            )
        if not request.peer.open:
            return None
        spaces = [space for ranks in layouts for space in ranks]
        client = self._scheduler(request)
        if not keys:
            self._record_too_short(client, spaces[0], key, count, request.now)
            return None
        covered = min(key.start // CHUNK_TOKENS, len(keys) // KEY_BYTES)
        self._touch(client, spaces, keys[: covered * KEY_BYTES], request.now)
        readers = max(1, key.num_kv_readers or tensor_parallel)
        uncovered_keys = keys[covered * KEY_BYTES :]
        wait = self._tiers.request(client, spaces, uncovered_keys, readers, request.now) if uncovered_keys else None
        # A request has one set of leases. Take the new one before releasing that of an earlier look-up.
        hits, locks = self._hold(client, spaces, keys, covered, readers)
        deadline = request.now + LEASE_TTL_S
        self._sessions.begin(
            LeasedLookup(
                request.peer.identity,
                key.request_id,
                LookupLease(client, locks),
                keys,
                hits,
                deadline,
                tiers=wait,
                tenant=key.cache_salt,
                space=spaces[0],
                in_memory=hits,
                tiers_source="remote" if wait is None else wait.source,
                covered=covered,
                tokens=min(key.end, count),
                miss=self._miss(spaces, keys, hits),
            )
        )
        return None

    def _miss(self, spaces: list[int], keys: bytes, hits: int) -> MissFinding:
        """Return why the first chunk after the hits is missing."""
        key = keys[hits * KEY_BYTES : (hits + 1) * KEY_BYTES]
        return self._cache.why_missing(spaces, key) if key else NOTHING_MISSING

    def _record_too_short(self, client: int, space: int, key: Key, tokens: int, now: float) -> None:
        """Record a request whose prompt has no whole chunk, and so no look-up."""
        if 0 < tokens < CHUNK_TOKENS and is_recorded(key.request_id):
            record = RequestRecord(
                request=key.request_id,
                tenant=key.cache_salt,
                engine=SCHEDULER,
                model="",
                at=now,
                prompt_tokens=tokens,
                engine_tokens=0,
                loaded_tokens={},
                missed_tokens=tokens,
                reason="too_short",
                cause="",
                cause_at=0.0,
            )
            self._cache.keep_request(client, space, record)

    def _touch(self, client: int, spaces: list[int], keys: bytes, now: float) -> None:
        """Make recent the chunks that an engine has itself, so that they are not evicted before those that follow."""
        for space in spaces if keys else ():
            with suppress(ProtocolError):  # the core forgets empty spaces
                descriptors = self._cache.hold(client, space, keys).descriptors
                self._cache.touch(descriptors, now)
                self._cache.release(client, descriptors)

    def _hold(
        self, client: int, spaces: list[int], keys: bytes, covered: int, readers: int
    ) -> tuple[int, dict[int, SpaceLock]]:
        """Hold the leading chunks after the first `covered` that all spaces have, for so many readers each.

        Return the number of chunks with those covered, and the leases by space.
        """
        keys = keys[covered * KEY_BYTES :]
        hits = len(keys) // KEY_BYTES
        if not hits:
            return covered, {}
        leased: dict[int, list[int]] = {}
        try:
            for space in spaces:
                chain = self._cache.hold(client, space, keys, most=hits)
                leased[space] = chain.descriptors
                hits = len(chain.descriptors)
                if not hits:
                    break
        except ProtocolError as error:
            hits = 0
            if error.code is not Code.UNKNOWN_SPACE:  # the core forgets empty spaces
                raise
        finally:
            for space, descriptors in leased.items():
                if len(descriptors) > hits:
                    self._cache.release(client, descriptors[hits:])
                    leased[space] = descriptors[:hits]
        before = [0] * covered
        locks = {
            space: SpaceLock(before + descriptors, before + [readers] * len(descriptors))
            for space, descriptors in leased.items()
            if descriptors
        }
        return covered + hits, locks

    def _scheduler(self, request: GatewayRequest) -> int:
        """Return the client number of the engine that holds the look-ups of this connection.

        A shared engine is used when there are too many engines, and until the process of the peer is known, because
        the leases of an engine end with its process.
        """
        peer = request.peer
        client = self._engines.get(peer.identity, 0)
        if not client and peer.tracked and peer.resolved_owner is not None:
            pid, started = peer.resolved_owner
            group = f"{LMCACHE}:scheduler:{peer.identity.hex()}"
            with suppress(ProtocolError):
                client = self._engines[peer.identity] = self._attach(group, pid, started, request.now)
        if client:
            return client
        if self._common not in self._cache.node.engines:
            self.attach_common(request.now)
        return self._common

    def attach_common(self, now: float) -> None:
        """Attach the shared engine for schedulers without an engine of their own. Raise ProtocolError on failure."""
        self._common = self._attach(LMCACHE_SCHEDULERS, 0, 0, now)

    def disconnected(self, identity: bytes, now: float) -> None:
        """End the look-ups of a closed connection, and detach its engine."""
        self._sessions.end_scheduler(identity)
        client = self._engines.pop(identity, 0)
        if client:
            self._cache.node.detach_cleanly(client, now)

    def _attach(self, group: str, pid: int, started: int, now: float) -> int:
        message = Attach(0, VERSION, group, [], engine=SCHEDULER)
        return self._cache.node.attach(message, pid, now, started, gateway=LMCACHE)[0].client

    def query_prefetch_status(self, request: GatewayRequest, request_id: str) -> Result:
        """Return the result of a look-up once; null while it waits for tiers."""
        return self._result(request.peer.identity, request_id, request.now)

    def wait_prefetch_status(self, request: GatewayRequest, request_id: str, seconds: float) -> Result:
        """Return the result as soon as it is known, and null if it is not known after so many seconds."""
        scheduler = request.peer.identity
        result = self._result(scheduler, request_id, request.now)
        lookup = self._sessions.find(scheduler, request_id)
        if lookup is None or lookup.tiers is None or not seconds > 0:
            return result

        def answer() -> bytes:
            return self._result(scheduler, request_id, request.now)

        return LATER if self._tiers.when_ended(lookup.tiers, seconds, partial(request.finish, answer)) else result

    def _result(self, scheduler: bytes, request_id: str, now: float) -> bytes:
        lookup = self._sessions.find(scheduler, request_id)
        if lookup is not None and lookup.tiers is not None:
            if not self._tiers.ended(lookup.tiers, now):
                return PENDING
            self._end_wait(lookup, lookup.tiers)
        return encode(self._sessions.take_result(scheduler, request_id))

    def _end_wait(self, lookup: LeasedLookup, wait: LookupTierWait) -> None:
        """Hold what is in memory now, and make it the result."""
        lookup.tiers = None
        client = lookup.lease.client
        hits = 0
        locks: dict[int, SpaceLock] = {}
        with suppress(ProtocolError):  # the engine of the scheduler is gone
            hits, locks = self._hold(client, wait.spaces, lookup.keys, lookup.covered, wait.readers)
        self._sessions.renew(lookup, LookupLease(client, locks), hits)
        lookup.miss = self._miss(wait.spaces, lookup.keys, hits)

    def free_lookup_locks(
        self,
        request: GatewayRequest,
        key: Key,
        tensor_parallel: int = 1,
        extra_ranges: list[tuple[int, int]] | None = None,
    ) -> Result:
        """Release the chunks of a key. `extra_ranges` are those of earlier look-ups of the request, which ended with
        the latest one."""
        check_key(key)
        lookup = self._sessions.find(request.peer.identity, key.request_id)
        if lookup is None or key.start >= key.end:
            return None
        first, last = key.start // CHUNK_TOKENS, -(-key.end // CHUNK_TOKENS)
        if lookup.tiers is not None and first <= lookup.hits and last >= len(lookup.keys) // KEY_BYTES:
            lookup.tiers.cancel()
        client = lookup.lease.client
        lock = next(iter(lookup.lease.locks.values()), None)
        if lock is not None and client in self._cache.node.engines:
            # The engine may have these chunks in its own memory. That is certain only of the chunks before those that
            # it reads.
            chunks = slice(first, last)
            pairs = zip(lock.descriptors[chunks], lock.readers[chunks], strict=True)
            freed = [descriptor for descriptor, readers in pairs if readers]
            if freed and not first and (lookup.used or any(lock.readers[last:])):
                self._cache.use(client, freed, request.now)
            else:
                self._cache.touch(freed, request.now)
        self._sessions.free(lookup, key.start, key.end)
        return None

    def end_session(self, request: GatewayRequest, request_id: str) -> Result:
        self._sessions.end(request.peer.identity, request_id)
        return None

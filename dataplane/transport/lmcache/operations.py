"""One method for each operation of the wire: arguments in, the bytes of its result out.

A method returns the encoded result, None for a result that is left out, or LATER when a copy has yet to end. What goes
wrong raises `Failed` or `ProtocolError`; the server turns both into the operation's failure answer and counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST, VERSION, Attach
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.spaces import LMCACHE
from dataplane.transport.lmcache.cache import Cache, Pool
from dataplane.transport.lmcache.chains import CHUNK_TOKENS, Chain, Chains
from dataplane.transport.lmcache.connections import Connection
from dataplane.transport.lmcache.copies import Blocks, Copier, CopyFailed
from dataplane.transport.lmcache.copying import Copying
from dataplane.transport.lmcache.failures import (
    FALSE,
    NOT_COPIED,
    NOTHING_TO_STORE,
    YES,
    Failed,
    Reason,
)
from dataplane.transport.lmcache.instances import Instance, Instances
from dataplane.transport.lmcache.messages import (
    EngineContext,
    Group,
    Hints,
    Key,
    RetrievePrepared,
    Slot,
    Slots,
    StorePrepared,
    Wrapper,
    encode,
)
from dataplane.transport.lmcache.messages import Pool as PoolAnswer
from dataplane.transport.lmcache.registrations import DeviceContext, Registered
from dataplane.transport.lmcache.sessions import LEASE_TTL_S, Lock, Lookup, Sessions
from dataplane.transport.lmcache.transfers import Place, Transfer

MAX_REQUEST_ID_CHARACTERS = 512
SCHEDULER = "LMCache scheduler"
COPIED = encode([b"", True])

Reply = Callable[[bytes | None], None]
"""Sends the answer of an operation that ends later."""


class Later(Enum):
    """The answer comes by `Reply`."""

    LATER = 0


LATER = Later.LATER
Result = bytes | None | Later


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that was understood."""

    peer: Connection
    operation: str
    now: float
    same: Chain | None
    """What the tokens of its key are, where they were left out."""
    reply: Reply


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The chunks that a worker's key names, in its space."""

    instance: Instance
    transfer: Transfer
    tenant: str
    keys: bytes
    chain: bytes
    """Keys from the start of the request to the end of the chunks."""

    @property
    def parent(self) -> bytes:
        before = len(self.chain) - len(self.keys)
        return self.chain[max(0, before - KEY_BYTES) : before]


class Operations:
    """What the gateway does."""

    def __init__(
        self,
        cache: Cache,
        pool: Pool,
        instances: Instances,
        sessions: Sessions,
        chains: Chains,
        copying: Copying,
        clock: Callable[[], float],
        *,
        allow_clear: bool,
        failed_later: Callable[[str, Failed], None],
    ) -> None:
        """`failed_later` counts failures of copies."""
        self._clock = clock
        self._cache = cache
        self._pool = pool
        self._instances = instances
        self._sessions = sessions
        self._chains = chains
        self._copying = copying
        self._allow_clear = allow_clear
        self._failed_later = failed_later
        self._common = 0
        """The core's engine for schedulers that have none of their own."""

    def call(self, asked: Asked, arguments: Sequence[Any]) -> Result:
        """Do it. Raises Failed, ProtocolError, TokenError."""
        method: Callable[..., Result] = getattr(self, f"_{asked.operation}")
        return method(asked, *arguments)

    # ---- small talk

    def _get_chunk_size(self, asked: Asked) -> Result:
        return encode(CHUNK_TOKENS)

    def _noop(self, asked: Asked) -> Result:
        return encode("OK")

    def _get_experimental(self, asked: Asked) -> Result:
        return encode([])

    def _ping(self, asked: Asked, instance: int | None = None) -> Result:
        if instance is not None:
            self._instances.ping(instance, asked.peer, asked.now)
        return YES

    def _report_block_allocation(self, asked: Asked, instance: int, model: str, records: object) -> Result:
        return None

    # ---- registration

    def _register_kv_cache_engine_driven_context(self, asked: Asked, context: EngineContext) -> Result:
        registered = Registered(context.instance_id, 0, 0, 0, 0, engine=context)
        self._instances.register(registered, asked.peer, asked.now)
        return encode(PoolAnswer(self._pool.name, self._pool.nbytes))

    def _unregister_kv_cache_engine_driven_context(self, asked: Asked, instance: int) -> Result:
        self._instances.unregister(instance, asked.peer, asked.now)
        return None

    def _register_kv_cache(
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
        device = DeviceContext(
            [wrapper.body for wrapper in wrappers], model, world_size, engine_type, hints, groups
        )
        self._instances.register(Registered(instance, 0, 0, 0, 0, device=device), asked.peer, asked.now)
        return None

    def _unregister_kv_cache(self, asked: Asked, instance: int) -> Result:
        self._instances.unregister(instance, asked.peer, asked.now)
        return None

    def _register_q_cache(self, asked: Asked, *arguments: object) -> Result:
        raise Failed(Reason.UNSUPPORTED, "hidden states are not stored")

    def _unregister_q_cache(self, asked: Asked, instance: int) -> Result:
        return None

    def _store_q(self, asked: Asked, *arguments: object) -> Result:
        raise Failed(Reason.UNSUPPORTED, "hidden states are not stored")

    # ---- look-ups

    def _lookup(self, asked: Asked, key: Key, tensor_parallel: int = 1) -> Result:
        self._check_request(key)
        self._sessions_end_unless_alike(asked, key)
        layouts = self._instances.layouts(key.model_name, key.world_size)
        if not layouts:
            raise Failed(
                Reason.UNKNOWN_INSTANCE,
                f"no worker of model {key.model_name[:64]!r} and world size {key.world_size} is registered",
            )
        keys = self._chains.of(key, asked.same).keys(0, _whole(key.end))
        if len(keys) > MAX_KEYS_PER_REQUEST * KEY_BYTES:
            keys = keys[: MAX_KEYS_PER_REQUEST * KEY_BYTES]
        if not keys:
            self._sessions.end(asked.peer.identity, key.request_id)
            return None
        client = self._scheduler(asked)
        # One set of leases: the new one is taken before the one of an earlier look-up of this request goes.
        hits, locks = self._hold(client, layouts, keys, key, asked.now)
        readers = max(1, key.num_kv_readers or tensor_parallel)
        lookup = Lookup(
            asked.peer.identity, key.request_id, client, keys, hits, asked.now + LEASE_TTL_S, locks={}
        )
        for space, descriptors in locks.items():
            if descriptors:
                lookup.locks[space] = Lock(descriptors, [readers] * len(descriptors))
        self._cache.looked_up(key.cache_salt, layouts[0][0], len(keys) // KEY_BYTES, hits, asked.now)
        self._sessions.begin(lookup)
        return None

    def _sessions_end_unless_alike(self, asked: Asked, key: Key) -> None:
        """A request that asks anew about something that cannot be served holds nothing any more."""
        if not self._instances.layouts(key.model_name, key.world_size):
            self._sessions.end(asked.peer.identity, key.request_id)

    def _hold(
        self, client: int, layouts: list[list[int]], keys: bytes, key: Key, now: float
    ) -> tuple[int, dict[int, list[int]]]:
        """Chunks that every rank has in every form, held: their number, and descriptors by space."""
        hits = len(keys) // KEY_BYTES
        held: dict[int, list[int]] = {}
        try:
            for space in (space for ranks in layouts for space in ranks):
                found = self._cache.hold(
                    client, space, keys, key.cache_salt, now, asked=False, used=False, most=hits
                )
                held[space] = found.descriptors
                hits = len(found.descriptors)
                if not hits:
                    break
        except ProtocolError as error:
            if error.code is not Code.UNKNOWN_SPACE:  # a space that nothing is in was forgotten
                raise
            hits = 0
        finally:
            for space, descriptors in held.items():
                if len(descriptors) > hits:
                    self._cache.let_go(client, descriptors[hits:])
                    held[space] = descriptors[:hits]
        return hits, held

    def _scheduler(self, asked: Asked) -> int:
        """The core's engine that holds what this connection looks up; a common one when there are too many."""
        peer = asked.peer
        if peer.client:
            return peer.client
        pid, started = peer.found or (0, 0)
        number = peer.identity.hex()
        try:
            peer.client = self._attach_scheduler(f"{LMCACHE}:scheduler:{number}", pid, started, asked.now)
        except ProtocolError:
            if self._common not in self._cache.engines:
                self._common = self._attach_scheduler(f"{LMCACHE}:schedulers", 0, 0, asked.now)
            return self._common
        return peer.client

    def _attach_scheduler(self, group: str, pid: int, started: int, now: float) -> int:
        message = Attach(0, VERSION, group, [], engine=SCHEDULER)
        return self._cache.attach(message, pid, now, started, gateway=LMCACHE)[0].client

    def attach_common(self, now: float) -> None:
        """Be ready for schedulers that cannot have an engine of their own. Raises ProtocolError."""
        self._common = self._attach_scheduler(f"{LMCACHE}:schedulers", 0, 0, now)

    def _query_prefetch_status(self, asked: Asked, request_id: str) -> Result:
        return encode(self._sessions.take_result(asked.peer.identity, request_id))

    def _wait_prefetch_status(self, asked: Asked, request_id: str, seconds: float) -> Result:
        return self._query_prefetch_status(asked, request_id)

    def _free_lookup_locks(self, asked: Asked, key: Key, tensor_parallel: int = 1) -> Result:
        self._check_request(key)
        lookup = self._sessions.find(asked.peer.identity, key.request_id)
        if lookup is None or key.start >= key.end:
            return None
        lock = next(iter(lookup.locks.values()), None)
        if lock is not None:  # they are in the engine's own memory: of use all the same
            chunks = slice(key.start // CHUNK_TOKENS, -(-key.end // CHUNK_TOKENS))
            used = [
                each
                for each, left in zip(lock.descriptors[chunks], lock.readers[chunks], strict=True)
                if left
            ]
            if used and lookup.client in self._cache.engines:
                self._cache.use(lookup.client, used, asked.now)
        self._sessions.free(lookup, key.start, key.end)
        return None

    def _end_session(self, asked: Asked, request_id: str) -> Result:
        self._sessions.end(asked.peer.identity, request_id)
        self._chains.forget(request_id)
        return None

    # ---- workers that copy by themselves

    def _prepare_store(self, asked: Asked, key: Key, number: int) -> Result:
        chunks = self._chunks(asked, key, number)
        if not chunks.keys:
            return NOTHING_TO_STORE
        store = chunks.instance.transfers.prepare_store(
            chunks.transfer, chunks.tenant, chunks.keys, chunks.parent, asked.now
        )
        if not store.places:
            if store.refused:
                raise Failed(Reason.REFUSED, f"no room for {store.refused} chunks")
            return NOTHING_TO_STORE
        return encode(
            StorePrepared(
                Slots(self._slots(chunks.instance, store.places), [each.chunk for each in store.places])
            )
        )

    def _commit_store(self, asked: Asked, key: Key, number: int, data: bytes) -> Result:
        chunks = self._chunks(asked, key, number)
        if data:
            chunks.instance.transfers.abort_store(chunks.transfer, asked.now)
            raise Failed(Reason.PICKLED, f"{len(data)} bytes came in a message instead of shared memory")
        store = chunks.instance.transfers.commit_store(chunks.transfer, chunks.keys, asked.now)
        return FALSE if store.refused else YES

    def _prepare_retrieve(self, asked: Asked, key: Key, number: int) -> Result:
        chunks = self._chunks(asked, key, number)
        if not chunks.keys:
            raise Failed(Reason.BAD_ARGUMENTS, "expected at least one whole chunk")
        held = chunks.instance.transfers.prepare_read(chunks.transfer, chunks.tenant, chunks.keys, asked.now)
        places = [
            Place(at, segment, offset)
            for at, (segment, offset) in enumerate(zip(held.segments, held.offsets, strict=True))
        ]
        return encode(
            RetrievePrepared(success=True, data=b"", context=Slots(self._slots(chunks.instance, places)))
        )

    def _commit_retrieve(self, asked: Asked, key: Key, number: int) -> Result:
        chunks = self._chunks(asked, key, number)
        was_held = chunks.instance.transfers.end_read(chunks.transfer)
        self._read(key, chunks)
        if not was_held:
            raise Failed(Reason.UNKNOWN_TRANSFER, "no retrieve of these chunks is open")
        return YES

    def _read(self, key: Key, chunks: _Chunks) -> None:
        """A worker needs the leases of its request's look-up no more."""
        transfer = chunks.transfer
        self._sessions.read(key.request_id, chunks.chain, transfer.space, transfer.start, transfer.end)

    def _slots(self, instance: Instance, places: Sequence[Place]) -> list[Slot]:
        form = instance.form
        bases = {segment: self._pool.base(segment) for segment in {place.segment for place in places}}
        return [
            Slot(bases[place.segment] + place.offset, form.chunk_bytes, form.shape, form.dtype)
            for place in places
        ]

    # ---- workers that let this node copy

    def _store(self, asked: Asked, key: Key, number: int, blocks: list[list[int]], event: bytes) -> Result:
        chunks = self._chunks(asked, key, number)
        instance = chunks.instance
        copier = _copier(instance)
        real = self._real(copier, blocks, len(chunks.keys) // KEY_BYTES)
        if not real:
            return COPIED
        end = chunks.transfer.start + real * CHUNK_TOKENS
        keys = chunks.keys[: real * KEY_BYTES]
        transfer = Transfer(chunks.transfer.space, chunks.transfer.start, end, keys[-KEY_BYTES:])
        store = instance.transfers.prepare_store(transfer, chunks.tenant, keys, chunks.parent, asked.now)
        if not store.places:
            if store.refused:
                raise Failed(Reason.REFUSED, f"no room for {store.refused} chunks")
            return COPIED
        targets = self._views(instance, store.places)

        def work() -> None:
            for chunk, target in targets:
                copier.gather(blocks, chunk, target)

        def done(failed: CopyFailed | None, now: float) -> bytes:
            if failed is not None or instance.over or not instance.attached:
                instance.transfers.abort_store(transfer, now)
                raise Failed(Reason.COPY_FAILED, str(failed or "the worker is gone"))
            instance.transfers.commit_store(transfer, keys, now)
            return NOT_COPIED if store.refused else COPIED

        return self._copy(asked, instance, work, done)

    def _retrieve(
        self,
        asked: Asked,
        key: Key,
        number: int,
        blocks: list[list[int]],
        event: bytes,
        skip_tokens: int = 0,
    ) -> Result:
        chunks = self._chunks(asked, key, number)
        instance = chunks.instance
        copier = _copier(instance)
        wanted = len(chunks.keys) // KEY_BYTES
        if not wanted:
            raise Failed(Reason.BAD_ARGUMENTS, "expected at least one whole chunk")
        self._real(copier, blocks, wanted)
        held = instance.transfers.prepare_read(chunks.transfer, chunks.tenant, chunks.keys, asked.now)
        sources = self._views(
            instance,
            [
                Place(at, segment, offset)
                for at, (segment, offset) in enumerate(zip(held.segments, held.offsets, strict=True))
            ],
        )

        def work() -> None:
            for chunk, source in sources:
                copier.scatter(blocks, chunk, source, skip_tokens)

        def done(failed: CopyFailed | None, now: float) -> bytes:
            instance.transfers.end_read(chunks.transfer)
            self._read(key, chunks)
            if failed is not None:
                raise Failed(Reason.COPY_FAILED, str(failed))
            return COPIED

        return self._copy(asked, instance, work, done)

    def _copy(
        self,
        asked: Asked,
        instance: Instance,
        work: Callable[[], None],
        done: Callable[[CopyFailed | None, float], bytes],
    ) -> Result:
        """Copy off the loop; `done` makes the answer, or raises Failed or ProtocolError."""

        def ended(failed: CopyFailed | None) -> None:
            try:
                result = done(failed, self._clock())
            except (Failed, ProtocolError) as error:
                self._failed_later(asked.operation, as_failed(error))
                result = NOT_COPIED
            finally:
                self._instances.copy_ended(instance)
            asked.reply(result)

        instance.copying += 1
        if not self._copying.submit(work, ended):
            ended(CopyFailed("too many copies wait"))
        return LATER

    def _real(self, copier: Copier, blocks: Blocks, wanted: int) -> int:
        try:
            return copier.chunks(blocks, wanted)
        except CopyFailed as error:
            raise Failed(Reason.BAD_ARGUMENTS, str(error)) from None

    def _views(self, instance: Instance, places: Sequence[Place]) -> list[tuple[int, memoryview]]:
        """(chunk, its bytes in the named segment)."""
        memory, size = self._pool.view(), instance.form.chunk_bytes
        views = []
        for place in places:
            start = self._pool.base(place.segment) + place.offset
            views.append((place.chunk, memory[start : start + size]))
        return views

    # ---- clear

    def _clear(self, asked: Asked, force: bool = False) -> Result:
        if not self._allow_clear:
            raise Failed(Reason.NOT_ALLOWED, "dataplane.lmcache_allow_clear is off")
        self._cache.clear_gateway(LMCACHE, asked.now, force=bool(force))
        return None

    # ---- keys

    def _chunks(self, asked: Asked, key: Key, number: int) -> _Chunks:
        """What a worker's key names. Raises Failed, ProtocolError, TokenError."""
        self._check_request(key)
        instance = self._instances.of(number, asked.peer, asked.now)
        registered = instance.registered
        if (key.model_name, key.world_size) != (registered.model_name, registered.world_size):
            raise Failed(
                Reason.BAD_ARGUMENTS,
                f"worker {number} is registered for {registered.model_name[:64]!r} of {registered.world_size}, "
                f"got {key.model_name[:64]!r} of {key.world_size}",
            )
        if key.worker_id is None or not 0 <= key.worker_id < registered.world_size:
            raise Failed(
                Reason.BAD_ARGUMENTS,
                f"worker_id: expected 0 to {registered.world_size - 1}, got {key.worker_id}",
            )
        if key.start % CHUNK_TOKENS:
            raise Failed(
                Reason.BAD_ARGUMENTS, f"start: expected a multiple of {CHUNK_TOKENS}, got {key.start}"
            )
        chain = self._chains.of(key, asked.same)
        end = min(_whole(key.end), _whole(chain.count))
        if end < _whole(key.end):
            raise Failed(Reason.BAD_ARGUMENTS, f"end: expected at most {chain.count}, got {key.end}")
        keys = chain.keys(key.start, end)
        if len(keys) > MAX_KEYS_PER_REQUEST * KEY_BYTES:
            raise Failed(Reason.BAD_ARGUMENTS, f"expected at most {MAX_KEYS_PER_REQUEST} chunks")
        return _Chunks(
            instance,
            Transfer(instance.spaces[key.worker_id], key.start, end, keys[-KEY_BYTES:]),
            key.cache_salt,
            keys,
            chain.keys(0, end),
        )

    def _check_request(self, key: Key) -> None:
        if len(key.request_id) > MAX_REQUEST_ID_CHARACTERS:
            raise Failed(
                Reason.BAD_ARGUMENTS,
                f"request_id: expected at most {MAX_REQUEST_ID_CHARACTERS} characters, got {len(key.request_id)}",
            )
        if not 0 <= key.start <= key.end:
            raise Failed(Reason.BAD_ARGUMENTS, f"expected 0 <= start <= end, got {key.start} and {key.end}")


def as_failed(error: Failed | ProtocolError) -> Failed:
    """A refusal of the core as a failure that is counted."""
    if isinstance(error, Failed):
        return error
    bad = error.code in (Code.BAD_SALT, Code.BAD_KEYS, Code.BAD_FIELD)
    expired = error.code in (Code.RESERVATION_EXPIRED, Code.UNKNOWN_RESERVATION)
    reason = Reason.BAD_ARGUMENTS if bad else Reason.UNKNOWN_TRANSFER if expired else Reason.REFUSED
    return Failed(reason, f"{error.field}: {error.message}" if error.field else error.message)


def _copier(instance: Instance) -> Copier:
    if instance.form.copier is None:
        raise Failed(Reason.UNSUPPORTED, "this worker registered to copy by itself")
    return instance.form.copier


def _whole(tokens: int) -> int:
    return tokens - tokens % CHUNK_TOKENS

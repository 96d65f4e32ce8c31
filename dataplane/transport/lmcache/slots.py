"""What workers ask that copy by themselves: where in the named segment to write and to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dataplane.transport.lmcache.cache import Pool
from dataplane.transport.lmcache.counters import Moved
from dataplane.transport.lmcache.failures import FALSE, NOTHING_TO_STORE, YES, Failed, Reason
from dataplane.transport.lmcache.instances import Instance
from dataplane.transport.lmcache.messages import Key, RetrievePrepared, Slot, StorePrepared, encode
from dataplane.transport.lmcache.messages import Slots as SlotsAnswer
from dataplane.transport.lmcache.requests import Asked, Chunks, Result
from dataplane.transport.lmcache.sessions import Sessions
from dataplane.transport.lmcache.transfers import Place, places_of

Resolve = Callable[[Asked, Key, int], Chunks]
"""The chunks that a key names. Raises Failed, ProtocolError, TokenError."""


class Slots:
    """Operations of workers that copy by themselves."""

    def __init__(self, pool: Pool, sessions: Sessions, resolve: Resolve, moved: Moved) -> None:
        self._pool = pool
        self._sessions = sessions
        self._resolve = resolve
        self._moved = moved

    def prepare_store(self, asked: Asked, key: Key, number: int) -> Result:
        chunks = self._resolve(asked, key, number)
        if not chunks.keys:
            return NOTHING_TO_STORE
        if asked.peer.perhaps_answered:
            # The client goes by the first answer it gets: it would write to room that is gone, and commit this one.
            raise Failed(Reason.REFUSED, "a data plane before this one may have granted it already")
        transfers = chunks.instance.transfers
        store = transfers.prepare_store(chunks.transfer, chunks.tenant, chunks.keys, chunks.parent, asked.now)
        if not store.places:
            if store.refused:
                raise Failed(Reason.REFUSED, f"no room for {store.refused} chunks")
            return NOTHING_TO_STORE
        slots = self._slots(chunks.instance, store.places)
        return encode(StorePrepared(SlotsAnswer(slots, [place.chunk for place in store.places])))

    def commit_store(self, asked: Asked, key: Key, number: int, data: bytes) -> Result:
        chunks = self._resolve(asked, key, number)
        transfers = chunks.instance.transfers
        if data:
            transfers.abort_store(chunks.transfer, asked.now)
            raise Failed(Reason.PICKLED, f"{len(data)} bytes came in a message instead of shared memory")
        store = transfers.commit_store(chunks.transfer, chunks.keys, asked.now)
        self._moved.stored(len(store.places), chunks.instance.form.chunk_bytes)
        return FALSE if store.refused else YES

    def prepare_retrieve(self, asked: Asked, key: Key, number: int) -> Result:
        chunks = self._resolve(asked, key, number)
        if not chunks.keys:
            raise Failed(Reason.BAD_ARGUMENTS, "expected at least one whole chunk")
        held = chunks.instance.transfers.prepare_read(chunks.transfer, chunks.tenant, chunks.keys, asked.now)
        slots = self._slots(chunks.instance, places_of(held))
        return encode(RetrievePrepared(success=True, data=b"", context=SlotsAnswer(slots)))

    def commit_retrieve(self, asked: Asked, key: Key, number: int) -> Result:
        chunks = self._resolve(asked, key, number)
        transfer = chunks.transfer
        transfers = chunks.instance.transfers
        was_held = transfers.end_read(transfer) or (
            bool(chunks.keys) and transfers.end_inherited(transfer, chunks.tenant, chunks.keys, asked.now)
        )
        self._sessions.read(key.request_id, chunks.chain, transfer.space, transfer.start, transfer.end)
        if not was_held:
            raise Failed(Reason.UNKNOWN_TRANSFER, "no retrieve of these chunks is open")
        self._moved.read(len(chunks), chunks.instance.form.chunk_bytes)
        return YES

    def _slots(self, instance: Instance, places: Sequence[Place]) -> list[Slot]:
        form = instance.form
        bases = {segment: self._pool.base(segment) for segment in {place.segment for place in places}}
        return [
            Slot(bases[place.segment] + place.offset, form.chunk_bytes, form.shape, form.dtype)
            for place in places
        ]

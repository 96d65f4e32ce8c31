"""Operations of workers that copy by themselves: where in the named segment to write and to read."""

from __future__ import annotations

from collections.abc import Sequence

from dataplane.gateways.lmcache.failures import OperationFailed, Reason
from dataplane.gateways.lmcache.handlers.parts import GatewayParts
from dataplane.gateways.lmcache.handlers.readiness import PageReadiness
from dataplane.gateways.lmcache.handlers.requests import Chunks, GatewayRequest, Result
from dataplane.gateways.lmcache.wire.messages import (
    FALSE,
    NOTHING_TO_STORE,
    YES,
    ChunkSlot,
    Key,
    RetrievePrepared,
    SlotsReply,
    StorePrepared,
    encode,
)
from dataplane.gateways.lmcache.workers.registry import Instance
from dataplane.gateways.lmcache.workers.transfers import ChunkLocation, locations_of


class ClientCopyHandlers:
    """Handle the operations of workers that copy by themselves."""

    def __init__(self, parts: GatewayParts, readiness: PageReadiness) -> None:
        self._parts = parts
        self._readiness = readiness

    def prepare_store(
        self, request: GatewayRequest, key: Key, number: int, skipped_chunks: list[list[int]] | None = None
    ) -> Result:
        chunks = self._parts.chunks_of(request, key, number)
        if skipped_chunks:  # chunks by group, and no worker of several groups is registered
            raise OperationFailed(Reason.BAD_ARGUMENTS, f"skipped_chunks: expected none, got {len(skipped_chunks)}")
        if not chunks.keys:
            return NOTHING_TO_STORE
        if request.peer.perhaps_answered:
            # The client uses the first answer it gets. If the previous data plane answered, the client would write to
            # the room granted there, which is gone, and commit this one.
            raise OperationFailed(Reason.REFUSED, "a data plane before this one may have granted it already")
        return self._readiness.when_ready(request, chunks, lambda: self._prepare(request, chunks))

    def _prepare(self, request: GatewayRequest, chunks: Chunks) -> Result:
        transfers = chunks.instance.transfers
        store = transfers.prepare_store(chunks.transfer, chunks.tenant, chunks.keys, chunks.parent, request.now)
        if not store.locations:
            if store.refused:
                raise OperationFailed(Reason.REFUSED, f"no room for {store.refused} chunks")
            return NOTHING_TO_STORE
        slots = self._slots(chunks.instance, store.locations)
        return encode(StorePrepared(SlotsReply(slots, [location.chunk for location in store.locations])))

    def commit_store(self, request: GatewayRequest, key: Key, number: int, data: bytes) -> Result:
        chunks = self._parts.chunks_of(request, key, number)
        transfers = chunks.instance.transfers
        if data:
            transfers.abort_store(chunks.transfer, request.now)
            raise OperationFailed(Reason.PICKLED, f"{len(data)} bytes came in a message instead of shared memory")
        store = transfers.commit_store(chunks.transfer, chunks.keys, request.now)
        self._parts.counters.moved.stored(len(store.locations), chunks.instance.chunk_layout.chunk_bytes)
        return FALSE if store.refused else YES

    def prepare_retrieve(self, request: GatewayRequest, key: Key, number: int) -> Result:
        chunks = self._parts.chunks_of(request, key, number)
        if not chunks.keys:
            raise OperationFailed(Reason.BAD_ARGUMENTS, "expected at least one whole chunk")
        leased = chunks.instance.transfers.prepare_read(chunks.transfer, chunks.tenant, chunks.keys, request.now)
        slots = self._slots(chunks.instance, locations_of(leased))
        return encode(RetrievePrepared(success=True, data=b"", context=SlotsReply(slots)))

    def commit_retrieve(self, request: GatewayRequest, key: Key, number: int) -> Result:
        chunks = self._parts.chunks_of(request, key, number)
        transfer = chunks.transfer
        transfers = chunks.instance.transfers
        was_leased = transfers.end_read(transfer, request.now) or (
            bool(chunks.keys) and transfers.end_inherited(transfer, chunks.tenant, chunks.keys, request.now)
        )
        self._parts.sessions.read(
            key.request_id, chunks.chain, transfer.space, transfer.start, transfer.end, copied=was_leased
        )
        if not was_leased:
            raise OperationFailed(Reason.UNKNOWN_TRANSFER, "no retrieve of these chunks is open")
        self._parts.counters.moved.read(len(chunks), chunks.instance.chunk_layout.chunk_bytes)
        return YES

    def _slots(self, instance: Instance, locations: Sequence[ChunkLocation]) -> list[ChunkSlot]:
        chunk_layout = instance.chunk_layout
        bases = {segment: self._parts.pool.base(segment) for segment in {location.segment for location in locations}}
        return [
            ChunkSlot(
                bases[location.segment] + location.offset,
                chunk_layout.chunk_bytes,
                chunk_layout.shape,
                chunk_layout.dtype,
            )
            for location in locations
        ]

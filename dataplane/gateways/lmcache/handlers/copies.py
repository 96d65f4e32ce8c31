"""Operations of workers: store and retrieve chunks.

Workers that copy by themselves ask where in the named segment to write and to read. For the others this node copies,
and the answer follows the copy. A store waits for memory on a thread if its pages were not allocated ahead; other
clients are served meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from dataplane.copies.copying import CopyFailed
from dataplane.core.inprocess import LeasedChain
from dataplane.gateways.lmcache.failures import OperationFailed, Reason
from dataplane.gateways.lmcache.handlers.parts import GatewayParts
from dataplane.gateways.lmcache.handlers.requests import LATER, Chunks, GatewayRequest, MakeResult, Result
from dataplane.gateways.lmcache.wire.messages import (
    FALSE,
    NOT_COPIED,
    NOTHING_TO_STORE,
    YES,
    ChunkSlot,
    Key,
    RetrievePrepared,
    SlotsReply,
    StorePrepared,
    encode,
)
from dataplane.gateways.lmcache.workers.copies import Blocks, Copier, Source
from dataplane.gateways.lmcache.workers.registry import Instance
from dataplane.gateways.lmcache.workers.transfers import ChunkLocation, OpenStore, locations_of

COPIED = encode([b"", True])
"""Success without an event to wait for: the copy is complete when this is sent, also on a device."""
ROUNDS = 3
"""How often a store waits for pages if other stores take those that were prepared for it. After that, the loop
allocates the pages itself."""


class CopyHandlers:
    """Handle the stores and retrieves of workers."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts

    # ---- workers that copy by themselves

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
        return self._when_ready(request, chunks, lambda: self._prepare(request, chunks))

    def _prepare(self, request: GatewayRequest, chunks: Chunks) -> Result:
        transfers = chunks.instance.transfers
        store = transfers.prepare_store(
            chunks.transfer, chunks.tenant, chunks.keys, chunks.parent, request.now, chunks.session
        )
        if not _has_room(store):
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
        leased = chunks.instance.transfers.prepare_read(chunks.transfer, chunks.keys, request.now)
        slots = self._slots(chunks.instance, locations_of(leased))
        return encode(RetrievePrepared(success=True, data=b"", context=SlotsReply(slots)))

    def commit_retrieve(self, request: GatewayRequest, key: Key, number: int) -> Result:
        chunks = self._parts.chunks_of(request, key, number)
        transfer = chunks.transfer
        transfers = chunks.instance.transfers
        was_leased = transfers.end_read(transfer, request.now) or (
            bool(chunks.keys) and transfers.end_inherited(transfer, chunks.keys, request.now)
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

    # ---- workers for which this node copies

    def store(self, request: GatewayRequest, key: Key, number: int, blocks: list[list[int]], event: bytes) -> Result:
        chunks = self._parts.chunks_of(request, key, number)
        instance, copier = chunks.instance, _copier(chunks.instance)
        chunks = chunks.first(_real(copier, blocks, len(chunks)))
        if not chunks.keys:
            return COPIED
        self._reads(instance, copier, chunks.transfer.space)
        return self._when_ready(request, chunks, lambda: self._store(request, chunks, blocks, event))

    def _store(self, request: GatewayRequest, chunks: Chunks, blocks: list[list[int]], event: bytes) -> Result:
        instance, copier = chunks.instance, _copier(chunks.instance)
        transfers = instance.transfers
        store = transfers.grant(
            chunks.transfer.space, chunks.tenant, chunks.keys, chunks.parent, request.now, chunks.session
        )
        if not _has_room(store):
            return COPIED
        targets = self._views(instance, store.locations)

        def copy() -> None:
            for chunk, target in targets:
                copier.gather(blocks, chunk, target)

        def done(failed: CopyFailed | None) -> bytes:
            if failed is not None or not instance.attached:
                transfers.abort(store.reservation, request.now)  # only this process was writing there
                raise OperationFailed(Reason.COPY_FAILED, str(failed or "the worker is gone"))
            transfers.publish(store, request.now)
            self._parts.counters.moved.stored(len(store.locations), copier.chunk_bytes)
            return NOT_COPIED if store.refused else COPIED

        return self._copy(request, instance, event, copy, done)

    def retrieve(
        self,
        request: GatewayRequest,
        key: Key,
        number: int,
        blocks: list[list[int]],
        event: bytes,
        skip_tokens: int = 0,
    ) -> Result:
        chunks = self._parts.chunks_of(request, key, number)
        instance, copier = chunks.instance, _copier(chunks.instance)
        if not chunks.keys:
            raise OperationFailed(Reason.BAD_ARGUMENTS, "expected at least one whole chunk")
        _real(copier, blocks, len(chunks))
        transfers, transfer, request_id = instance.transfers, chunks.transfer, key.request_id
        leased = transfers.hold_all(transfer.space, chunks.keys)
        self._reads(instance, copier, transfer.space)
        sources = self._sources(instance, copier, leased)

        def copy() -> None:
            for chunk, source in sources:
                copier.scatter(blocks, chunk, source, skip_tokens)

        def done(failed: CopyFailed | None) -> bytes:
            if failed is None:
                transfers.end_use(leased, request.now)
            else:
                transfers.release(leased)
            self._parts.sessions.read(
                request_id, chunks.chain, transfer.space, transfer.start, transfer.end, copied=failed is None
            )
            if failed is not None:
                raise OperationFailed(Reason.COPY_FAILED, str(failed))
            self._parts.counters.moved.read(len(chunks), copier.chunk_bytes)
            return COPIED

        return self._copy(request, instance, event, copy, done)

    def _copy(
        self,
        request: GatewayRequest,
        instance: Instance,
        event: bytes,
        copy: Callable[[], None],
        done: Callable[[CopyFailed | None], bytes],
    ) -> Result:
        """Copy off the loop once the engine's event has occurred. `done` then returns the answer, or raises the
        failure."""
        copier = _copier(instance)

        def work() -> None:
            copier.begin(event, lambda: instance.over or self._parts.copying.closing)
            try:
                copy()
            finally:
                copier.finish()

        def ended(failed: CopyFailed | None) -> None:
            request.finish(partial(done, failed))
            self._parts.instances.copy_ended(instance)

        instance.copying += 1
        if not self._parts.copying.submit(work, ended, copier if copier.own_thread else None):
            ended(CopyFailed("too many copies are queued"))
        return LATER

    def _reads(self, instance: Instance, copier: Copier, space: int) -> None:
        """Register the worker as a reader of the GPU copies of a space on its device."""
        if copier.device_uuid:
            self._parts.gpu_copies.read_by(instance.client, copier.device_uuid, space)

    def _sources(self, instance: Instance, copier: Copier, leased: LeasedChain) -> list[tuple[int, Source]]:
        """Return each chunk with its bytes in the named segment or the address of its GPU copy on the worker's
        device."""
        views = self._views(instance, locations_of(leased))
        if not copier.device_uuid:
            return [*views]
        near = self._parts.gpu_copies.addresses(copier.device_uuid, leased.descriptors).tolist()
        return [(chunk, address or view) for (chunk, view), address in zip(views, near, strict=True)]

    def _views(self, instance: Instance, locations: Sequence[ChunkLocation]) -> list[tuple[int, memoryview]]:
        """Return each chunk with its bytes in the named segment."""
        memory, size = self._parts.pool.view(), instance.chunk_layout.chunk_bytes
        starts = [self._parts.pool.base(location.segment) + location.offset for location in locations]
        return [
            (location.chunk, memory[start : start + size]) for location, start in zip(locations, starts, strict=True)
        ]

    # ---- memory for stores

    def _when_ready(self, request: GatewayRequest, chunks: Chunks, store: MakeResult, rounds: int = ROUNDS) -> Result:
        """Return the result of `store` if its memory is ready. Otherwise start to allocate the pages that it lacks,
        return LATER, and call `store` on the loop later. Raise OperationFailed or ProtocolError on failure."""
        chunk_layout = chunks.instance.chunk_layout
        ranges = self._parts.cache.next_ranges(chunks.transfer.space, chunks.keys, chunk_layout.chunk_bytes)
        lacking = self._parts.pool.lacking(ranges) if ranges else []
        if not lacking:
            return store()

        def work() -> None:
            try:
                self._parts.pool.take(lacking)
            except OSError as error:
                raise CopyFailed(error.strerror or str(error)) from None

        def done(failed: CopyFailed | None) -> Result:
            if not chunks.instance.attached:
                raise OperationFailed(Reason.UNKNOWN_INSTANCE, "the worker is gone")
            # If the machine refused the pages, the core gets the same refusal and handles it.
            if failed is None and rounds > 1:
                return self._when_ready(request, chunks, store, rounds - 1)
            return store()

        submitted = self._parts.copying.submit(work, lambda failed: request.finish(partial(done, failed)))
        return LATER if submitted else store()


def _has_room(store: OpenStore) -> bool:
    """Return whether there are chunks to write; False if all are cached already. Raise OperationFailed if there is no
    room for any."""
    if not store.locations and store.refused:
        raise OperationFailed(Reason.REFUSED, f"no room for {store.refused} chunks")
    return bool(store.locations)


def _copier(instance: Instance) -> Copier:
    if instance.chunk_layout.copier is None:
        raise OperationFailed(Reason.UNSUPPORTED, "this worker registered to copy by itself")
    return instance.chunk_layout.copier


def _real(copier: Copier, blocks: Blocks, count: int) -> int:
    try:
        return copier.chunks(blocks, count)
    except CopyFailed as error:
        raise OperationFailed(Reason.BAD_ARGUMENTS, str(error)) from None

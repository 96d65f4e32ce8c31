"""Operations of workers that let this node copy: store and retrieve, answered when the copy has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dataplane.copies.copying import CopyFailed
from dataplane.core.inprocess import LeasedChain
from dataplane.gateways.lmcache.failures import OperationFailed, Reason
from dataplane.gateways.lmcache.handlers.parts import GatewayParts
from dataplane.gateways.lmcache.handlers.readiness import PageReadiness
from dataplane.gateways.lmcache.handlers.requests import LATER, Chunks, GatewayRequest, Result
from dataplane.gateways.lmcache.wire.messages import NOT_COPIED, Key, encode
from dataplane.gateways.lmcache.workers.copies import Blocks, Copier, Source
from dataplane.gateways.lmcache.workers.registry import Instance
from dataplane.gateways.lmcache.workers.transfers import ChunkLocation, locations_of
from dataplane.protocol.codes import ProtocolError

COPIED = encode([b"", True])
"""Success without an event to wait for: the copy is complete when this is sent, also on a device."""


class DrivenCopyHandlers:
    """Handle the operations of workers that let this node copy."""

    def __init__(self, parts: GatewayParts, readiness: PageReadiness) -> None:
        self._parts = parts
        self._readiness = readiness

    def store(self, request: GatewayRequest, key: Key, number: int, blocks: list[list[int]], event: bytes) -> Result:
        chunks = self._parts.chunks_of(request, key, number)
        instance, copier = chunks.instance, _copier(chunks.instance)
        chunks = chunks.first(_real(copier, blocks, len(chunks)))
        if not chunks.keys:
            return COPIED
        self._reads(instance, copier, chunks.transfer.space)
        return self._readiness.when_ready(request, chunks, lambda: self._store(request, chunks, blocks, event))

    def _store(self, request: GatewayRequest, chunks: Chunks, blocks: list[list[int]], event: bytes) -> Result:
        instance, copier = chunks.instance, _copier(chunks.instance)
        transfers = instance.transfers
        store = transfers.grant(chunks.transfer.space, chunks.tenant, chunks.keys, chunks.parent, request.now)
        if not store.locations:
            if store.refused:
                raise OperationFailed(Reason.REFUSED, f"no room for {store.refused} chunks")
            return COPIED
        targets = self._views(instance, store.locations)

        def copy() -> None:
            for chunk, target in targets:
                copier.gather(blocks, chunk, target)

        def done(failed: CopyFailed | None) -> bytes:
            now = self._parts.clock()
            if failed is not None or not instance.attached:
                transfers.abort(store.reservation, now)  # only this process was writing there
                raise OperationFailed(Reason.COPY_FAILED, str(failed or "the worker is gone"))
            transfers.publish(store, now)
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
        leased = transfers.hold_all(transfer.space, chunks.tenant, chunks.keys, request.now)
        self._reads(instance, copier, transfer.space)
        sources = self._sources(instance, copier, leased)

        def copy() -> None:
            for chunk, source in sources:
                copier.scatter(blocks, chunk, source, skip_tokens)

        def done(failed: CopyFailed | None) -> bytes:
            if failed is None:
                transfers.end_use(leased, self._parts.clock())
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
        """Copy off the loop once the engine's event has occurred.

        `done` returns the answer, or raises OperationFailed or ProtocolError.
        """
        copier = _copier(instance)

        def work() -> None:
            copier.begin(event, lambda: instance.over or self._parts.copying.closing)
            try:
                copy()
            finally:
                copier.finish()

        def ended(failed: CopyFailed | None) -> None:
            try:
                result: bytes | None = done(failed)
            except (OperationFailed, ProtocolError) as error:
                result = self._parts.failed(request, error)
            finally:
                self._parts.instances.copy_ended(instance)
            request.reply(result)

        instance.copying += 1
        if not self._parts.copying.submit(work, ended, copier if copier.own_thread else None):
            ended(CopyFailed("too many copies are queued"))
        return LATER

    def _reads(self, instance: Instance, copier: Copier, space: int) -> None:
        """Register the worker as a reader of the GPU copies of a space on its device."""
        if copier.device_uuid and self._parts.gpu_copies is not None:
            self._parts.gpu_copies.read_by(instance.client, copier.device_uuid, space)

    def _sources(self, instance: Instance, copier: Copier, leased: LeasedChain) -> list[tuple[int, Source]]:
        """Return each chunk with its bytes in the named segment or the address of its GPU copy on the worker's
        device."""
        views = self._views(instance, locations_of(leased))
        if not copier.device_uuid or self._parts.gpu_copies is None:
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


def _copier(instance: Instance) -> Copier:
    if instance.chunk_layout.copier is None:
        raise OperationFailed(Reason.UNSUPPORTED, "this worker registered to copy by itself")
    return instance.chunk_layout.copier


def _real(copier: Copier, blocks: Blocks, count: int) -> int:
    try:
        return copier.chunks(blocks, count)
    except CopyFailed as error:
        raise OperationFailed(Reason.BAD_ARGUMENTS, str(error)) from None

"""What workers ask that let this node copy: store and retrieve, answered when the copy ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dataplane.core.inprocess import Held
from dataplane.protocol.codes import ProtocolError
from dataplane.transport.copying import CopyFailed, Copying
from dataplane.transport.lmcache.cache import Pool
from dataplane.transport.lmcache.copies import Blocks, Copier, Source
from dataplane.transport.lmcache.counters import Moved
from dataplane.transport.lmcache.failures import NOT_COPIED, Failed, Reason
from dataplane.transport.lmcache.instances import Instance, Instances
from dataplane.transport.lmcache.messages import Key, encode
from dataplane.transport.lmcache.requests import LATER, Asked, Result, as_failed
from dataplane.transport.lmcache.sessions import Sessions
from dataplane.transport.lmcache.slots import Resolve
from dataplane.transport.lmcache.transfers import Place, places_of
from dataplane.transport.replicas import ReplicaCopies

COPIED = encode([b"", True])
"""Without an event to wait for: the copy is done when this is sent, on a device too."""


class Driven:
    """Operations of workers that let this node copy."""

    def __init__(
        self,
        pool: Pool,
        instances: Instances,
        sessions: Sessions,
        resolve: Resolve,
        moved: Moved,
        copying: Copying,
        clock: Callable[[], float],
        failed: Callable[[str, Failed], None],
        replicas: ReplicaCopies | None,
    ) -> None:
        """`failed` counts what failed after its request was served."""
        self._pool = pool
        self._instances = instances
        self._sessions = sessions
        self._resolve = resolve
        self._moved = moved
        self._copying = copying
        self._clock = clock
        self._failed = failed
        self._replicas = replicas

    def store(self, asked: Asked, key: Key, number: int, blocks: list[list[int]], event: bytes) -> Result:
        chunks = self._resolve(asked, key, number)
        instance, copier = chunks.instance, _copier(chunks.instance)
        chunks = chunks.first(_real(copier, blocks, len(chunks)))
        if not chunks.keys:
            return COPIED
        transfers = instance.transfers
        self._reads(instance, copier, chunks.transfer.space)
        store = transfers.grant(chunks.transfer.space, chunks.tenant, chunks.keys, chunks.parent, asked.now)
        if not store.places:
            if store.refused:
                raise Failed(Reason.REFUSED, f"no room for {store.refused} chunks")
            return COPIED
        targets = self._views(instance, store.places)

        def copy() -> None:
            for chunk, target in targets:
                copier.gather(blocks, chunk, target)

        def done(failed: CopyFailed | None) -> bytes:
            now = self._clock()
            if failed is not None or not instance.attached:
                transfers.give_up(store, now)  # nobody but this process was writing there
                raise Failed(Reason.COPY_FAILED, str(failed or "the worker is gone"))
            transfers.publish(store, now)
            self._moved.stored(len(store.places), copier.chunk_bytes)
            return NOT_COPIED if store.refused else COPIED

        return self._copy(asked, instance, event, copy, done)

    def retrieve(
        self,
        asked: Asked,
        key: Key,
        number: int,
        blocks: list[list[int]],
        event: bytes,
        skip_tokens: int = 0,
    ) -> Result:
        chunks = self._resolve(asked, key, number)
        instance, copier = chunks.instance, _copier(chunks.instance)
        if not chunks.keys:
            raise Failed(Reason.BAD_ARGUMENTS, "expected at least one whole chunk")
        _real(copier, blocks, len(chunks))
        transfers, transfer, request_id = instance.transfers, chunks.transfer, key.request_id
        held = transfers.hold_all(transfer.space, chunks.tenant, chunks.keys, asked.now)
        self._reads(instance, copier, transfer.space)
        sources = self._sources(instance, copier, held)

        def copy() -> None:
            for chunk, source in sources:
                copier.scatter(blocks, chunk, source, skip_tokens)

        def done(failed: CopyFailed | None) -> bytes:
            transfers.let_go(held)
            self._sessions.read(request_id, chunks.chain, transfer.space, transfer.start, transfer.end)
            if failed is not None:
                raise Failed(Reason.COPY_FAILED, str(failed))
            self._moved.read(len(chunks), copier.chunk_bytes)
            return COPIED

        return self._copy(asked, instance, event, copy, done)

    def _copy(
        self,
        asked: Asked,
        instance: Instance,
        event: bytes,
        copy: Callable[[], None],
        done: Callable[[CopyFailed | None], bytes],
    ) -> Result:
        """Copy off the loop, behind the engine's event; `done` makes the answer, or raises Failed or ProtocolError."""
        copier = _copier(instance)

        def work() -> None:
            copier.begin(event, lambda: instance.over or self._copying.closing)
            try:
                copy()
            finally:
                copier.finish()

        def ended(failed: CopyFailed | None) -> None:
            try:
                result = done(failed)
            except (Failed, ProtocolError) as error:
                self._failed(asked.operation, as_failed(error))
                result = NOT_COPIED
            finally:
                self._instances.copy_ended(instance)
            asked.reply(result)

        instance.copying += 1
        if not self._copying.submit(work, ended, copier if copier.own_thread else None):
            ended(CopyFailed("too many copies wait"))
        return LATER

    def _reads(self, instance: Instance, copier: Copier, space: int) -> None:
        """From here on replicas of a space are of use on the worker's device."""
        if copier.device_uuid and self._replicas is not None:
            self._replicas.read_by(instance.client, copier.device_uuid, space)

    def _sources(self, instance: Instance, copier: Copier, held: Held) -> list[tuple[int, Source]]:
        """(chunk, its bytes in the named segment, or the address of its replica on the worker's device)."""
        views = self._views(instance, places_of(held))
        if not copier.device_uuid or self._replicas is None:
            return [*views]
        near = self._replicas.places(copier.device_uuid, held.descriptors).tolist()
        return [(chunk, address or view) for (chunk, view), address in zip(views, near, strict=True)]

    def _views(self, instance: Instance, places: Sequence[Place]) -> list[tuple[int, memoryview]]:
        """(chunk, its bytes in the named segment)."""
        memory, size = self._pool.view(), instance.form.chunk_bytes
        starts = [self._pool.base(place.segment) + place.offset for place in places]
        return [
            (place.chunk, memory[start : start + size]) for place, start in zip(places, starts, strict=True)
        ]


def _copier(instance: Instance) -> Copier:
    if instance.form.copier is None:
        raise Failed(Reason.UNSUPPORTED, "this worker registered to copy by itself")
    return instance.form.copier


def _real(copier: Copier, blocks: Blocks, wanted: int) -> int:
    try:
        return copier.chunks(blocks, wanted)
    except CopyFailed as error:
        raise Failed(Reason.BAD_ARGUMENTS, str(error)) from None

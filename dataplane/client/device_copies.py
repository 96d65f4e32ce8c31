"""Stores and loads of a paged cache in progress. They end with `finish`, `abort`, or their `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from dataplane.client.extents import OpenExtent
from dataplane.client.leases import Lease
from dataplane.client.memory import SharedMapping
from dataplane.client.paged_memory import BlockSource, PagedMemory
from dataplane.client.reservations import CommitResult, Reservation
from dataplane.devices.runtime import DeviceError, DeviceEvent, DeviceStream
from dataplane.protocol.codes import Code

_EVERYTHING = slice(None)
_AHEAD = 4
"""Layers of a load that are enqueued before the engine waits for them. Each takes this thread some 0.1 ms, which would
hold up the engine's own work."""


class _RunBuilder:
    """Blocks of many chunks, grouped by mapping or extent: each group is one batch of copies."""

    def __init__(self) -> None:
        self._columns: dict[int, tuple[SharedMapping | OpenExtent, list[int], list[int], list[int]]] = {}

    def add(self, memory: SharedMapping | OpenExtent, address: int, numbers: Sequence[int], first: int) -> None:
        _, block_numbers, positions, begins = self._columns.setdefault(memory.address, (memory, [], [], []))
        block_numbers += numbers
        positions += range(first, first + len(numbers))
        begins += [address - memory.address] * len(numbers)

    def made(self) -> list[BlockSource]:
        return [
            BlockSource(memory, *(np.array(column, np.int64) for column in columns))
            for memory, *columns in self._columns.values()
        ]


class _Copy(ABC):
    """Common part of stores and loads."""

    def __init__(self, cache: PagedMemory) -> None:
        self._cache = cache
        self._failed: DeviceError | None = None
        self._ended = False
        self._extents: set[OpenExtent] = set()
        """Extents of the GPU copies that are read."""

    @property
    def failed(self) -> DeviceError | None:
        """Failure of this copy, if one is known by now."""
        return self._failed

    def _fail(self, error: DeviceError) -> None:
        if self._failed is None:
            # The traceback's frames refer to views of blocks, which would live as long as this object.
            self._failed = error.with_traceback(None)
            self._cache.emit("a copy failed", error)

    def _settle(self) -> bool:
        """Wait until nothing is under way. Return whether all copies succeeded; False if it had ended before."""
        if self._ended:
            return False
        self._ended = True
        try:
            self._cache.synchronize()
        except DeviceError as error:
            self._fail(error)
        finally:
            extents, self._extents = self._extents, set()
            self._cache.ended(extents)
        return self._failed is None

    @abstractmethod
    def abort(self) -> None:
        """Wait for copies that are under way, and give up the reservation or lease."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class DeviceStore(_Copy):
    """A reservation that is being filled from a device."""

    def __init__(self, cache: PagedMemory, reservation: Reservation, blocks: Sequence[int]) -> None:
        super().__init__(cache)
        self._reservation = reservation
        per_chunk = cache.group.blocks_per_chunk
        self._arrays = [reservation.array(at) for at in reservation.writable]
        """Arrays that keep the memory alive, even if another thread ends the reservation."""
        builder = _RunBuilder()
        for at, array in zip(reservation.writable, self._arrays, strict=True):
            chunk_blocks = blocks[at * per_chunk : (at + 1) * per_chunk]
            builder.add(reservation.memory(at), int(array.ctypes.data), chunk_blocks, 0)
        self._runs = builder.made()
        self._copied: set[int] = set()

    def layer(self, number: int, after: DeviceEvent | None = None) -> None:
        """Enqueue one layer of all chunks, behind an event of the engine's stream."""
        if not 0 <= number < self._cache.layers:
            raise ValueError(f"expected a layer from 0 to {self._cache.layers - 1}, got {number}")
        self._enqueue(slice(number, number + 1), after)

    def all(self, after: DeviceEvent | None = None) -> DeviceStore:
        """Enqueue all layers of all chunks, behind an event of the engine's stream."""
        self._enqueue(_EVERYTHING, after)
        return self

    def _enqueue(self, tensors: slice, after: DeviceEvent | None) -> None:
        if self._ended:
            raise ValueError("the store has ended")
        if self._failed is not None:
            return
        try:
            self._cache.enqueue(self._runs, tensors, to_device=False, after=after)
            self._copied |= set(range(*tensors.indices(self._cache.layers)))
        except DeviceError as error:
            self._fail(error)

    def finish(self) -> CommitResult:
        """Wait, then publish. After a failure, or if a layer is missing, publish nothing and end the reservation."""
        complete = len(self._copied) == self._cache.layers or not self._arrays
        if not self._settle() or not complete:
            self._give_up()
            return CommitResult(0, Code.UNAVAILABLE, self._reservation.outcomes.tobytes())
        self._arrays = []
        return self._reservation.commit()

    def abort(self) -> None:
        """Wait for copies that are under way, and end the reservation. Does nothing after `finish`."""
        if not self._ended:
            self._settle()
            self._give_up()

    def _give_up(self) -> None:
        self._arrays = []
        self._reservation.abort()


class DeviceLoad(_Copy):
    """A lease whose blocks are being copied to a device."""

    def __init__(
        self, cache: PagedMemory, lease: Lease, blocks: Sequence[int], first: int, space: int, after: DeviceEvent | None
    ) -> None:
        super().__init__(cache)
        self._lease = lease
        self._arrived: list[DeviceEvent] = []
        per_chunk = cache.group.blocks_per_chunk
        last = first + len(blocks) - 1
        chunks = range(first // per_chunk, last // per_chunk + 1) if len(blocks) else range(0)
        self._arrays = [lease.array(chunk, space) for chunk in chunks]
        """Arrays that hold the blocks, even if another thread releases the lease."""
        memories = [lease.memory(chunk, space) for chunk in chunks]
        gpu_copies = cache.find(lease, chunks.start, chunks.stop, space)
        self._extents = {gpu_copy.extent for gpu_copy in gpu_copies if gpu_copy is not None}
        self._gpu_copies = sum(gpu_copy is not None for gpu_copy in gpu_copies)
        try:
            builder = _RunBuilder()
            for chunk, array, memory, gpu_copy in zip(chunks, self._arrays, memories, gpu_copies, strict=True):
                begin = chunk * per_chunk - first
                chunk_blocks = blocks[max(0, begin) : begin + per_chunk]
                within = max(0, -begin)
                if gpu_copy is None:
                    builder.add(memory, int(array.ctypes.data), chunk_blocks, within)
                else:
                    builder.add(gpu_copy.extent, gpu_copy.address, chunk_blocks, within)
            self._runs = builder.made()
            self._after = after
            self._until(_AHEAD)
        except BaseException:
            self._undo()
            raise

    def _until(self, layers: int) -> None:
        """Enqueue the first `layers` layers, one by one. Do nothing after the end: the lease is released."""
        while not self._ended and self._failed is None and len(self._arrived) < min(layers, self._cache.layers):
            number = len(self._arrived)
            self._enqueue(slice(number, number + 1))

    def _enqueue(self, layers: slice) -> None:
        try:
            self._cache.enqueue(self._runs, layers, to_device=True, after=self._after)
            self._after = None
            self._arrived.append(self._cache.record())
        except DeviceError as error:
            self._fail(error)

    def _undo(self) -> None:
        """Undo a load whose construction failed: some of its copies may be under way."""
        try:
            self._cache.synchronize()
        except DeviceError as error:
            self._fail(error)
        finally:
            self._cache.release(self._extents)

    @property
    def gpu_copies(self) -> int:
        """Chunks that are read from GPU copies on the device; the others come from the pool."""
        return self._gpu_copies

    def wait_layer(self, number: int, stream: DeviceStream) -> bool:
        """Make an engine stream wait, on the device, until a layer is copied. Return False if the copy has failed."""
        self._until(number + 1 + _AHEAD)
        if self._failed is not None or not 0 <= number < len(self._arrived):
            return False
        stream.wait(self._arrived[number])
        return True

    def arrived(self, number: int) -> bool:
        """Return whether a layer is copied."""
        self._until(number + 1 + _AHEAD)
        return self._failed is None and number < len(self._arrived) and self._arrived[number].query()

    def finish(self) -> bool:
        """Enqueue the remaining layers, wait for all copies, and release the lease. Return False if the blocks are
        unusable."""
        if not self._ended and self._failed is None and len(self._arrived) < self._cache.layers:
            self._enqueue(slice(len(self._arrived), self._cache.layers))
        settled = self._settle()
        self._release()
        return settled

    def abort(self) -> None:
        """Wait for copies that are under way, and release the lease. Does nothing after `finish`."""
        if not self._ended:
            self._settle()
            self._release()

    def _release(self) -> None:
        self._arrays = []
        self._lease.release()
        arrived, self._arrived = self._arrived, []
        for event in arrived:
            try:
                event.close()
            except DeviceError as error:
                self._fail(error)

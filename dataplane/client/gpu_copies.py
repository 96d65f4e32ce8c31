"""One store and one load of a paged cache, as half-made things: they end by `finish` or `abort`, and by leaving the
with-block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dataplane.client.extents import Extent
from dataplane.client.leases import Lease
from dataplane.client.memory import Memory
from dataplane.client.reservations import Committed, Reservation
from dataplane.devices.runtime import I64, DeviceError, Event, Stream
from dataplane.protocol.codes import Code

if TYPE_CHECKING:
    from dataplane.client.gpu import PagedCache

_EVERYTHING = slice(None)


class Place(NamedTuple):
    """Blocks whose chunks lie in one mapping, or in one extent of replicas."""

    memory: Memory | Extent
    numbers: I64
    positions: I64
    """Of each block in its chunk."""
    begins: I64
    """Where each block's chunk begins, in bytes from the start of either."""


class _Places:
    """Blocks, chunk by chunk, put together by mapping or extent: one of them is one batch of copies."""

    def __init__(self) -> None:
        self._columns: dict[int, tuple[Memory | Extent, list[int], list[int], list[int]]] = {}

    def add(self, memory: Memory | Extent, address: int, numbers: Sequence[int], first: int) -> None:
        _, known, positions, begins = self._columns.setdefault(memory.address, (memory, [], [], []))
        known += numbers
        positions += range(first, first + len(numbers))
        begins += [address - memory.address] * len(numbers)

    def made(self) -> list[Place]:
        return [
            Place(memory, *(np.array(column, np.int64) for column in columns))
            for memory, *columns in self._columns.values()
        ]


class _Copy(ABC):
    """What stores and loads have in common."""

    def __init__(self, cache: PagedCache) -> None:
        self._cache = cache
        self._failed: DeviceError | None = None
        self._ended = False
        self._extents: set[Extent] = set()
        """Of replicas that are read."""

    @property
    def failed(self) -> DeviceError | None:
        """What went wrong, as far as it is known by now."""
        return self._failed

    def _fail(self, error: DeviceError) -> None:
        if self._failed is None:
            # Its traceback has the frames that refer to views of blocks: they would be held as long as this is.
            self._failed = error.with_traceback(None)
            self._cache.tell("a copy failed", error)

    def _settle(self) -> bool:
        """Wait until nothing is under way. Whether all went well; False when it had ended before."""
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
        """Wait for what is under way, and give everything up."""

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class Store(_Copy):
    """A reservation that is being filled from a device."""

    def __init__(self, cache: PagedCache, reservation: Reservation, blocks: Sequence[int]) -> None:
        super().__init__(cache)
        self._reservation = reservation
        per_chunk = cache.form.blocks_per_chunk
        self._arrays = [reservation.array(at) for at in reservation.writable]
        """They keep the memory, also when the reservation is ended by somebody else."""
        places = _Places()
        for at, array in zip(reservation.writable, self._arrays, strict=True):
            own = blocks[at * per_chunk : (at + 1) * per_chunk]
            places.add(reservation.memory(at), int(array.ctypes.data), own, 0)
        self._places = places.made()
        self._copied: set[int] = set()

    def layer(self, number: int, after: Event | None = None) -> None:
        """Enqueue one layer of all chunks, behind an event of the engine's stream."""
        if not 0 <= number < self._cache.layers:
            raise ValueError(f"expected a layer from 0 to {self._cache.layers - 1}, got {number}")
        self._enqueue(slice(number, number + 1), after)

    def all(self, after: Event | None = None) -> Store:
        """Enqueue all layers of all chunks, behind an event of the engine's stream."""
        self._enqueue(_EVERYTHING, after)
        return self

    def _enqueue(self, tensors: slice, after: Event | None) -> None:
        if self._ended:
            raise ValueError("the store has ended")
        if self._failed is not None:
            return
        try:
            self._cache.enqueue(self._places, tensors, to_device=False, after=after)
            self._copied |= set(range(*tensors.indices(self._cache.layers)))
        except DeviceError as error:
            self._fail(error)

    def finish(self) -> Committed:
        """Wait, then publish. After a failure, or without some layer, nothing is published and the reservation ends."""
        whole = len(self._copied) == self._cache.layers or not self._arrays
        if not self._settle() or not whole:
            self._give_up()
            return Committed(0, Code.UNAVAILABLE)
        self._arrays = []
        return self._reservation.commit()

    def abort(self) -> None:
        """Wait for what is under way, and end the reservation; does nothing after `finish`."""
        if not self._ended:
            self._settle()
            self._give_up()

    def _give_up(self) -> None:
        self._arrays = []
        self._reservation.abort()


class Load(_Copy):
    """A lease whose blocks are being copied to a device."""

    def __init__(
        self,
        cache: PagedCache,
        lease: Lease,
        blocks: Sequence[int],
        first: int,
        space: int,
        after: Event | None,
    ) -> None:
        super().__init__(cache)
        self._lease = lease
        self._arrived: list[Event] = []
        per_chunk = cache.form.blocks_per_chunk
        last = first + len(blocks) - 1
        chunks = range(first // per_chunk, last // per_chunk + 1) if len(blocks) else range(0)
        self._arrays = [lease.array(chunk, space) for chunk in chunks]
        """They hold the blocks, also when the lease is released by somebody else."""
        memories = [lease.memory(chunk, space) for chunk in chunks]
        found = cache.find(lease, chunks.start, chunks.stop, space)
        self._extents = {replica.extent for replica in found if replica is not None}
        self._replicas = sum(replica is not None for replica in found)
        try:
            places = _Places()
            for chunk, array, memory, replica in zip(chunks, self._arrays, memories, found, strict=True):
                begin = chunk * per_chunk - first
                own = blocks[max(0, begin) : begin + per_chunk]
                within = max(0, -begin)
                if replica is None:
                    places.add(memory, int(array.ctypes.data), own, within)
                else:
                    places.add(replica.extent, replica.address, own, within)
            made = places.made()
            for number in range(cache.layers):
                layer = slice(number, number + 1)
                cache.enqueue(made, layer, to_device=True, after=after if number == 0 else None)
                self._arrived.append(cache.record())
        except DeviceError as error:
            self._fail(error)
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        """It never was: some of its copies may be under way."""
        try:
            self._cache.synchronize()
        except DeviceError as error:
            self._fail(error)
        finally:
            self._cache.let_go(self._extents)

    @property
    def replicas(self) -> int:
        """Chunks that are read from replicas on the device; the others come from the pool."""
        return self._replicas

    def wait_layer(self, number: int, stream: Stream) -> bool:
        """Have a stream of the engine wait, on the device, until a layer is there. False: it never will be."""
        if self._failed is not None or not 0 <= number < len(self._arrived):
            return False
        stream.wait(self._arrived[number])
        return True

    def arrived(self, number: int) -> bool:
        """Whether a layer is there."""
        return self._failed is None and number < len(self._arrived) and self._arrived[number].query()

    def finish(self) -> bool:
        """Wait, and let the lease go. False: the blocks hold nothing that may be used."""
        well = self._settle()
        self._let_go()
        return well

    def abort(self) -> None:
        """Wait for what is under way, and let the lease go; does nothing after `finish`."""
        if not self._ended:
            self._settle()
            self._let_go()

    def _let_go(self) -> None:
        self._arrays = []
        self._lease.release()
        arrived, self._arrived = self._arrived, []
        for event in arrived:
            try:
                event.close()
            except DeviceError as error:
                self._fail(error)

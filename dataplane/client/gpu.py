"""Paged cache of an engine on a device: copies its chunks to and from the pool without an intermediate copy.

    cache = PagedCache.of_tensors(client, list(kv_caches.values()), tokens_per_block=16)
    with client.reserve(keys, cache.chunk_bytes, tenant=salt) as reservation:
        store = cache.store(reservation, blocks)
        for number in range(cache.layers):       # as the forward pass goes on
            store.layer(number, after=computed)  # an event of the engine's stream
        store.finish()                           # waits, then commits
    load = cache.load(client.acquire(keys), blocks)
    load.wait_layer(0, stream)                   # the engine's stream waits on the device
    load.finish()                                # True: all bytes are copied; the lease is released

The pool's segments are registered with the runtime when they are first used, read-only if they are mapped
read-only. If registration is refused, copies go through a staging buffer, and this is logged once. Blocks that have
a GPU copy on this device (pins of the tier `gpu`) are loaded from there. Copies run on a separate stream, in the
order of the calls. A copy that fails ends its reservation or lease. None of its blocks is published, and the engine
sees no exception except for wrong arguments.

`dataplane.devices.find` finds CUDA. Only `of_tensors` needs torch.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dataplane.client.client import Client
from dataplane.client.gpu_copies import GpuCopies, GpuCopy, OpenExtent
from dataplane.client.leases import Lease
from dataplane.client.memory import SharedMapping
from dataplane.client.reservations import CommitResult, Reservation
from dataplane.devices.copying import CopyLane, Part, methods_for, pinned_part
from dataplane.devices.find import find
from dataplane.devices.paged import LayoutRefused, Planes, Runs, TensorGroup, block_axis, planes_of
from dataplane.devices.pinning import PinnedMemory, Staging
from dataplane.devices.runtime import I64, Device, DeviceError, DeviceEvent, DeviceRuntime, DeviceStream, device_of
from dataplane.protocol.codes import Code
from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS

if TYPE_CHECKING:
    import torch

_EVERYTHING = slice(None)
_AHEAD = 4
"""Layers of a load that are enqueued before the engine waits for them. Each takes this thread some 0.1 ms, which would
hold up the engine's own work."""

_log = logging.getLogger("larder.client")


class BlockSource(NamedTuple):
    """Blocks whose chunks lie in one mapping, or in one extent of GPU copies."""

    memory: SharedMapping | OpenExtent
    numbers: I64
    positions: I64
    """Position of each block in its chunk."""
    begins: I64
    """Start of each block's chunk, in bytes from the start of the mapping or extent."""


class PagedCache:
    """Paged tensors of one device that share block numbers, one tensor per layer. Threads may share it."""

    def __init__(
        self,
        client: Client,
        runtime: DeviceRuntime,
        device: Device,
        tensors: Sequence[Planes],
        bases: Sequence[int],
        *,
        blocks: int,
        tokens_per_block: int,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
        gpu_copies: bool = True,
    ) -> None:
        """Prepare for copies. Raise DeviceError, or ValueError for wrong arguments.

        `bases` are the addresses from which the planes of each tensor are counted. Without `gpu_copies`, loads read
        only the pool.
        """
        if not tensors or len(tensors) != len(bases):
            raise ValueError(f"expected an address for each tensor, got {len(bases)} for {len(tensors)}")
        if tokens_per_block < 1 or chunk_tokens % tokens_per_block:
            raise ValueError(f"expected blocks whose tokens divide {chunk_tokens}, got {tokens_per_block}")
        self.group = TensorGroup(blocks, tokens_per_block, chunk_tokens // tokens_per_block, tuple(tensors))
        self.runtime = runtime
        self.device = device
        self._client = client
        self._bases = list(bases)
        self._pins: dict[int, tuple[SharedMapping, PinnedMemory]] = {}
        """Registered mappings by address. Each mapping is kept as long as it is registered."""
        self._staging: Staging | None = None
        self._under_way = 0
        self._closed = False
        self._lock = threading.RLock()
        self._gpu_copies: GpuCopies | None = None
        with ExitStack() as opening:
            self._methods = methods_for(runtime, device)
            if self._methods.pages is not None:
                opening.callback(self._methods.pages.close)
            self._lane = CopyLane(runtime, device, self._methods)
            opening.callback(self._lane.close)
            if gpu_copies:
                self._gpu_copies = client.gpu_copies(runtime, device)
                self._gpu_copies.enter()
            opening.pop_all()

    @classmethod
    def of_tensors(
        cls,
        client: Client,
        tensors: Sequence[torch.Tensor],
        *,
        tokens_per_block: int,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
        gpu_copies: bool = True,
    ) -> PagedCache:
        """Return a cache of CUDA tensors, one per layer. Raise DeviceError without CUDA, or ValueError."""
        import torch

        devices = {tensor.device for tensor in tensors}
        if len(devices) != 1 or next(iter(devices)).type != "cuda":
            raise ValueError(f"expected tensors of one CUDA device, got {sorted(map(str, devices))}")
        runtime = find()
        uuid = str(torch.cuda.get_device_properties(next(iter(devices))).uuid)
        try:
            planes = [planes_of(tuple(tensor.shape), tensor.stride(), tensor.element_size()) for tensor in tensors]
        except LayoutRefused as error:
            raise ValueError(str(error)) from None
        return cls(
            client,
            runtime,
            device_of(runtime, uuid),
            planes,
            [tensor.data_ptr() for tensor in tensors],
            blocks=min(tensor.shape[block_axis(tensor.shape)] for tensor in tensors),
            tokens_per_block=tokens_per_block,
            chunk_tokens=chunk_tokens,
            gpu_copies=gpu_copies,
        )

    @property
    def layers(self) -> int:
        return len(self._bases)

    @property
    def chunk_bytes(self) -> int:
        """Bytes to reserve for a chunk."""
        return self.group.chunk_bytes

    @property
    def staged(self) -> bool:
        """Whether copies go through a staging buffer because registration of the pool was refused."""
        return self._staging is not None

    def event(self) -> DeviceEvent:
        """Return an event that the engine can record on its stream. Raise DeviceError."""
        return self.runtime.event(self.device)

    def stream_of(self, native: int) -> DeviceStream:
        """Wrap the engine's own stream, given as `torch.cuda.current_stream().cuda_stream`. Raise DeviceError."""
        return self.runtime.external_stream(self.device, native)

    # ---- copies

    def store(self, reservation: Reservation, blocks: Sequence[int]) -> DeviceStore:
        """Begin to fill a reservation: key `i` takes the `i`-th chunk of `blocks`. Raise ValueError."""
        count = len(reservation.outcomes)
        self._check(blocks, count * self.group.blocks_per_chunk)
        if len(blocks) < count * self.group.blocks_per_chunk:
            raise ValueError(
                f"expected {count * self.group.blocks_per_chunk} blocks of {count} chunks, got {len(blocks)}"
            )
        with self._begun():
            return DeviceStore(self, reservation, blocks)

    def load(
        self, lease: Lease, blocks: Sequence[int], *, first: int = 0, space: int = 0, after: DeviceEvent | None = None
    ) -> DeviceLoad:
        """Copy leased blocks into the engine's blocks, starting at position `first` of the chain.

        As many positions are copied as `blocks` has numbers. The layers are copied in order, behind `after`: the first
        ones at once, the others as `wait_layer` comes near them, or with `finish`. The copy takes over the lease.
        Raises ValueError for invalid numbers and for a released lease.
        """
        if first < 0:
            raise ValueError(f"expected a position, got first={first}")
        self._check(blocks, len(lease) * self.group.blocks_per_chunk - first)
        with self._begun():
            return DeviceLoad(self, lease, blocks, first, space, after)

    def _check(self, blocks: Sequence[int], most: int) -> None:
        if self._closed:
            raise ValueError("the paged cache is closed")
        if len(blocks) > most:
            raise ValueError(f"expected at most {max(0, most)} blocks, got {len(blocks)}")
        if len(blocks) and not 0 <= min(blocks) <= max(blocks) < self.group.blocks:
            raise ValueError(f"expected blocks from 0 to {self.group.blocks - 1}")

    @contextmanager
    def _begun(self) -> Iterator[None]:
        """Count a new copy, which calls `ended`. If no other copy is under way, first unregister segments that the
        client has given up."""
        if self._gpu_copies is not None:
            self._gpu_copies.look()
        with self._lock:
            if not self._under_way:
                mapped = {memory.address for memory in self._client.mapped}
                for address in [address for address in self._pins if address not in mapped]:
                    self._unpin(address)
            self._under_way += 1
        try:
            yield
        except BaseException:
            self.ended()
            raise

    def _unpin(self, address: int) -> None:
        memory, pinned = self._pins.pop(address)
        try:
            pinned.close()
        except DeviceError as error:
            self.emit("a segment could not be unpinned", error)
        del memory

    # ---- for stores and loads

    def enqueue(
        self, sources: Sequence[BlockSource], tensors: slice, *, to_device: bool, after: DeviceEvent | None = None
    ) -> None:
        """Enqueue copies of some layers of some blocks. Raise DeviceError."""
        with self._lock:
            if after is not None:
                self._lane.stream.wait(after)
            within: list[Part] = []
            pinned: list[Part] = []
            for source in sources:
                runs = self.group.runs(
                    source.numbers, bases=self._bases, tensors=tensors, in_chunks=(source.positions, source.begins)
                )
                if isinstance(source.memory, OpenExtent):
                    within.append(Part(runs, source.memory.address))
                elif (part := self._pinned(source.memory, runs)) is not None:
                    pinned.append(part)
                else:
                    if self._staging is None:
                        self._staging = Staging(self.runtime)
                    self._lane.copy_staged(runs, self._staging, source.memory.address, to_device=to_device)
            if within:
                self._lane.copy_together(within, to_device=to_device, within=True)
            if pinned:
                self._lane.copy_together(pinned, to_device=to_device)

    def _pinned(self, memory: SharedMapping, runs: Runs) -> Part | None:
        """Register what these copies need. Return None if that is or was refused."""
        if self._staging is not None:
            return None
        pin = self._pins.get(memory.address)
        if pin is None:
            pinned = PinnedMemory(self.runtime, memory.address, memory.nbytes, read_only=not memory.writable)
            pin = self._pins[memory.address] = memory, pinned
        part = pinned_part(runs, pin[1], 0)
        if part is None and pin[1].refused is not None:
            self.emit(
                "the pool cannot be registered with the device, copies go through a staging buffer", pin[1].refused
            )
        return part

    def record(self) -> DeviceEvent:
        """Return an event that is recorded after all enqueued copies. Raise DeviceError."""
        with self._lock:
            event = self.runtime.event(self.device)
            self._lane.record(event)
            return event

    def synchronize(self) -> None:
        """Wait for all enqueued copies. Raise DeviceError."""
        with self._lock:
            self._lane.synchronize()

    def find(self, lease: Lease, first: int, end: int, space: int) -> list[GpuCopy | None]:
        """Return the GPU copies of leased chunks on this device. Give them back with `ended`."""
        if self._gpu_copies is None or first == end:
            return [None] * (end - first)
        return self._gpu_copies.find(lease.blocks_between(first, end, space), self.chunk_bytes)

    def ended(self, extents: Collection[OpenExtent] = ()) -> None:
        """Record that a copy is no longer under way. It read from `extents`."""
        with self._lock:
            self._under_way -= 1
        self.release(extents)

    def release(self, extents: Collection[OpenExtent]) -> None:
        """Record that reading from these extents, which `find` returned, has ended."""
        if self._gpu_copies is not None and extents:
            self._gpu_copies.done(extents)

    def emit(self, problem: str, error: DeviceError) -> None:
        _log.warning("larder.gpu %s: %s", problem, error)

    def close(self) -> None:
        """Wait for copies that are under way, and unregister everything."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._lane.close()
            except DeviceError as error:
                self.emit("a copy failed when the cache closed", error)
            if self._gpu_copies is not None:
                self._gpu_copies.leave()
            for address in list(self._pins):
                self._unpin(address)
            for resource, memory in (("the staging buffer", self._staging), ("the kernel", self._methods.pages)):
                try:
                    if memory is not None:
                        memory.close()
                except DeviceError as error:
                    self.emit(f"{resource} could not be freed", error)


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

    def __init__(self, cache: PagedCache) -> None:
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

    def __init__(self, cache: PagedCache, reservation: Reservation, blocks: Sequence[int]) -> None:
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

    def finish(self, is_wanted: Callable[[], bool] = lambda: True) -> CommitResult:
        """Wait, then publish. After a failure, if a layer is missing, or if the blocks are not wanted once all is
        copied, publish nothing and end the reservation."""
        complete = len(self._copied) == self._cache.layers or not self._arrays
        if not self._settle() or not complete or not is_wanted():
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
        self, cache: PagedCache, lease: Lease, blocks: Sequence[int], first: int, space: int, after: DeviceEvent | None
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

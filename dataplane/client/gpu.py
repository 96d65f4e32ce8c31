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
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from dataplane.client.client import Client
from dataplane.client.device_copies import BlockSource, DeviceLoad, DeviceStore
from dataplane.client.extents import OpenExtent
from dataplane.client.gpu_copies import GpuCopies, GpuCopy
from dataplane.client.leases import Lease
from dataplane.client.memory import SharedMapping
from dataplane.client.reservations import Reservation
from dataplane.devices.copying import CopyLane, methods_for
from dataplane.devices.find import find
from dataplane.devices.paged import GroupForm, LayoutRefused, Planes, Runs, planes_of
from dataplane.devices.pinning import PinnedMemory, Staging
from dataplane.devices.runtime import Device, DeviceError, DeviceEvent, DeviceRuntime, DeviceStream, device_of

if TYPE_CHECKING:
    import torch

CHUNK_TOKENS = 256

_log = logging.getLogger("larder.client")


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
        chunk_tokens: int = CHUNK_TOKENS,
        gpu_copies: bool = True,
    ) -> None:
        """Create the cache. Raise DeviceError, or ValueError for wrong arguments.

        `bases` are the addresses from which the planes of each tensor are counted. Without `gpu_copies`, loads read
        only the pool.
        """
        if not tensors or len(tensors) != len(bases):
            raise ValueError(f"expected an address for each tensor, got {len(bases)} for {len(tensors)}")
        if tokens_per_block < 1 or chunk_tokens % tokens_per_block:
            raise ValueError(f"expected blocks whose tokens divide {chunk_tokens}, got {tokens_per_block}")
        self.form = GroupForm(blocks, tokens_per_block, chunk_tokens // tokens_per_block, tuple(tensors))
        self.runtime = runtime
        self.device = device
        self._client = client
        self._bases = list(bases)
        self._methods = methods_for(runtime, device)
        self._lane = CopyLane(runtime, device, self._methods)
        self._pins: dict[int, tuple[SharedMapping, PinnedMemory]] = {}
        """Registered mappings by address. Each mapping is kept as long as it is registered."""
        self._staging: Staging | None = None
        self._under_way = 0
        self._closed = False
        self._lock = threading.RLock()
        self._gpu_copies: GpuCopies | None = None
        if gpu_copies:
            self._gpu_copies = client.gpu_copies(runtime, device)
            self._gpu_copies.enter()

    @classmethod
    def of_tensors(
        cls,
        client: Client,
        tensors: Sequence[torch.Tensor],
        *,
        tokens_per_block: int,
        chunk_tokens: int = CHUNK_TOKENS,
        runtime: DeviceRuntime | None = None,
        gpu_copies: bool = True,
    ) -> PagedCache:
        """Return a cache of CUDA tensors, one per layer. Raise DeviceError without CUDA, or ValueError."""
        import torch

        places = {tensor.device for tensor in tensors}
        if len(places) != 1 or next(iter(places)).type != "cuda":
            raise ValueError(f"expected tensors of one CUDA device, got {sorted(map(str, places))}")
        runtime = runtime or find()
        uuid = str(torch.cuda.get_device_properties(next(iter(places))).uuid)
        try:
            planes = [
                planes_of(tuple(tensor.shape), tensor.stride(), tensor.element_size()) for tensor in tensors
            ]
        except LayoutRefused as error:
            raise ValueError(str(error)) from None
        axis = 1 if tensors[0].dim() >= 5 and tensors[0].shape[0] == 2 else 0
        return cls(
            client,
            runtime,
            device_of(runtime, uuid),
            planes,
            [tensor.data_ptr() for tensor in tensors],
            blocks=min(tensor.shape[axis] for tensor in tensors),
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
        return self.form.chunk_bytes

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
        self._check(blocks, count * self.form.blocks_per_chunk)
        if len(blocks) < count * self.form.blocks_per_chunk:
            raise ValueError(
                f"expected {count * self.form.blocks_per_chunk} blocks of {count} chunks, got {len(blocks)}"
            )
        self._begin()
        try:
            return DeviceStore(self, reservation, blocks)
        except BaseException:
            self.ended()
            raise

    def load(
        self,
        lease: Lease,
        blocks: Sequence[int],
        *,
        first: int = 0,
        space: int = 0,
        after: DeviceEvent | None = None,
    ) -> DeviceLoad:
        """Copy leased blocks into the engine's blocks, starting at position `first` of the chain.

        As many positions are copied as `blocks` has numbers. All layers are enqueued in order, behind `after`. The copy
        takes over the lease. Raises ValueError for invalid numbers and for a released lease.
        """
        if first < 0:
            raise ValueError(f"expected a position, got first={first}")
        self._check(blocks, len(lease) * self.form.blocks_per_chunk - first)
        self._begin()
        try:
            return DeviceLoad(self, lease, blocks, first, space, after)
        except BaseException:
            self.ended()
            raise

    def _check(self, blocks: Sequence[int], most: int) -> None:
        if self._closed:
            raise ValueError("the paged cache is closed")
        if len(blocks) > most:
            raise ValueError(f"expected at most {max(0, most)} blocks, got {len(blocks)}")
        if len(blocks) and not 0 <= min(blocks) <= max(blocks) < self.form.blocks:
            raise ValueError(f"expected blocks from 0 to {self.form.blocks - 1}")

    def _begin(self) -> None:
        """Count a new copy. If no other copy is under way, first unregister segments that the client has given up."""
        if self._gpu_copies is not None:
            self._gpu_copies.look()
        with self._lock:
            if not self._under_way:
                mapped = {memory.address for memory in self._client.mapped}
                for address in [each for each in self._pins if each not in mapped]:
                    self._unpin(address)
            self._under_way += 1

    def _unpin(self, address: int) -> None:
        memory, pinned = self._pins.pop(address)
        try:
            pinned.close()
        except DeviceError as error:
            self.tell("a segment could not be unpinned", error)
        del memory

    # ---- for DeviceStore and DeviceLoad

    def enqueue(
        self,
        places: Sequence[BlockSource],
        tensors: slice,
        *,
        to_device: bool,
        after: DeviceEvent | None = None,
    ) -> None:
        """Enqueue copies of some layers of some blocks. Raise DeviceError."""
        with self._lock:
            if after is not None:
                self._lane.stream.wait(after)
            for place in places:
                runs = self.form.runs(
                    place.numbers, bases=self._bases, tensors=tensors, places=(place.positions, place.begins)
                )
                if isinstance(place.memory, OpenExtent):
                    self._lane.copy(runs, place.memory.address, to_device=to_device, within=True)
                    continue
                if self._staging is None and self._pinned(place.memory, runs, to_device=to_device):
                    continue
                if self._staging is None:
                    self._staging = Staging(self.runtime)
                self._lane.copy_staged(runs, self._staging, place.memory.address, to_device=to_device)

    def _pinned(self, memory: SharedMapping, runs: Runs, *, to_device: bool) -> bool:
        known = self._pins.get(memory.address)
        if known is None:
            pinned = PinnedMemory(self.runtime, memory.address, memory.nbytes, read_only=not memory.writable)
            known = self._pins[memory.address] = memory, pinned
        if self._lane.copy_pinned(runs, known[1], 0, to_device=to_device):
            return True
        refused = known[1].refused
        if refused is not None:
            self.tell(
                "the pool cannot be registered with the device, copies go through a staging buffer", refused
            )
        return False

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
        return self._gpu_copies.find(lease.held(first, end, space), self.chunk_bytes)

    def ended(self, extents: Collection[OpenExtent] = ()) -> None:
        """Record that a copy is no longer under way. It read from `extents`."""
        with self._lock:
            self._under_way -= 1
        self.release(extents)

    def release(self, extents: Collection[OpenExtent]) -> None:
        """Record that nothing reads any more from these extents, which `find` returned."""
        if self._gpu_copies is not None and extents:
            self._gpu_copies.done(extents)

    def tell(self, what: str, error: DeviceError) -> None:
        _log.warning("larder.gpu %s: %s", what, error)

    def close(self) -> None:
        """Wait for copies that are under way, and unregister everything."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._lane.close()
            except DeviceError as error:
                self.tell("a copy failed when the cache closed", error)
            if self._gpu_copies is not None:
                self._gpu_copies.leave()
            for address in list(self._pins):
                self._unpin(address)
            try:
                if self._staging is not None:
                    self._staging.close()
                if self._methods.pages is not None:
                    self._methods.pages.close()
            except DeviceError as error:
                self.tell("the staging buffer could not be freed", error)

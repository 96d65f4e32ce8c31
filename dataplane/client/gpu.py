"""An engine's paged cache on a device: its chunks to and from the pool, without a copy in between.

    cache = PagedCache.of_tensors(client, list(kv_caches.values()), tokens_per_block=16)
    with client.reserve(keys, cache.chunk_bytes, tenant=salt) as reservation:
        store = cache.store(reservation, blocks)
        for number in range(cache.layers):       # as the forward pass goes on
            store.layer(number, after=computed)  # an event of the engine's stream
        store.finish()                           # waits, then commits
    load = cache.load(client.acquire(keys), blocks)
    load.wait_layer(0, stream)                   # the engine's stream, on the device
    load.finish()                                # True: every byte is there; the lease is let go

The pool's segments are registered with the runtime as they are used, read-only where they are mapped so. Where that is
refused, copies go through a staging buffer, which is told once. Blocks that have a replica on this device (pins of the
tier `gpu`) are loaded from there. Copies run on a stream of their own, in the order in
which they were asked for. A copy that fails ends its reservation or lease; nothing of it is ever published, and nothing
is raised into the engine but for wrong arguments.

`dataplane.devices.find` finds CUDA. torch is needed for `of_tensors` alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from dataplane.client.client import Client
from dataplane.client.extents import Extent
from dataplane.client.gpu_copies import Load, Place, Store
from dataplane.client.leases import Lease
from dataplane.client.memory import Memory
from dataplane.client.replicas import Replica, Replicas
from dataplane.client.reservations import Reservation
from dataplane.devices.copying import Lane, methods_for
from dataplane.devices.find import find
from dataplane.devices.paged import GroupForm, LayoutRefused, Planes, Runs, planes_of
from dataplane.devices.pinning import Pinned, Staging
from dataplane.devices.runtime import Device, DeviceError, Event, Runtime, Stream, device_of

if TYPE_CHECKING:
    import torch

CHUNK_TOKENS = 256

_log = logging.getLogger("larder.client")


class PagedCache:
    """Paged tensors that share block numbers, one for each layer, on one device. May be shared by threads."""

    def __init__(
        self,
        client: Client,
        runtime: Runtime,
        device: Device,
        tensors: Sequence[Planes],
        bases: Sequence[int],
        *,
        blocks: int,
        tokens_per_block: int,
        chunk_tokens: int = CHUNK_TOKENS,
        replicas: bool = True,
    ) -> None:
        """`bases` are the addresses that the planes of each tensor count from. Without `replicas` the pool alone is
        read. Raises DeviceError, and ValueError for wrong arguments."""
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
        self._lane = Lane(runtime, device, self._methods)
        self._pins: dict[int, tuple[Memory, Pinned]] = {}
        """By the address of a mapping, which is kept as long as it is registered."""
        self._staging: Staging | None = None
        self._under_way = 0
        self._closed = False
        self._lock = threading.RLock()
        self._replicas: Replicas | None = None
        if replicas:
            self._replicas = client.replicas(runtime, device)
            self._replicas.enter()

    @classmethod
    def of_tensors(
        cls,
        client: Client,
        tensors: Sequence[torch.Tensor],
        *,
        tokens_per_block: int,
        chunk_tokens: int = CHUNK_TOKENS,
        runtime: Runtime | None = None,
        replicas: bool = True,
    ) -> PagedCache:
        """Of CUDA tensors, one for each layer. Raises DeviceError without CUDA, ValueError for wrong arguments."""
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
            replicas=replicas,
        )

    @property
    def layers(self) -> int:
        return len(self._bases)

    @property
    def chunk_bytes(self) -> int:
        """What to reserve for a chunk."""
        return self.form.chunk_bytes

    @property
    def staged(self) -> bool:
        """Copies go through a staging buffer: registering the pool was refused."""
        return self._staging is not None

    def event(self) -> Event:
        """For the engine to record on its stream. Raises DeviceError."""
        return self.runtime.event(self.device)

    def stream_of(self, native: int) -> Stream:
        """The engine's own stream, as `torch.cuda.current_stream().cuda_stream`. Raises DeviceError."""
        return self.runtime.external_stream(self.device, native)

    # ---- copies

    def store(self, reservation: Reservation, blocks: Sequence[int]) -> Store:
        """Begin to fill a reservation: its key `i` has the `i`-th chunk of the blocks. Raises ValueError for numbers
        that cannot be."""
        count = len(reservation.outcomes)
        self._check(blocks, count * self.form.blocks_per_chunk)
        if len(blocks) < count * self.form.blocks_per_chunk:
            raise ValueError(
                f"expected {count * self.form.blocks_per_chunk} blocks of {count} chunks, got {len(blocks)}"
            )
        self._begin()
        try:
            return Store(self, reservation, blocks)
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
        after: Event | None = None,
    ) -> Load:
        """Copy what is leased into blocks: those of the chain from position `first` on, as many as are given.

        All layers are enqueued, the first one first, behind `after`. The lease is the copy's from here on. Raises
        ValueError for numbers that cannot be, and for a lease that was released.
        """
        if first < 0:
            raise ValueError(f"expected a position, got first={first}")
        self._check(blocks, len(lease) * self.form.blocks_per_chunk - first)
        self._begin()
        try:
            return Load(self, lease, blocks, first, space, after)
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
        """Registrations of segments that are given up end before a copy begins, when none is under way."""
        if self._replicas is not None:
            self._replicas.look()
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

    # ---- for Store and Load

    def enqueue(
        self, places: Sequence[Place], tensors: slice, *, to_device: bool, after: Event | None = None
    ) -> None:
        """Copy some layers of some blocks. Raises DeviceError."""
        with self._lock:
            if after is not None:
                self._lane.stream.wait(after)
            for place in places:
                runs = self.form.runs(
                    place.numbers, bases=self._bases, tensors=tensors, places=(place.positions, place.begins)
                )
                if isinstance(place.memory, Extent):
                    self._lane.copy(runs, place.memory.address, to_device=to_device, within=True)
                    continue
                if self._staging is None and self._pinned(place.memory, runs, to_device=to_device):
                    continue
                if self._staging is None:
                    self._staging = Staging(self.runtime)
                self._lane.copy_staged(runs, self._staging, place.memory.address, to_device=to_device)

    def _pinned(self, memory: Memory, runs: Runs, *, to_device: bool) -> bool:
        known = self._pins.get(memory.address)
        if known is None:
            pinned = Pinned(self.runtime, memory.address, memory.nbytes, read_only=not memory.writable)
            known = self._pins[memory.address] = memory, pinned
        if self._lane.copy_pinned(runs, known[1], 0, to_device=to_device):
            return True
        refused = known[1].refused
        if refused is not None:
            self.tell(
                "the pool cannot be registered with the device, copies go through a staging buffer", refused
            )
        return False

    def record(self) -> Event:
        """An event behind all that was enqueued. Raises DeviceError."""
        with self._lock:
            event = self.runtime.event(self.device)
            self._lane.record(event)
            return event

    def synchronize(self) -> None:
        """Raises DeviceError."""
        with self._lock:
            self._lane.synchronize()

    def find(self, lease: Lease, first: int, end: int, space: int) -> list[Replica | None]:
        """Where leased chunks have a replica on this device. What is found is given back with `ended`."""
        if self._replicas is None or first == end:
            return [None] * (end - first)
        return self._replicas.find(lease.held(first, end, space), self.chunk_bytes)

    def ended(self, extents: Collection[Extent] = ()) -> None:
        """A copy is not under way any more. It read from these extents."""
        with self._lock:
            self._under_way -= 1
        self.let_go(extents)

    def let_go(self, extents: Collection[Extent]) -> None:
        """Nothing reads from what `find` found any more."""
        if self._replicas is not None and extents:
            self._replicas.done(extents)

    def tell(self, what: str, error: DeviceError) -> None:
        _log.warning("larder.gpu %s: %s", what, error)

    def close(self) -> None:
        """Wait for what is under way, and let go of everything that is registered."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._lane.close()
            except DeviceError as error:
                self.tell("a copy failed when the cache closed", error)
            if self._replicas is not None:
                self._replicas.leave()
            for address in list(self._pins):
                self._unpin(address)
            try:
                if self._staging is not None:
                    self._staging.close()
                if self._methods.pages is not None:
                    self._methods.pages.close()
            except DeviceError as error:
                self.tell("the staging buffer could not be freed", error)

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

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dataplane.client.client import Client
from dataplane.client.device_copies import DeviceLoad, DeviceStore
from dataplane.client.leases import Lease
from dataplane.client.paged_memory import CHUNK_TOKENS, PagedMemory
from dataplane.client.reservations import Reservation
from dataplane.devices.find import find
from dataplane.devices.paged import LayoutRefused, planes_of
from dataplane.devices.runtime import DeviceEvent, DeviceRuntime, DeviceStream, device_of

if TYPE_CHECKING:
    import torch


class PagedCache(PagedMemory):
    """Paged tensors of one device that share block numbers, one tensor per layer. Threads may share it."""

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

        devices = {tensor.device for tensor in tensors}
        if len(devices) != 1 or next(iter(devices)).type != "cuda":
            raise ValueError(f"expected tensors of one CUDA device, got {sorted(map(str, devices))}")
        runtime = runtime or find()
        uuid = str(torch.cuda.get_device_properties(next(iter(devices))).uuid)
        try:
            planes = [planes_of(tuple(tensor.shape), tensor.stride(), tensor.element_size()) for tensor in tensors]
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
        self.begin()
        try:
            return DeviceStore(self, reservation, blocks)
        except BaseException:
            self.ended()
            raise

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
        self.begin()
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
        if len(blocks) and not 0 <= min(blocks) <= max(blocks) < self.group.blocks:
            raise ValueError(f"expected blocks from 0 to {self.group.blocks - 1}")

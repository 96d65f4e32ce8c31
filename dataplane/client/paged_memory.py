"""Device memory of a paged cache: copies between its blocks and the pool's segments, on a stream of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from dataplane.client.client import Client
from dataplane.client.extents import OpenExtent
from dataplane.client.gpu_copies import GpuCopies, GpuCopy
from dataplane.client.leases import Lease
from dataplane.client.memory import SharedMapping
from dataplane.devices.copying import CopyLane, Part, methods_for, pinned_part
from dataplane.devices.paged import Planes, Runs, TensorGroup
from dataplane.devices.pinning import PinnedMemory, Staging
from dataplane.devices.runtime import I64, Device, DeviceError, DeviceEvent, DeviceRuntime

CHUNK_TOKENS = 256

_log = logging.getLogger("larder.client")


class BlockSource(NamedTuple):
    """Blocks whose chunks lie in one mapping, or in one extent of GPU copies."""

    memory: SharedMapping | OpenExtent
    numbers: I64
    positions: I64
    """Position of each block in its chunk."""
    begins: I64
    """Start of each block's chunk, in bytes from the start of the mapping or extent."""


class PagedMemory:
    """Tensors of one device that share block numbers, one tensor per layer, for the stores and loads that copy them."""

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

    def begin(self) -> None:
        """Count a new copy. If no other copy is under way, first unregister segments that the client has given up."""
        if self._gpu_copies is not None:
            self._gpu_copies.look()
        with self._lock:
            if not self._under_way:
                mapped = {memory.address for memory in self._client.mapped}
                for address in [address for address in self._pins if address not in mapped]:
                    self._unpin(address)
            self._under_way += 1

    def _unpin(self, address: int) -> None:
        memory, pinned = self._pins.pop(address)
        try:
            pinned.close()
        except DeviceError as error:
            self.emit("a segment could not be unpinned", error)
        del memory

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

"""GPU copies on this node's GPUs: memory and copies as the core decides, and engines' requests for them.

All work of a device runs on one thread, one batch at a time, so memory is returned to the device before more is
requested. CUDA is started on a thread as well, because that takes about a second and would block the loop. New memory
is cleared, because it may hold old blocks of another space.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import structlog

from dataplane.copies.copying import CopyFailed, CopyThreads
from dataplane.copies.device_memory import DeviceMemory
from dataplane.copies.devices import Devices
from dataplane.core.gpu_copies.extents import CopySlot, Extent
from dataplane.core.gpu_copies.gpu_copies import GpuCopyTable
from dataplane.core.gpu_copies.pool import FreeExtent, PendingCopy, Work
from dataplane.devices.paged import Runs
from dataplane.devices.pinning import PinnedMemory
from dataplane.devices.runtime import Device, DeviceError, DeviceRuntime, Handle, device_of, plain_uuid
from dataplane.io.peers import IN_FLIGHT
from dataplane.memory.memory import NodeMemory
from dataplane.memory.shared_file import SharedFile
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import EngineReply, ExtentGrant, GpuCopiesMapped, MapGpuCopies, Refused
from dataplane.protocol.gpu_copies import MAX_EXTENTS, GpuCopyIndex, table_bytes
from dataplane.protocol.layout import H_MEMORY, I64

MAX_UUID_CHARACTERS = 64
MAX_WAITING, MAX_WAITING_OF_ONE = 1024, 16

log = structlog.stdlib.get_logger()


class GpuCopyReader(Protocol):
    """Interface of a session that GPU copies need."""

    client: int
    open: bool

    def send(self, reply: EngineReply, fds: list[int] | None = None) -> bool: ...


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Gpu:
    """One device with a pool of GPU copies."""

    device: Device
    file: SharedFile
    memory: DeviceMemory | None = None
    """Set while there is work on the device."""
    addresses: dict[int, int] = field(default_factory=dict)
    """Addresses of extents, by number."""
    handles: dict[int, Handle] = field(default_factory=dict)
    busy: bool = False


@dataclass(slots=True)
class _Batch:
    """Work for the thread, and its results."""

    work: list[Work]
    segments: dict[int, tuple[PinnedMemory | None, int]] = field(default_factory=dict)
    """Location of each segment's bytes: its registration (None: part of the named segment), and its start within
    that."""
    made: dict[int, tuple[int, Handle]] = field(default_factory=dict)
    without: dict[int, str] = field(default_factory=dict)
    """Extents for which the device refused memory, with the reason."""
    refused: str = ""
    """Reason why nothing in the batch can be copied; empty if copies are possible."""


class GpuCopyService:
    """GPU copies of one data plane."""

    def __init__(
        self,
        core: GpuCopyTable,
        engines: Container[int],
        memory: NodeMemory,
        devices: Devices,
        copying: CopyThreads,
        clock: Callable[[], float],
    ) -> None:
        """`engines` contains the clients that exist."""
        self._core = core
        self._engines = engines
        self._memory = memory
        self._devices = devices
        self._copying = copying
        self._clock = clock
        self._gpus: dict[str, _Gpu] = {}
        self._runtime: DeviceRuntime | None = None
        """None until it is found."""
        self._waiting: list[tuple[int, str, Callable[[_Gpu | ProtocolError], None]]] = []
        """Requests that wait for the runtime: client, device, and callback."""

    # ---- engines

    def map(self, reader: GpuCopyReader, message: MapGpuCopies) -> None:
        """Answer an engine's request once its device is ready. Raises ProtocolError."""
        if not self._core.capacity_bytes:
            raise ProtocolError(
                Code.UNSUPPORTED, "this node keeps no GPU copies: dataplane.gpu_pool_bytes is 0", "device"
            )
        if not 1 <= len(message.device) <= MAX_UUID_CHARACTERS or not message.device.isprintable():
            raise ProtocolError(Code.BAD_FIELD, f"expected a UUID of 1 to {MAX_UUID_CHARACTERS} characters", "device")
        for name in ("extents", "closed"):
            count = len(getattr(message, name))
            if count > MAX_EXTENTS:
                raise ProtocolError(Code.BAD_FIELD, f"expected at most {MAX_EXTENTS} numbers, got {count}", name)
        client = reader.client

        def refuse(why: ProtocolError) -> None:
            reader.send(Refused(message.id, int(why.code), why.message, why.field))

        def answer(gpu: _Gpu | ProtocolError) -> None:
            if not reader.open or reader.client != client:
                return
            if isinstance(gpu, ProtocolError):
                refuse(gpu)
                return
            uuid = gpu.device.uuid
            self._core.read_by(client, uuid)
            self._core.closed(client, uuid, message.closed)
            granted = [
                extent for extent in self._core.grant(client, uuid, message.extents) if extent.number in gpu.handles
            ]
            sent = reader.send(
                GpuCopiesMapped(message.id, [_grant_of(gpu, extent) for extent in granted]),
                [gpu.file.read_only_fd] if message.table else [],
            )
            if not sent and reader.open:  # the machine cannot pass more descriptors now
                refuse(ProtocolError(Code.OUT_OF_MEMORY, IN_FLIGHT))

        self._ready(client, message.device, answer)

    def read_by(self, client: int, uuid: str, space: int) -> None:
        """Register this process as a reader of GPU copies of a space, for its copies to an engine on a device."""

        def ready(gpu: _Gpu | ProtocolError) -> None:
            if isinstance(gpu, _Gpu) and client in self._engines:  # client numbers are never reused
                self._core.read_by(client, gpu.device.uuid, (space,))

        if self._core.capacity_bytes:
            with suppress(ProtocolError):  # too busy: retried at its next copy
                self._ready(client, uuid, ready)

    def addresses(self, uuid: str, descriptors: Sequence[int]) -> I64:
        """Return addresses [n], in this process, of the GPU copies of leased blocks; 0 if a block has none."""
        gpu = self._gpus.get(plain_uuid(uuid))
        if gpu is None:
            return np.zeros(len(descriptors), np.int64)
        slots = self._core.slots_of(gpu.device.uuid, descriptors)
        return np.array([0 if slot is None else _address(gpu, slot) for slot in slots], np.int64)

    # ---- devices

    def _ready(self, client: int, uuid: str, then: Callable[[_Gpu | ProtocolError], None]) -> None:
        """Call back on the loop when a device has a pool: at once, except the first time, when CUDA must start. Raises
        ProtocolError."""
        if self._runtime is not None:
            then(self._gpu(self._runtime, uuid))
            return
        waiting_of_client = sum(waiter[0] == client for waiter in self._waiting)
        if len(self._waiting) >= MAX_WAITING or waiting_of_client >= MAX_WAITING_OF_ONE:
            raise ProtocolError(Code.TOO_MANY_COPIES, "too many engines wait for CUDA to start; try again later")
        self._waiting.append((client, uuid, then))
        if len(self._waiting) == 1 and not self._copying.submit(self._find, self._runtime_searched, self._devices):
            self._runtime_searched(CopyFailed("too many copies are queued on this node"))

    def _find(self) -> None:
        """Find the runtime, on a thread. Raises CopyFailed."""
        try:
            self._runtime = self._devices.runtime()
        except DeviceError as error:
            raise CopyFailed(str(error)) from None

    def _runtime_searched(self, failed: CopyFailed | None) -> None:
        waiting, self._waiting = self._waiting, []
        for _, uuid, then in waiting:
            if self._runtime is None:
                then(self._refusal(uuid, str(failed)))
            else:
                then(self._gpu(self._runtime, uuid))

    def _gpu(self, runtime: DeviceRuntime, uuid: str) -> _Gpu | ProtocolError:
        existing = self._gpus.get(plain_uuid(uuid))
        if existing is not None:
            return existing
        try:
            return self._open(device_of(runtime, uuid))
        except DeviceError as error:
            return self._refusal(uuid, str(error))

    def _refusal(self, uuid: str, why: str) -> ProtocolError:
        self._core.refuse(plain_uuid(uuid), why, self._clock())
        return ProtocolError(Code.DEVICE_REFUSED, why, "device")

    def _open(self, device: Device) -> _Gpu | ProtocolError:
        index = self._memory.index
        try:
            file = SharedFile.create("larder-gpu-copies", table_bytes(index.max_blocks))
        except MemoryError as error:
            return ProtocolError(Code.OUT_OF_MEMORY, f"the table of GPU copies: {error}")
        try:
            table = GpuCopyIndex(memoryview(file.map()), index.max_blocks)
        except OSError as error:
            file.close()
            return ProtocolError(Code.OUT_OF_MEMORY, f"the table of GPU copies: {error.strerror}")
        table.format(index.cells[H_MEMORY])
        gpu = self._gpus[device.uuid] = _Gpu(device, file)
        self._core.open(device.uuid, device.name, self._core.capacity_bytes, table, self._clock())
        return gpu

    # ---- work

    def step(self) -> None:
        """Start the work that the core requests; called periodically."""
        for uuid, gpu in self._gpus.items():
            if self._devices.lost and not self._core.pools[uuid].broken:
                self._core.refused(uuid, "the GPU is lost to this process", self._clock(), lasting=True)
            if not gpu.busy and not self._copying.closing:
                self._begin(gpu)

    def _begin(self, gpu: _Gpu) -> None:
        uuid = gpu.device.uuid
        if not self._core.has_work(uuid):
            self._release_if_idle(gpu)
        elif gpu.memory is None:
            gpu.busy = self._copying.submit(
                lambda: self._make_ready(gpu), lambda failed: self._is_ready(gpu, failed), gpu
            )
        else:
            batch, memory = _Batch(self._core.work(uuid)), gpu.memory
            try:
                for number in {item.segment for item in batch.work if isinstance(item, PendingCopy)}:
                    batch.segments[number] = self._segment(number)
            except DeviceError as error:
                self._devices.failed(error)
                batch.refused = str(error)
            gpu.busy = self._copying.submit(
                lambda: self._work(gpu, memory, batch), lambda failed: self._ended(gpu, batch, failed), gpu
            )
            if not gpu.busy:
                self._free(gpu, batch)
                self._settle(gpu, batch, "too many copies are queued on this node")

    def _segment(self, number: int) -> tuple[PinnedMemory | None, int]:
        """Return the location of a segment's bytes, as in `_Batch.segments`. Raises DeviceError."""
        file = self._memory.segments[number]
        return (None, file.base) if file.part else (self._devices.segment(number), 0)

    def _release_if_idle(self, gpu: _Gpu) -> None:
        """Release the device and the memory registered for it, if it holds no GPU copies and has no readers."""
        memory = gpu.memory
        idle = not gpu.addresses and not self._core.pools[gpu.device.uuid].readers
        if memory is not None and idle and self._copying.submit(memory.close, lambda failed: None, gpu):
            gpu.memory = None

    def _is_ready(self, gpu: _Gpu, failed: CopyFailed | None) -> None:
        gpu.busy = False
        if failed is not None:
            self._core.refused(gpu.device.uuid, str(failed), self._clock(), lasting=self._devices.lost)
        elif not self._copying.closing:
            self._begin(gpu)

    # ---- on the device's thread

    def _make_ready(self, gpu: _Gpu) -> None:
        """Open the device for copies. Raises CopyFailed."""
        with self._devices.failures():
            gpu.memory = DeviceMemory(self._devices, gpu.device.uuid)

    def _work(self, gpu: _Gpu, memory: DeviceMemory, batch: _Batch) -> None:
        """Free extents, allocate new ones, and copy the blocks of a batch. Raises CopyFailed."""
        self._free(gpu, batch)
        if batch.refused:
            raise CopyFailed(batch.refused)
        by_segment: dict[int, list[PendingCopy]] = {}
        try:
            try:
                for copy in batch.work:
                    if isinstance(copy, PendingCopy) and self._allocate(gpu, memory, copy.gpu_copy.extent, batch):
                        by_segment.setdefault(copy.segment, []).append(copy)
                for number, copies in by_segment.items():
                    self._copy(gpu, memory, copies, batch, *batch.segments[number])
            finally:
                memory.synchronize()
        except CopyFailed:
            # It is unknown whether the new memory was cleared.
            for address, _ in batch.made.values():
                self._release(address)
            batch.made.clear()
            raise

    def _allocate(self, gpu: _Gpu, memory: DeviceMemory, extent: Extent, batch: _Batch) -> bool:
        """Allocate an extent's memory if it has none. Return whether it has memory."""
        number = extent.number
        if number in gpu.addresses or number in batch.made:
            return True
        if number in batch.without:
            return False
        runtime, address = self._devices.runtime(), 0
        try:
            address = runtime.allocate(gpu.device, extent.nbytes)
            batch.made[number] = address, runtime.export(address, extent.nbytes)
            memory.clear(address, extent.nbytes)
        except (DeviceError, CopyFailed) as error:
            if isinstance(error, DeviceError):
                self._devices.failed(error)
            batch.made.pop(number, None)
            if address:
                self._release(address)
            batch.without[number] = str(error)
        return number in batch.made

    def _copy(
        self,
        gpu: _Gpu,
        memory: DeviceMemory,
        copies: Sequence[PendingCopy],
        batch: _Batch,
        pinned: PinnedMemory | None,
        begin: int,
    ) -> None:
        """Enqueue copies from one segment. Raises CopyFailed."""
        if pinned is None:
            with self._devices.failures():
                pinned = self._devices.named()
        targets, sources, sizes = [], [], []
        for copy in copies:
            gpu_copy, number = copy.gpu_copy, copy.gpu_copy.extent.number
            address = gpu.addresses[number] if number in gpu.addresses else batch.made[number][0]
            targets.append(address + gpu_copy.offset)
            sources.append(begin + copy.offset)
            sizes.append(gpu_copy.block.nbytes)
        memory.copy(
            Runs(*(np.array(column, np.int64) for column in (targets, sources, sizes))), pinned, 0, to_device=True
        )

    def _free(self, gpu: _Gpu, batch: _Batch) -> None:
        for item in batch.work:
            if isinstance(item, FreeExtent) and item.extent.number in gpu.addresses:
                address = gpu.addresses.pop(item.extent.number)
                del gpu.handles[item.extent.number]
                self._release(address)

    def _release(self, address: int) -> None:
        assert self._runtime is not None
        self._devices.close_quietly(partial(self._runtime.free, address))

    # ---- on the loop again

    def _ended(self, gpu: _Gpu, batch: _Batch, failed: CopyFailed | None) -> None:
        gpu.busy = False
        for number, (address, handle) in batch.made.items():
            gpu.addresses[number], gpu.handles[number] = address, handle
        self._settle(gpu, batch, "" if failed is None else str(failed))
        if not self._copying.closing:
            self._begin(gpu)

    def _settle(self, gpu: _Gpu, batch: _Batch, failed: str) -> None:
        now, uuid, lasting = self._clock(), gpu.device.uuid, self._devices.lost
        copies = [item for item in batch.work if isinstance(item, PendingCopy)]
        if not failed:
            copied = [copy for copy in copies if copy.gpu_copy.extent.number not in batch.without]
            copies = [copy for copy in copies if copy.gpu_copy.extent.number in batch.without]
            if copied:
                self._core.copied(uuid, copied)
        for copy in copies:
            without = batch.without.get(copy.gpu_copy.extent.number, "")
            self._core.failed(uuid, copy, without or failed, now, memory=bool(without), lasting=lasting)

    def close(self) -> None:
        """Wait for running work, and free all device memory."""
        self._copying.close()
        for gpu in self._gpus.values():
            for address in gpu.addresses.values():
                self._release(address)
            if gpu.memory is not None:
                gpu.memory.close()
            gpu.file.close()
        self._gpus.clear()


def _grant_of(gpu: _Gpu, extent: Extent) -> ExtentGrant:
    handle = gpu.handles[extent.number]
    return ExtentGrant(extent.number, handle.body, handle.offset, extent.nbytes)


def _address(gpu: _Gpu, gpu_copy: CopySlot) -> int:
    return gpu.addresses[gpu_copy.extent.number] + gpu_copy.offset

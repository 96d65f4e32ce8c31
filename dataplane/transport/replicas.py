"""Replicas on this node's GPUs: memory and copies for what the core decides, and engines' requests for them.

All work on a device runs on one thread, a batch at a time: memory that goes back to the device does so before more of
it is asked for. CUDA is started on a thread too, for the loop does not wait a second. Fresh memory is cleared: it may
hold what blocks of another space were.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import structlog

from dataplane.core.extents import Extent, Replica
from dataplane.core.replica_pool import Copy, Free, Work
from dataplane.core.replicas import Replicas
from dataplane.devices.paged import Runs
from dataplane.devices.pinning import Pinned
from dataplane.devices.runtime import Device, DeviceError, Handle, Runtime, device_of, plain_uuid
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import EngineReply, MapReplicas, Refused, ReplicaGrant, ReplicasMapped
from dataplane.protocol.layout import H_MEMORY, I64
from dataplane.protocol.replicas import MAX_EXTENTS, ReplicaTable, table_bytes
from dataplane.tiers.memory import NodeMemory, SharedFile
from dataplane.transport.copying import CopyFailed, Copying
from dataplane.transport.device_memory import DeviceMemory
from dataplane.transport.devices import Devices
from dataplane.transport.peers import IN_FLIGHT

MAX_UUID_CHARACTERS = 64
MAX_WAITING, MAX_WAITING_OF_ONE = 1024, 16

log = structlog.stdlib.get_logger()


class Reader(Protocol):
    """What a session is to replicas."""

    client: int
    open: bool

    def send(self, reply: EngineReply, fds: list[int] | None = None) -> bool: ...


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Gpu:
    """One device that has a pool of replicas."""

    device: Device
    file: SharedFile
    memory: DeviceMemory | None = None
    """While there is anything to do on the device."""
    addresses: dict[int, int] = field(default_factory=dict)
    """Of extents, by number."""
    handles: dict[int, Handle] = field(default_factory=dict)
    busy: bool = False


@dataclass(slots=True)
class _Batch:
    """Work for the thread, and how it went."""

    work: list[Work]
    segments: dict[int, tuple[Pinned | None, int]] = field(default_factory=dict)
    """Where the bytes of a segment are: its registration (None: in the named one), and its begin there."""
    made: dict[int, tuple[int, Handle]] = field(default_factory=dict)
    without: dict[int, str] = field(default_factory=dict)
    """Extents whose memory the device refused, and why."""
    refused: str = ""
    """Why nothing can be copied."""


class ReplicaCopies:
    """One for each data plane."""

    def __init__(
        self,
        core: Replicas,
        engines: Container[int],
        memory: NodeMemory,
        devices: Devices,
        copying: Copying,
        pool_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        """`engines` are the clients that there are. `pool_bytes` of each device may hold replicas, 0 for none."""
        self._core = core
        core.capacity_bytes = pool_bytes
        self._engines = engines
        self._memory = memory
        self._devices = devices
        self._copying = copying
        self._pool_bytes = pool_bytes
        self._clock = clock
        self._gpus: dict[str, _Gpu] = {}
        self._runtime: Runtime | None = None
        """Once it is found."""
        self._waiting: list[tuple[int, str, Callable[[_Gpu | ProtocolError], None]]] = []
        """For that: client, device, and what is done then."""

    # ---- engines

    def map(self, reader: Reader, message: MapReplicas) -> None:
        """Answer an engine's request, when its device is ready. Raises ProtocolError."""
        if not self._pool_bytes:
            raise ProtocolError(
                Code.UNSUPPORTED, "this node keeps no replicas: dataplane.gpu_pool_bytes is 0", "device"
            )
        if not 1 <= len(message.device) <= MAX_UUID_CHARACTERS or not message.device.isprintable():
            raise ProtocolError(
                Code.BAD_FIELD, f"expected a UUID of 1 to {MAX_UUID_CHARACTERS} characters", "device"
            )
        for name in ("extents", "closed"):
            count = len(getattr(message, name))
            if count > MAX_EXTENTS:
                raise ProtocolError(
                    Code.BAD_FIELD, f"expected at most {MAX_EXTENTS} numbers, got {count}", name
                )
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
                each for each in self._core.grant(client, uuid, message.extents) if each.number in gpu.handles
            ]
            sent = reader.send(
                ReplicasMapped(message.id, [_grant_of(gpu, extent) for extent in granted]),
                [gpu.file.read_only_fd] if message.table else [],
            )
            if not sent and reader.open:  # the machine passes no more descriptors now
                refuse(ProtocolError(Code.OUT_OF_MEMORY, IN_FLIGHT))

        self._ready(client, message.device, answer)

    def read_by(self, client: int, uuid: str, space: int) -> None:
        """This process itself copies to an engine on a device, and reads replicas of a space for it."""

        def ready(gpu: _Gpu | ProtocolError) -> None:
            if isinstance(gpu, _Gpu) and client in self._engines:  # numbers never come again
                self._core.read_by(client, gpu.device.uuid, (space,))

        if self._pool_bytes:
            with suppress(ProtocolError):  # too busy: at its next copy
                self._ready(client, uuid, ready)

    def places(self, uuid: str, descriptors: Sequence[int]) -> I64:
        """Addresses [n] of replicas of leased blocks, in this process; 0 where there is none."""
        gpu = self._gpus.get(plain_uuid(uuid))
        if gpu is None:
            return np.zeros(len(descriptors), np.int64)
        found = self._core.places(gpu.device.uuid, descriptors)
        return np.array([0 if each is None else _address(gpu, each) for each in found], np.int64)

    # ---- devices

    def _ready(self, client: int, uuid: str, then: Callable[[_Gpu | ProtocolError], None]) -> None:
        """Call back on the loop when a device has a pool: at once, but for the first time, when CUDA starts. Raises
        ProtocolError."""
        if self._runtime is not None:
            then(self._gpu(self._runtime, uuid))
            return
        own = sum(each[0] == client for each in self._waiting)
        if len(self._waiting) >= MAX_WAITING or own >= MAX_WAITING_OF_ONE:
            raise ProtocolError(
                Code.TOO_MANY_COPIES, "too many engines wait for CUDA to start; try again later"
            )
        self._waiting.append((client, uuid, then))
        if len(self._waiting) == 1 and not self._copying.submit(self._find, self._found, self._devices):
            self._found(CopyFailed("too many copies wait on this node"))

    def _find(self) -> None:
        """On a thread. Raises CopyFailed."""
        try:
            self._runtime = self._devices.runtime()
        except DeviceError as error:
            raise CopyFailed(str(error)) from None

    def _found(self, failed: CopyFailed | None) -> None:
        waiting, self._waiting = self._waiting, []
        for _, uuid, then in waiting:
            if self._runtime is None:
                then(self._refusal(uuid, str(failed)))
            else:
                then(self._gpu(self._runtime, uuid))

    def _gpu(self, runtime: Runtime, uuid: str) -> _Gpu | ProtocolError:
        known = self._gpus.get(plain_uuid(uuid))
        if known is not None:
            return known
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
            file = SharedFile.create("larder-replicas", table_bytes(index.max_blocks))
        except MemoryError as error:
            return ProtocolError(Code.OUT_OF_MEMORY, f"the table of replicas: {error}")
        try:
            table = ReplicaTable(memoryview(file.map()), index.max_blocks)
        except OSError as error:
            file.close()
            return ProtocolError(Code.OUT_OF_MEMORY, f"the table of replicas: {error.strerror}")
        table.format(index.cells[H_MEMORY])
        gpu = self._gpus[device.uuid] = _Gpu(device, file)
        self._core.open(device.uuid, device.name, self._pool_bytes, table, self._clock())
        return gpu

    # ---- work

    def step(self) -> None:
        """Begin what the core wants done; called as time passes."""
        for uuid, gpu in self._gpus.items():
            if self._devices.lost and not self._core.pools[uuid].broken:
                self._core.refused(uuid, "the GPU is lost to this process", self._clock(), lasting=True)
            if not gpu.busy and not self._copying.closing:
                self._begin(gpu)

    def _begin(self, gpu: _Gpu) -> None:
        uuid = gpu.device.uuid
        if not self._core.has_work(uuid):
            self._rest(gpu)
        elif gpu.memory is None:
            gpu.busy = self._copying.submit(
                lambda: self._make_ready(gpu), lambda failed: self._is_ready(gpu, failed), gpu
            )
        else:
            batch, memory = _Batch(self._core.work(uuid)), gpu.memory
            try:
                for number in {each.segment for each in batch.work if isinstance(each, Copy)}:
                    batch.segments[number] = self._segment(number)
            except DeviceError as error:
                self._devices.failed(error)
                batch.refused = str(error)
            gpu.busy = self._copying.submit(
                lambda: self._work(gpu, memory, batch), lambda failed: self._ended(gpu, batch, failed), gpu
            )
            if not gpu.busy:
                self._free(gpu, batch)
                self._settle(gpu, batch, "too many copies wait on this node")

    def _segment(self, number: int) -> tuple[Pinned | None, int]:
        """Raises DeviceError."""
        file = self._memory.segments[number]
        return (None, file.base) if file.part else (self._devices.segment(number), 0)

    def _rest(self, gpu: _Gpu) -> None:
        """Nothing lies on the device and nobody reads there: let go of it, and of what is registered for it."""
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
        """Raises CopyFailed."""
        try:
            memory = DeviceMemory(self._devices, gpu.device.uuid)
            memory.ready()
        except DeviceError as error:
            raise self._failure(error) from None
        gpu.memory = memory

    def _work(self, gpu: _Gpu, memory: DeviceMemory, batch: _Batch) -> None:
        """Raises CopyFailed."""
        self._free(gpu, batch)
        if batch.refused:
            raise CopyFailed(batch.refused)
        by_segment: dict[int, list[Copy]] = {}
        try:
            try:
                for copy in batch.work:
                    if isinstance(copy, Copy) and self._allocate(gpu, memory, copy.replica.extent, batch):
                        by_segment.setdefault(copy.segment, []).append(copy)
                for number, copies in by_segment.items():
                    self._copy(gpu, memory, copies, batch, *batch.segments[number])
            finally:
                memory.synchronize()
        except CopyFailed:
            # Whether fresh memory was cleared is not known.
            for address, _ in batch.made.values():
                self._release(address)
            batch.made.clear()
            raise

    def _allocate(self, gpu: _Gpu, memory: DeviceMemory, extent: Extent, batch: _Batch) -> bool:
        """Whether an extent has its memory."""
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
        copies: Sequence[Copy],
        batch: _Batch,
        pinned: Pinned | None,
        begin: int,
    ) -> None:
        """Enqueue copies out of one segment. Raises CopyFailed."""
        if pinned is None:
            try:
                pinned = self._devices.named()
            except DeviceError as error:
                raise self._failure(error) from None
        targets, sources, sizes = [], [], []
        for copy in copies:
            replica, number = copy.replica, copy.replica.extent.number
            address = gpu.addresses[number] if number in gpu.addresses else batch.made[number][0]
            targets.append(address + replica.offset)
            sources.append(begin + copy.offset)
            sizes.append(replica.block.nbytes)
        memory.copy(
            Runs(*(np.array(column, np.int64) for column in (targets, sources, sizes))),
            pinned,
            0,
            to_device=True,
        )

    def _free(self, gpu: _Gpu, batch: _Batch) -> None:
        for each in batch.work:
            if isinstance(each, Free) and each.extent.number in gpu.addresses:
                address = gpu.addresses.pop(each.extent.number)
                del gpu.handles[each.extent.number]
                self._release(address)

    def _release(self, address: int) -> None:
        assert self._runtime is not None
        self._devices.close_quietly(partial(self._runtime.free, address))

    def _failure(self, error: DeviceError) -> CopyFailed:
        self._devices.failed(error)
        return CopyFailed(str(error))

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
        copies = [each for each in batch.work if isinstance(each, Copy)]
        if not failed:
            well = [each for each in copies if each.replica.extent.number not in batch.without]
            copies = [each for each in copies if each.replica.extent.number in batch.without]
            if well:
                self._core.copied(uuid, well)
        for copy in copies:
            without = batch.without.get(copy.replica.extent.number, "")
            self._core.failed(uuid, copy, without or failed, now, memory=bool(without), lasting=lasting)

    def close(self) -> None:
        """Wait for what runs, and give the devices their memory back."""
        self._copying.close()
        for gpu in self._gpus.values():
            for address in gpu.addresses.values():
                self._release(address)
            if gpu.memory is not None:
                gpu.memory.close()
            gpu.file.close()
        self._gpus.clear()


def _grant_of(gpu: _Gpu, extent: Extent) -> ReplicaGrant:
    handle = gpu.handles[extent.number]
    return ReplicaGrant(extent.number, handle.body, handle.offset, extent.nbytes)


def _address(gpu: _Gpu, replica: Replica) -> int:
    return gpu.addresses[replica.extent.number] + replica.offset

"""Copies between an engine's device memory and blocks in the named segment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from dataplane.copies.copying import CopyFailed
from dataplane.copies.device_memory import DeviceMemory
from dataplane.copies.devices import Devices
from dataplane.devices.paged import Planes, Runs, TensorGroup
from dataplane.devices.runtime import HANDLE_BYTES, DeviceError, OpenedMemory, plain_uuid
from dataplane.gateways.lmcache.wire.ipc import CpuShm, DeviceTensor, MemoryUnsupported, Tensor
from dataplane.gateways.lmcache.wire.messages import Group, Hints
from dataplane.gateways.lmcache.workers.copies import Blocks, Copier, CpuShmCopier, Source


def copier_of(
    tensors: Sequence[Tensor], groups: Sequence[Group], hints: Hints | None, engine_type: str, devices: Devices
) -> Copier:
    """Return the copier of a registration, chosen by the type of its first tensor.

    Raise MemoryUnsupported on failure.
    """
    if not tensors or isinstance(tensors[0], CpuShm):
        return CpuShmCopier(tensors, groups, hints, engine_type)
    return DeviceCopier(tensors, groups, hints, engine_type, devices)


class DeviceCopier(Copier):
    """Copy between one device and blocks. Opening and closing are slow; do not call them on the loop."""

    own_thread = True

    def __init__(
        self,
        tensors: Sequence[Tensor],
        groups: Sequence[Group],
        hints: Hints | None,
        engine_type: str,
        devices: Devices,
    ) -> None:
        """Check the tensors without opening their memory. Raise MemoryUnsupported on failure."""
        super().__init__(tensors, groups, hints, engine_type)
        self._devices = devices
        self.device_uuid = _uuid_of(tensors)
        self._tensors: list[DeviceTensor] = []
        for at, tensor in enumerate(tensors):
            if not isinstance(tensor, DeviceTensor):
                raise MemoryUnsupported(f"tensor {at} is in host memory, where the first one is on a device")
            self._tensors.append(tensor)
        self._bases: list[int] = []
        self._opened: DeviceMemory | None = None
        self._closed = False
        self._lock = threading.RLock()

    def open(self) -> None:
        with self._lock:
            if self._closed:
                raise CopyFailed("the worker is gone")
            if self._opened is not None:
                return
            try:
                with ExitStack() as opening:
                    memory = DeviceMemory(self._devices, self.device_uuid)
                    opening.callback(memory.close)
                    self._bases = [
                        _begin_of(at, tensor, memory.open(tensor.body)) for at, tensor in enumerate(self._tensors)
                    ]
                    opening.pop_all()
            except DeviceError as error:
                self._devices.failed(error)
                raise CopyFailed(f"CUDA memory: {error}; or use mp_transfer_mode=engine_driven") from None
            self._opened = memory

    @property
    def _memory(self) -> DeviceMemory:
        assert self._opened is not None
        return self._opened

    # ---- copies

    def begin(self, event: bytes, ended: Callable[[], bool]) -> None:
        self.open()
        if event:
            if len(event) != HANDLE_BYTES:
                raise CopyFailed(
                    f"expected an event of {HANDLE_BYTES} bytes, got {len(event)}: "
                    "start the engine without isolated IPC"
                )
            self._memory.wait(event, ended)
        self._lock.acquire()

    def gather(self, blocks: Blocks, chunk: int, target: memoryview) -> None:
        for runs, at in self._runs(blocks, chunk, 0):
            self._copy(runs, target, at, to_device=False)

    def scatter(self, blocks: Blocks, chunk: int, source: Source, skip_tokens: int) -> None:
        for runs, at in self._runs(blocks, chunk, skip_tokens):
            if isinstance(source, int):
                self._memory.copy_within(runs, source + at)
            else:
                self._copy(runs, source, at, to_device=True)

    def _runs(self, blocks: Blocks, chunk: int, skip_tokens: int) -> list[tuple[Runs, int]]:
        """Return the runs of each group with the group's byte offset in the chunk."""
        group_runs, at = [], 0
        for group, positions, group_blocks, skip in self._own(blocks, chunk, skip_tokens):
            bases = [self._bases[position] for position in positions]
            group_runs.append((group.runs(group_blocks, first=skip, bases=bases), at))
            at += group.chunk_bytes
        return group_runs

    def _copy(self, runs: Runs, memory: memoryview, at: int, *, to_device: bool) -> None:
        host = int(np.frombuffer(memory, np.uint8).ctypes.data) + at
        with self._devices.failures():
            named = self._devices.named()
        self._memory.copy(runs, named, host - named.address, to_device=to_device)

    def finish(self) -> None:
        try:
            self._memory.synchronize()
        finally:
            self._lock.release()

    def digests(self, chunks: Blocks, *, layerwise: bool) -> list[list[str]]:
        self.open()
        with self._lock:
            return super().digests(chunks, layerwise=layerwise)

    def _contents(self, position: int, planes: Planes, numbers: Sequence[int]) -> Iterator[memoryview]:
        group = TensorGroup(0, 0, len(numbers), (planes,))
        content = np.empty(group.chunk_bytes, np.uint8)
        runs = group.runs(numbers, base=self._bases[position])
        self._memory.copy_staged(runs, int(content.ctypes.data), to_device=False)
        yield content.data

    def close(self) -> None:
        with self._lock:
            self._closed = True
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()


def _begin_of(at: int, tensor: DeviceTensor, opened: OpenedMemory) -> int:
    """Return the address of the tensor's memory in this process. Raise CopyFailed on failure."""
    if tensor.offset + tensor.nbytes > opened.nbytes:
        raise CopyFailed(
            f"tensor {at} ends at {tensor.offset + tensor.nbytes} of an allocation of {opened.nbytes} bytes"
        )
    return opened.address + tensor.offset


def _uuid_of(tensors: Sequence[Tensor]) -> str:
    """Return the UUID of the device that all tensors are on. Raise MemoryUnsupported on failure."""
    uuids = sorted({plain_uuid(tensor.metadata.device_uuid) for tensor in tensors})
    if len(uuids) > 1:
        raise MemoryUnsupported(f"expected tensors of one device, got {', '.join(uuids)[:200]}")
    return uuids[0]

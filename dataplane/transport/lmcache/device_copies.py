"""Copies between the memory of an engine's device and blocks: the data plane opens what the engine exported, and copies
on a stream of its own.

Every allocation is opened once and closed when the copier is: an open handle keeps the engine's memory on the device,
long after the engine. Before a request's copies, the engine's own event is waited for here, in this process: nothing is
enqueued for an engine that never comes so far, so nothing has to be given up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from hashlib import md5

import numpy as np
import structlog

from dataplane.devices.copying import Lane
from dataplane.devices.paged import GroupForm, Planes, Runs
from dataplane.devices.pinning import Staging
from dataplane.devices.runtime import HANDLE_BYTES, Device, DeviceError, Handle, Opened, device_of, plain_uuid
from dataplane.transport.copying import CopyFailed, wait_for_engine
from dataplane.transport.lmcache.copies import Blocks, Copier, CpuShmCopier, forms_of, skipped
from dataplane.transport.lmcache.devices import Devices
from dataplane.transport.lmcache.ipc import CpuShm, DeviceTensor, Tensor, Unsupported
from dataplane.transport.lmcache.messages import Group, Hints

log = structlog.stdlib.get_logger()


def copier_of(
    tensors: Sequence[Tensor],
    groups: Sequence[Group],
    hints: Hints | None,
    engine_type: str,
    devices: Devices,
) -> Copier:
    """The copier of a registration, by the kind of its first tensor. Raises Unsupported."""
    if not tensors or isinstance(tensors[0], CpuShm):
        return CpuShmCopier(tensors, groups, hints, engine_type)
    return DeviceCopier(tensors, groups, hints, engine_type, devices)


class DeviceCopier:
    """Copies between one device and blocks."""

    own_thread = True

    def __init__(
        self,
        tensors: Sequence[Tensor],
        groups: Sequence[Group],
        hints: Hints | None,
        engine_type: str,
        devices: Devices,
    ) -> None:
        """Raises Unsupported."""
        self._forms = forms_of([tensor.metadata for tensor in tensors], groups, hints, engine_type)
        self.layout, self.dtype = self._forms.layout, self._forms.dtype
        self.chunk_bytes = self._forms.chunk_bytes
        self._devices = devices
        self._opened: dict[bytes, Opened] = {}
        self._staging: Staging | None = None
        self._lane: Lane | None = None
        self._lock = threading.RLock()
        try:
            self._device = self._device_of(tensors)
            self._bases = [self._open(at, tensor) for at, tensor in enumerate(tensors)]
            self._lane = devices.lane(self._device)
        except DeviceError as error:
            self.close()
            devices.failed(error)
            raise Unsupported(f"CUDA memory: {error}; or use mp_transfer_mode=engine_driven") from None
        except BaseException:
            self.close()
            raise

    def _device_of(self, tensors: Sequence[Tensor]) -> Device:
        uuids = sorted({plain_uuid(tensor.metadata.device_uuid) for tensor in tensors})
        if len(uuids) > 1:
            raise Unsupported(f"expected tensors of one device, got {', '.join(uuids)[:200]}")
        return device_of(self._devices.runtime(), uuids[0])

    def _open(self, at: int, tensor: Tensor) -> int:
        """Where the tensor's memory begins in this process."""
        if not isinstance(tensor, DeviceTensor):
            raise Unsupported(f"tensor {at} is in host memory, where the first one is on a device")
        opened = self._opened.get(tensor.body)
        if opened is None:
            handle = Handle(tensor.body, tensor.offset, tensor.nbytes, tensor.metadata.device_uuid)
            opened = self._opened[tensor.body] = self._devices.runtime().open(handle)
        if tensor.offset + tensor.nbytes > opened.nbytes:
            raise Unsupported(
                f"tensor {at} ends at {tensor.offset + tensor.nbytes} of an allocation of {opened.nbytes} bytes"
            )
        return opened.address + tensor.offset

    # ---- copies

    def chunks(self, blocks: Blocks, wanted: int) -> int:
        return self._forms.chunks(blocks, wanted)

    def begin(self, event: bytes, ended: Callable[[], bool]) -> None:
        if event:
            self._wait(event, ended)
        self._lock.acquire()

    def _wait(self, event: bytes, ended: Callable[[], bool]) -> None:
        if len(event) != HANDLE_BYTES:
            raise CopyFailed(
                f"expected an event of {HANDLE_BYTES} bytes, got {len(event)}: start the engine without isolated IPC"
            )
        try:
            wait_for_engine(self._devices.runtime(), self._device, event, ended, self._close)
        except DeviceError as error:
            raise self._failure(error) from None

    def gather(self, blocks: Blocks, chunk: int, target: memoryview) -> None:
        for runs, at in self._runs(blocks, chunk, 0):
            self._copy(runs, target, at, to_device=False)

    def scatter(self, blocks: Blocks, chunk: int, source: memoryview, skip_tokens: int) -> None:
        for runs, at in self._runs(blocks, chunk, skip_tokens):
            self._copy(runs, source, at, to_device=True)

    def _runs(self, blocks: Blocks, chunk: int, skip_tokens: int) -> list[tuple[Runs, int]]:
        """The runs of each group, with the group's place in the chunk."""
        found, at = [], 0
        for numbers, group, positions in zip(blocks, self._forms.groups, self._forms.members, strict=True):
            first = chunk * group.blocks_per_chunk
            own = numbers[first : first + group.blocks_per_chunk]
            skip = skipped(group, chunk, skip_tokens)
            bases = [self._bases[position] for position in positions]
            found.append((group.runs(own[skip:], first=skip, bases=bases), at))
            at += group.chunk_bytes
        return found

    def _copy(self, runs: Runs, memory: memoryview, at: int, *, to_device: bool) -> None:
        assert self._lane is not None
        host = int(np.frombuffer(memory, np.uint8).ctypes.data) + at
        try:
            pool = self._devices.memory()
            if self._lane.copy_pinned(runs, pool, host - pool.address, to_device=to_device):
                return
            assert pool.refused is not None
            self._devices.staging(pool.refused)
            self._copy_staged(runs, host, to_device=to_device)
        except DeviceError as error:
            raise self._failure(error) from None

    def _copy_staged(self, runs: Runs, host: int, *, to_device: bool) -> None:
        """Raises DeviceError."""
        assert self._lane is not None
        if self._staging is None:
            self._staging = Staging(self._devices.runtime())
        self._lane.copy_staged(runs, self._staging, host, to_device=to_device)

    def finish(self) -> None:
        assert self._lane is not None
        try:
            self._lane.synchronize()
        except DeviceError as error:
            raise self._failure(error) from None
        finally:
            self._lock.release()

    def _failure(self, error: DeviceError) -> CopyFailed:
        self._devices.failed(error)
        return CopyFailed(str(error))

    def digests(self, chunks: Blocks, *, layerwise: bool) -> list[list[str]]:
        tensors = [(self._bases[at], planes) for at, planes in self._forms.digested(chunks)]
        layers = [[tensor] for tensor in tensors] if layerwise else [tensors]
        with self._lock:
            try:
                return [[self._digest_of(chunk, layer) for chunk in chunks] for layer in layers]
            except DeviceError as error:
                raise self._failure(error) from None

    def _digest_of(self, numbers: Sequence[int], tensors: Sequence[tuple[int, Planes]]) -> str:
        """Of some blocks, tensor by tensor, plane by plane. Raises DeviceError."""
        digest = md5(usedforsecurity=False)
        for base, planes in tensors:
            form = GroupForm(0, 0, len(numbers), (planes,))
            content = np.empty(form.chunk_bytes, np.uint8)
            self._copy_staged(form.runs(numbers, base=base), int(content.ctypes.data), to_device=False)
            digest.update(content.data)
        return digest.hexdigest()

    # ---- the end

    def close(self) -> None:
        """Close everything that was opened. No copy is under way."""
        lane, self._lane = self._lane, None
        if lane is not None:
            self._close(lane.close)
        for opened in self._opened.values():
            self._close(opened.close)
        self._opened.clear()
        if self._staging is not None:
            self._close(self._staging.close)
            self._staging = None
        if lane is not None:
            self._devices.leave()

    def _close(self, close: Callable[[], None]) -> None:
        """What fails to close must not keep the rest open."""
        try:
            close()
        except DeviceError as error:
            self._devices.failed(error)
            log.warning("lmcache.device_close_failed", error=str(error))

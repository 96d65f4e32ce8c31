"""Clients' descriptions of tensors in other processes' memory: MessagePack extension 1 with a tagged map.

This module only decodes descriptions: it opens nothing and never unpickles. Releases before 0.5.6 send a pickle, which
is refused with an error that says so.

There are two forms for CUDA: `cuda`, which torch makes from a storage, and `cuda_raw`, the driver's handle of an
allocation. Both reduce to a 64-byte handle that another process can open, and a range of the opened memory. `cuda_vmm`
needs file descriptors, which this protocol cannot carry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dataplane.base.dtypes import ITEM_BYTES, canonical
from dataplane.devices.errors import EXPANDABLE
from dataplane.devices.runtime import HANDLE_BYTES

MAX_DIMENSIONS = 8
MAX_NUMBER = 1 << 50
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_DEVICES = {"musa": "MUSA memory", "npu": "NPU memory"}
_CUDA_MALLOC, _EXPANDABLE = b"c", b"e"


class MemoryUnsupported(Exception):
    """A description is invalid, or it is of memory that this node cannot copy. The message says which."""


class Metadata(msgspec.Struct, frozen=True):
    """Layout of a tensor in its memory. Strides and offset are in elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    device_uuid: str = ""

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[canonical(self.dtype) or self.dtype]

    def end_bytes(self) -> int:
        """Return the bytes from the start of the memory to the end of the tensor's last element."""
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return self.item_bytes * (self.storage_offset + last + 1)


class CpuShm(msgspec.Struct, frozen=True):
    """A tensor in a named POSIX segment."""

    shm_name: str
    nbytes: int
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class DeviceTensor:
    """A tensor in the memory of a device."""

    metadata: Metadata
    body: bytes
    """Handle of the allocation that contains the tensor."""
    offset: int
    """Byte offset of the tensor's memory in the allocation."""
    nbytes: int
    """Bytes of the tensor's memory, according to its owner."""
    type: str


Tensor = CpuShm | DeviceTensor


class _Cuda(msgspec.Struct, frozen=True):
    """Result of `torch.UntypedStorage._share_cuda_`.

    `handle` contains the device, the handle, the bytes and the offset, followed by values that torch's own receiver
    needs to count users.
    """

    metadata: Metadata
    handle: tuple[int, bytes | None, int, int, bytes | None, int, bytes | None, bool]


class _CudaRaw(msgspec.Struct, frozen=True):
    metadata: Metadata
    ipc_handle: bytes
    alloc_offset: int
    nbytes: int


class _Tagged(msgspec.Struct):
    type: str
    version: int = 1


_tag = msgspec.msgpack.Decoder(_Tagged).decode
_cpu_shm = msgspec.msgpack.Decoder(CpuShm).decode
_cuda = msgspec.msgpack.Decoder(_Cuda).decode
_cuda_raw = msgspec.msgpack.Decoder(_CudaRaw).decode


def decode(bodies: Sequence[bytes]) -> list[Tensor]:
    """Return the tensors that wrappers describe, in order. Raise MemoryUnsupported on failure."""
    return [_decode_one(at, body) for at, body in enumerate(bodies)]


def _decode_one(at: int, body: bytes) -> Tensor:
    if body[:2] in _PICKLES:
        raise MemoryUnsupported(
            f"tensor {at} is described by a pickle, as LMCache before 0.5.6 does: this node never unpickles"
        )
    try:
        tagged = _tag(body)
        if tagged.type in _DEVICES:
            raise MemoryUnsupported(
                f"tensor {at} is in {_DEVICES[tagged.type]} ({tagged.type}): this node copies cpu_shm and cuda; "
                "use mp_transfer_mode=engine_driven"
            )
        if tagged.type == "cuda_vmm":
            raise MemoryUnsupported(f"tensor {at} is in CUDA memory of the VMM API (cuda_vmm): {EXPANDABLE}")
        if tagged.type not in ("cpu_shm", "cuda", "cuda_raw") or tagged.version != 1:
            raise MemoryUnsupported(f"tensor {at} is of type {tagged.type[:32]!r}, version {tagged.version}")
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError) as error:
        raise MemoryUnsupported(f"tensor {at} is not described as one: {error}") from None
    try:
        tensor = _of_type(at, tagged.type, body)
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError) as error:
        raise MemoryUnsupported(f"tensor {at} is not described as one of {tagged.type}: {error}") from None
    _check(at, tensor)
    return tensor


def _of_type(at: int, kind: str, body: bytes) -> Tensor:
    if kind == "cpu_shm":
        return _cpu_shm(body)
    if kind == "cuda_raw":
        raw = _cuda_raw(body)
        return DeviceTensor(raw.metadata, memory_handle(at, raw.ipc_handle), raw.alloc_offset, raw.nbytes, kind)
    described = _cuda(body)
    _, handle, nbytes, offset, *_ = described.handle
    return DeviceTensor(described.metadata, memory_handle(at, handle or b""), offset, nbytes, kind)


def memory_handle(at: int, handle: bytes) -> bytes:
    """Return the driver's 64-byte handle from a torch handle. Raise MemoryUnsupported on failure.

    A torch handle is the bare driver handle, or the driver handle after a version byte and an allocation type byte.
    """
    if len(handle) == HANDLE_BYTES:
        return handle
    kind = handle[1:2]
    if kind == _EXPANDABLE:
        raise MemoryUnsupported(f"tensor {at} is in an expandable segment: {EXPANDABLE}")
    if kind != _CUDA_MALLOC or len(handle) != HANDLE_BYTES + 2:
        raise MemoryUnsupported(f"tensor {at} has a handle of {len(handle)} bytes: expected {HANDLE_BYTES}")
    return handle[2:]


def _check(at: int, tensor: Tensor) -> None:
    metadata = tensor.metadata
    start = tensor.offset if isinstance(tensor, DeviceTensor) else 0
    numbers = (*metadata.shape, *metadata.stride, metadata.storage_offset, tensor.nbytes, start)
    if canonical(metadata.dtype) is None:
        raise MemoryUnsupported(f"tensor {at} has dtype {metadata.dtype[:32]!r}, which is none of torch's")
    if (
        not 1 <= len(metadata.shape) <= MAX_DIMENSIONS
        or len(metadata.shape) != len(metadata.stride)
        or not all(0 <= number <= MAX_NUMBER for number in numbers)
        or 0 in metadata.shape
    ):
        raise MemoryUnsupported(
            f"tensor {at} has shape {metadata.shape[:MAX_DIMENSIONS]} and stride {metadata.stride[:MAX_DIMENSIONS]}"
        )
    if metadata.end_bytes() > tensor.nbytes:
        raise MemoryUnsupported(f"tensor {at} ends at {metadata.end_bytes()} of {tensor.nbytes} bytes")

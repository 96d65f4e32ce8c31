"""Tensors in other processes' memory, as clients describe them: MessagePack extension 1 with a tagged map.

Only descriptions are decoded: nothing is opened here, and nothing is ever unpickled. The form that releases before
0.5.6 send is a pickle; it is refused as what it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dataplane.transport.lmcache.dtypes import ITEM_BYTES, canonical

MAX_DIMENSIONS = 8
MAX_NUMBER = 1 << 50
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_DEVICES = {
    "cuda": "CUDA memory",
    "cuda_raw": "CUDA memory",
    "cuda_vmm": "CUDA memory",
    "musa": "MUSA memory",
    "npu": "NPU memory",
}


class Unsupported(Exception):
    """A description that is wrong, or of memory that this node cannot copy: the sentence says which."""


class Metadata(msgspec.Struct, frozen=True):
    """How a tensor lies in its memory, in elements."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    device_uuid: str = ""

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[canonical(self.dtype) or self.dtype]

    def end_bytes(self) -> int:
        """Bytes from the start of its memory to the end of its last element."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return self.item_bytes * (self.storage_offset + last + 1)


class CpuShm(msgspec.Struct, frozen=True):
    """A tensor in a named POSIX segment."""

    shm_name: str
    nbytes: int
    metadata: Metadata


class _Tagged(msgspec.Struct):
    type: str
    version: int = 1


_tag = msgspec.msgpack.Decoder(_Tagged).decode
_cpu_shm = msgspec.msgpack.Decoder(CpuShm).decode


def decode(bodies: Sequence[bytes]) -> list[CpuShm]:
    """The tensors that wrappers describe, in their order. Raises Unsupported."""
    return [_decode_one(at, body) for at, body in enumerate(bodies)]


def _decode_one(at: int, body: bytes) -> CpuShm:
    if body[:2] in _PICKLES:
        raise Unsupported(
            f"tensor {at} is described by a pickle, as LMCache before 0.5.6 does: this node never unpickles"
        )
    try:
        tagged = _tag(body)
        if tagged.type in _DEVICES:
            raise Unsupported(
                f"tensor {at} is in {_DEVICES[tagged.type]} ({tagged.type}): this node copies cpu_shm alone; "
                "use mp_transfer_mode=engine_driven"
            )
        if tagged.type != "cpu_shm" or tagged.version != 1:
            raise Unsupported(f"tensor {at} is of type {tagged.type[:32]!r}, version {tagged.version}")
        tensor = _cpu_shm(body)
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError) as error:
        raise Unsupported(f"tensor {at} is not described as one: {error}") from None
    _check(at, tensor)
    return tensor


def _check(at: int, tensor: CpuShm) -> None:
    metadata = tensor.metadata
    numbers = (*metadata.shape, *metadata.stride, metadata.storage_offset, tensor.nbytes)
    if canonical(metadata.dtype) is None:
        raise Unsupported(f"tensor {at} has dtype {metadata.dtype[:32]!r}, which is none of torch's")
    if (
        not 1 <= len(metadata.shape) <= MAX_DIMENSIONS
        or len(metadata.shape) != len(metadata.stride)
        or not all(0 <= number <= MAX_NUMBER for number in numbers)
    ):
        raise Unsupported(
            f"tensor {at} has shape {metadata.shape[:MAX_DIMENSIONS]} and stride {metadata.stride[:MAX_DIMENSIONS]}"
        )
    if metadata.end_bytes() > tensor.nbytes:
        raise Unsupported(f"tensor {at} ends at {metadata.end_bytes()} of {tensor.nbytes} bytes")

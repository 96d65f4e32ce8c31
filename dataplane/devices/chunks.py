"""Layout of a chunk of an engine's tensors, which both sides of the engine socket compute.

The bytes of a chunk depend on how the tensors lie in memory. A space whose bytes come from tensors therefore has a
layout string that identifies it. All engines of a space copy chunks of the same layout, whichever process copies,
also after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType

from dataplane.base import dtypes
from dataplane.devices.paged import LayoutRefused, Planes, TensorGroup, block_axis, planes_of
from dataplane.protocol.engine import MAX_CACHE_TENSORS, MAX_DIMENSIONS

MAX_NUMBER = 1 << 50
MAX_PIECES = 1 << 20
"""Maximum number of runs of bytes in one chunk."""
MAX_PLANES = 1 << 16
"""Maximum number of planes of all tensors together."""
PREFIX = "paged:"

ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {
        name: dtypes.ITEM_BYTES[name]
        for name in (
            *("uint8", "int8", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
            *("float8_e8m0fnu", "float16", "bfloat16", "float32"),
        )
    }
)
"""Bytes per element of the types used in KV caches."""


class TensorsRefused(Exception):
    """Raised for tensors that cannot form a paged cache. The message says why; `field` names the tensor."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor, counted from its first element. Shape and stride are in elements."""

    dtype: str
    shape: Sequence[int]
    stride: Sequence[int]

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes from its first element to the end of its last one."""
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return self.item_bytes * (last + 1)


def tensor_group(tensors: Sequence[Tensor], tokens_per_block: int, chunk_tokens: int) -> TensorGroup:
    """Return tensors that share block numbers as runs of bytes. Raise TensorsRefused."""
    if not 1 <= len(tensors) <= MAX_CACHE_TENSORS:
        raise TensorsRefused(f"expected 1 to {MAX_CACHE_TENSORS} tensors, got {len(tensors)}", "tensors")
    if tokens_per_block < 1 or chunk_tokens % tokens_per_block:
        raise TensorsRefused(
            f"expected blocks whose tokens divide a chunk of {chunk_tokens}, got {tokens_per_block}", "tokens_per_block"
        )
    made: list[Planes] = []
    planes = 0
    for at, tensor in enumerate(tensors):
        made.append(_planes(tensor, f"tensors[{at}]"))
        planes += len(made[-1].starts)
        if planes > MAX_PLANES:
            raise TensorsRefused(f"expected at most {MAX_PLANES} planes of blocks in all tensors", "tensors")
    per_chunk = chunk_tokens // tokens_per_block
    if planes * per_chunk > MAX_PIECES:
        raise TensorsRefused(
            f"expected chunks of at most {MAX_PIECES} pieces, got {planes} planes of {per_chunk} blocks", "tensors"
        )
    blocks = min(tensor.shape[block_axis(tensor.shape)] for tensor in tensors)
    return TensorGroup(blocks, tokens_per_block, per_chunk, tuple(made))


def _planes(tensor: Tensor, field: str) -> Planes:
    if tensor.dtype not in ITEM_BYTES:
        raise TensorsRefused(f"expected one of {', '.join(ITEM_BYTES)}, got {tensor.dtype[:32]!r}", f"{field}.dtype")
    if not 2 <= len(tensor.shape) <= MAX_DIMENSIONS:
        raise TensorsRefused(f"expected 2 to {MAX_DIMENSIONS} dimensions, got {len(tensor.shape)}", f"{field}.shape")
    if not all(1 <= size <= MAX_NUMBER for size in tensor.shape):
        raise TensorsRefused(f"expected sizes from 1 to {MAX_NUMBER}, got {list(tensor.shape)}", f"{field}.shape")
    if len(tensor.stride) != len(tensor.shape) or not all(0 <= step <= MAX_NUMBER for step in tensor.stride):
        raise TensorsRefused(
            f"expected {len(tensor.shape)} steps from 0 to {MAX_NUMBER}, got {list(tensor.stride[:MAX_DIMENSIONS])}",
            f"{field}.stride",
        )
    if tensor.nbytes > MAX_NUMBER:
        raise TensorsRefused(
            f"expected at most {MAX_NUMBER} bytes, got {tensor.nbytes} to its last element", f"{field}.stride"
        )
    try:
        return planes_of(tensor.shape, tensor.stride, tensor.item_bytes)
    except LayoutRefused as error:
        raise TensorsRefused(str(error), f"{field}.stride") from None


def layout_of(tensors: Sequence[Tensor], group: TensorGroup) -> str:
    """Return `Space.layout` for chunks of this group: a hash of dtypes, sizes and order of a block's contents, per
    tensor.

    The number of blocks and their place in memory are not part of it; each engine chooses them freely.
    """
    parts = [
        (
            tensor.dtype,
            [size for at, size in enumerate(tensor.shape) if at != block_axis(tensor.shape)],
            len(planes.starts),
            planes.nbytes,
            list(planes.order),
        )
        for tensor, planes in zip(tensors, group.tensors, strict=True)
    ]
    text = repr((group.tokens_per_block, group.blocks_per_chunk, parts))
    return PREFIX + sha256(text.encode()).hexdigest()[:32]

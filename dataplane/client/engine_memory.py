"""Memory of the engine that the data plane copies from and to: exported tensors of a device, and pages of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataplane.devices.chunks import Tensor, TensorsRefused, layout_of, tensor_group
from dataplane.devices.runtime import DeviceRuntime, Handle
from dataplane.protocol import engine as wire
from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """One exported tensor of the engine's cache.

    One axis counts blocks: the first axis, or the second axis of five if the first one separates keys and values.
    """

    handle: Handle
    """Handle of the memory from the tensor's first element on."""
    dtype: str
    """Type name as in torch."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """Strides in elements."""

    @property
    def tensor(self) -> Tensor:
        return Tensor(self.dtype, self.shape, self.stride)


def exported(
    runtime: DeviceRuntime, address: int, dtype: str, shape: Sequence[int], stride: Sequence[int]
) -> CacheTensor:
    """Export a tensor whose first element is at `address` in the engine's device memory. Strides are in elements.

    Raises DeviceError for memory that cannot be exported (expandable segments; the message says what to set), and
    ValueError for an invalid tensor.
    """
    tensor = Tensor(dtype, tuple(shape), tuple(stride))
    try:
        tensor_group([tensor], 1, 1)
    except TensorsRefused as error:
        raise ValueError(error.message) from None
    return CacheTensor(runtime.export(address, tensor.nbytes), dtype, tuple(shape), tuple(stride))


def exported_tensors(runtime: DeviceRuntime, tensors: Sequence[torch.Tensor]) -> list[CacheTensor]:
    """Export torch tensors on a device. Raise DeviceError or ValueError as `exported` does."""
    return [
        exported(runtime, each.data_ptr(), str(each.dtype).removeprefix("torch."), each.shape, each.stride())
        for each in tensors
    ]


def chunk_layout(
    tensors: Sequence[CacheTensor], *, tokens_per_block: int, chunk_tokens: int = DEFAULT_CHUNK_TOKENS
) -> tuple[str, int]:
    """Return `Space.layout` and `Space.block_bytes` for these tensors. Raise ValueError."""
    described_tensors = [tensor.tensor for tensor in tensors]
    try:
        group = tensor_group(described_tensors, tokens_per_block, chunk_tokens)
    except TensorsRefused as error:
        raise ValueError(f"{error.field}: {error.message}") from None
    return layout_of(described_tensors, group), group.chunk_bytes


@dataclass(frozen=True, slots=True)
class HostPool:
    """Pages of the engine's host memory, in memfds whose bytes are all allocated."""

    fds: Sequence[int]
    """File descriptors of the memfds. They are duplicated, so the caller may close its own."""
    pieces: Sequence[wire.HostPiece]
    """Pieces of a page, in the order of a block's bytes."""
    pages: int
    """Number of pages, which are the blocks of `store_from` and `load_into`, one for each key."""

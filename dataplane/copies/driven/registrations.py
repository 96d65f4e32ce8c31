"""Check an engine's description of its cache before opening any of its memory."""

from __future__ import annotations

from dataclasses import dataclass

from dataplane.devices.chunks import MAX_NUMBER, Tensor, TensorsRefused, layout_of, tensor_group
from dataplane.devices.errors import EXPANDABLE
from dataplane.devices.paged import TensorGroup
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import HANDLE_BYTES, MAX_CACHE_ALLOCATIONS, RegisterCache
from dataplane.protocol.spaces import Space

MAX_UUID_CHARACTERS = 64
_CUDA_MALLOC, _EXPANDABLE = b"c", b"e"
"""Torch's kind of handle, in the byte after the version byte."""


@dataclass(frozen=True, slots=True)
class Registration:
    """Checked tensors that match each other and their space."""

    space: int
    device_uuid: str
    allocations: list[bytes]
    """The driver's handles."""
    locations: list[tuple[int, int, int]]
    """(allocation, offset, bytes) of each tensor."""
    group: TensorGroup


def check(message: RegisterCache, space: Space) -> Registration:
    """Check a request against its space. Raises ProtocolError that names the invalid field."""
    if not 1 <= len(message.device) <= MAX_UUID_CHARACTERS or not message.device.isprintable():
        raise _refused(f"expected a UUID of 1 to {MAX_UUID_CHARACTERS} characters", "device")
    if not 1 <= len(message.allocations) <= MAX_CACHE_ALLOCATIONS:
        raise _refused(f"expected 1 to {MAX_CACHE_ALLOCATIONS} handles, got {len(message.allocations)}", "allocations")
    allocations = [_handle(at, each) for at, each in enumerate(message.allocations)]
    if not space.block_bytes:
        raise _refused("expected a space with block_bytes: they are the bytes of one chunk", "space")
    tensors = [Tensor(each.dtype, each.shape, each.stride) for each in message.tensors]
    try:
        group = tensor_group(tensors, message.tokens_per_block, space.block_tokens)
    except TensorsRefused as error:
        raise _refused(error.message, error.field) from None
    locations = []
    for at, (each, tensor) in enumerate(zip(message.tensors, tensors, strict=True)):
        if not 0 <= each.allocation < len(allocations):
            raise _refused(f"expected 0 to {len(allocations) - 1}, got {each.allocation}", f"tensors[{at}].allocation")
        if not 0 <= each.offset <= MAX_NUMBER:
            raise _refused(f"expected 0 to {MAX_NUMBER}, got {each.offset}", f"tensors[{at}].offset")
        if not tensor.nbytes <= each.nbytes <= MAX_NUMBER:
            raise _refused(
                f"expected at least the {tensor.nbytes} bytes to its last element, got {each.nbytes}",
                f"tensors[{at}].nbytes",
            )
        locations.append((each.allocation, each.offset, each.nbytes))
    if group.chunk_bytes != space.block_bytes:
        raise _refused(
            f"these tensors have {group.chunk_bytes} bytes for a chunk of {space.block_tokens} tokens, "
            f"and the space has block_bytes {space.block_bytes}",
            "tensors",
        )
    layout = layout_of(tensors, group)
    if space.layout != layout:
        raise _refused(
            f"chunks of these tensors have the layout {layout!r}, and the space says {space.layout[:64]!r}: "
            "engines of other tensors would read other bytes",
            "tensors",
        )
    return Registration(message.space, message.device, allocations, locations, group)


def _handle(at: int, handle: bytes) -> bytes:
    """Return the driver's 64 bytes from a bare handle, or from one with torch's prefix of two bytes. Raises
    ProtocolError."""
    if len(handle) == HANDLE_BYTES:
        return handle
    kind = handle[1:2]
    if kind == _EXPANDABLE:
        raise ProtocolError(Code.DEVICE_REFUSED, f"an expandable segment: {EXPANDABLE}", f"allocations[{at}]")
    if kind != _CUDA_MALLOC or len(handle) != HANDLE_BYTES + 2:
        raise _refused(f"expected a handle of {HANDLE_BYTES} bytes, got {len(handle)}", f"allocations[{at}]")
    return handle[2:]


def _refused(message: str, field: str) -> ProtocolError:
    return ProtocolError(Code.BAD_CACHE, message, field)

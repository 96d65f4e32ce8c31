"""The form of a worker's chunks: how large they are, and what makes them interchangeable."""

from __future__ import annotations

from dataclasses import dataclass

from dataplane.devices.dtypes import ITEM_BYTES, canonical
from dataplane.protocol.spaces import LMCACHE, Space
from dataplane.transport.devices import Devices
from dataplane.transport.lmcache.chains import CHUNK_TOKENS
from dataplane.transport.lmcache.copies import MAX_CHUNK_BYTES, Copier
from dataplane.transport.lmcache.device_copies import copier_of
from dataplane.transport.lmcache.failures import Failed, Reason
from dataplane.transport.lmcache.ipc import Unsupported, decode
from dataplane.transport.lmcache.messages import EngineContext
from dataplane.transport.lmcache.registrations import DeviceContext, Registered

MAX_WORLD_SIZE = 1024
"""As many spaces as one engine of the core may have."""
MAX_DIMENSION = 1 << 24


@dataclass(frozen=True, slots=True)
class Form:
    """What a worker stores and reads."""

    layout: str
    dtype: str
    chunk_bytes: int
    shape: list[int]
    """Of the tensor in a slot, for workers that copy by themselves."""
    copier: Copier | None = None
    """For those that do not."""

    def spaces(self, model: str, world_size: int) -> list[Space]:
        """The spaces of all ranks, rank 0 first."""
        return [
            Space(
                model=model,
                layout=self.layout,
                dtype=self.dtype,
                world_size=world_size,
                rank=rank,
                block_bytes=self.chunk_bytes,
                block_tokens=CHUNK_TOKENS,
                gateway=LMCACHE,
            )
            for rank in range(world_size)
        ]


def form_of(registered: Registered, devices: Devices) -> Form:
    """What a registration describes. Its copier opens a device's memory later. Raises Failed."""
    if not 1 <= registered.world_size <= MAX_WORLD_SIZE:
        raise Failed(
            Reason.BAD_ARGUMENTS,
            f"world_size: expected 1 to {MAX_WORLD_SIZE}, got {registered.world_size}",
        )
    if registered.engine is not None:
        return _engine_form(registered.engine)
    assert registered.device is not None
    return _device_form(registered.device, devices)


def _engine_form(context: EngineContext) -> Form:
    slots = CHUNK_TOKENS if context.num_physical_slots is None else context.num_physical_slots
    dtype = canonical(context.dtype_str)
    if dtype is None:
        raise Failed(
            Reason.BAD_ARGUMENTS, f"dtype_str: torch has no {context.dtype_str[:32]!r} of whole bytes"
        )
    for name, value in (
        ("num_layers", context.num_layers),
        ("num_physical_slots", slots),
        ("hidden_dim_size", context.hidden_dim_size),
        ("block_size", context.block_size),
    ):
        if not 1 <= value <= MAX_DIMENSION:
            raise Failed(Reason.BAD_ARGUMENTS, f"{name}: expected 1 to {MAX_DIMENSION}, got {value}")
    planes = [] if context.use_mla else [2]
    shape = [*planes, context.num_layers, slots, context.hidden_dim_size]
    chunk_bytes = ITEM_BYTES[dtype]
    for size in shape:
        chunk_bytes *= size
    if chunk_bytes > MAX_CHUNK_BYTES:
        raise Failed(
            Reason.BAD_ARGUMENTS, f"expected chunks of at most {MAX_CHUNK_BYTES} bytes, got {chunk_bytes}"
        )
    return Form(f"lmcache:{'x'.join(map(str, shape))}", dtype, chunk_bytes, shape)


def _device_form(context: DeviceContext, devices: Devices) -> Form:
    try:
        tensors = decode(context.wrappers)
        copier = copier_of(tensors, context.groups, context.hints, context.engine_type, devices)
    except Unsupported as error:
        raise Failed(Reason.UNSUPPORTED, str(error)) from None
    return Form(copier.layout, copier.dtype, copier.chunk_bytes, [], copier)

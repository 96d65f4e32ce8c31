"""The layout of a worker's chunks: their size, and the properties that make chunks interchangeable."""

from __future__ import annotations

from dataclasses import dataclass

from dataplane.base.dtypes import ITEM_BYTES, canonical
from dataplane.copies.devices import Devices
from dataplane.gateways.lmcache.failures import OperationFailed, Reason
from dataplane.gateways.lmcache.wire.ipc import MemoryUnsupported, decode
from dataplane.gateways.lmcache.wire.messages import EngineContext
from dataplane.gateways.lmcache.wire.tokens import CHUNK_TOKENS
from dataplane.gateways.lmcache.workers.copies import MAX_CHUNK_BYTES, Copier
from dataplane.gateways.lmcache.workers.device_copies import copier_of
from dataplane.gateways.lmcache.workers.registrations import DeviceContext, RegisteredWorker
from dataplane.protocol.spaces import LMCACHE, Space

MAX_WORLD_SIZE = 1024
"""Maximum world size: the number of spaces that one engine of the core may have."""
MAX_DIMENSION = 1 << 24


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """The layout of the chunks that a worker stores and reads."""

    layout: str
    dtype: str
    chunk_bytes: int
    shape: list[int]
    """Shape of the tensor in a slot, for workers that copy by themselves."""
    copier: Copier | None = None
    """Copier for workers that do not copy by themselves."""

    def spaces(self, model: str, world_size: int) -> list[Space]:
        """Return the spaces of all ranks, rank 0 first."""
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


def chunk_layout_of(registered: RegisteredWorker, devices: Devices) -> ChunkLayout:
    """Return the layout that a registration describes. Its copier opens device memory later.

    Raise OperationFailed on failure.
    """
    if not 1 <= registered.world_size <= MAX_WORLD_SIZE:
        raise OperationFailed(
            Reason.BAD_ARGUMENTS, f"world_size: expected 1 to {MAX_WORLD_SIZE}, got {registered.world_size}"
        )
    if registered.engine is not None:
        return _engine_layout(registered.engine)
    assert registered.device is not None
    return _device_layout(registered.device, devices)


def _engine_layout(context: EngineContext) -> ChunkLayout:
    if context.group_layouts:
        raise OperationFailed(
            Reason.UNSUPPORTED,
            f"group_layouts: expected a model whose layers share one layout, got {len(context.group_layouts)} groups",
        )
    slots = CHUNK_TOKENS if context.num_physical_slots is None else context.num_physical_slots
    dtype = canonical(context.dtype_str)
    if dtype is None:
        raise OperationFailed(
            Reason.BAD_ARGUMENTS, f"dtype_str: torch has no {context.dtype_str[:32]!r} of whole bytes"
        )
    for name, value in (
        ("num_layers", context.num_layers),
        ("num_physical_slots", slots),
        ("hidden_dim_size", context.hidden_dim_size),
        ("block_size", context.block_size),
    ):
        if not 1 <= value <= MAX_DIMENSION:
            raise OperationFailed(Reason.BAD_ARGUMENTS, f"{name}: expected 1 to {MAX_DIMENSION}, got {value}")
    planes = [] if context.use_mla else [2]
    shape = [*planes, context.num_layers, slots, context.hidden_dim_size]
    chunk_bytes = ITEM_BYTES[dtype]
    for size in shape:
        chunk_bytes *= size
    if chunk_bytes > MAX_CHUNK_BYTES:
        raise OperationFailed(
            Reason.BAD_ARGUMENTS, f"expected chunks of at most {MAX_CHUNK_BYTES} bytes, got {chunk_bytes}"
        )
    return ChunkLayout(f"lmcache:{'x'.join(map(str, shape))}", dtype, chunk_bytes, shape)


def _device_layout(context: DeviceContext, devices: Devices) -> ChunkLayout:
    try:
        tensors = decode(context.wrappers)
        copier = copier_of(tensors, context.groups, context.hints, context.engine_type, devices)
    except MemoryUnsupported as error:
        raise OperationFailed(Reason.UNSUPPORTED, str(error)) from None
    return ChunkLayout(copier.layout, copier.dtype, copier.chunk_bytes, [], copier)

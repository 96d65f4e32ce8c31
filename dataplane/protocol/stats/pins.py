"""Pins, and the GPU copies of their blocks."""

from typing import Annotated

import msgspec

from dataplane.protocol.stats.figures import counter, gauge


class PinInTier(msgspec.Struct):
    """Blocks of a pin that a tier behind memory holds."""

    blocks: int = 0
    bytes: int = 0
    """Bytes of the tier's budget, headers and rounding included."""
    guaranteed: int = 0
    """Blocks within the pin budgets, which the tier does not evict."""


class PinStats(msgspec.Struct):
    name: str
    resolved: int
    """Blocks that the pin covers: its keys times the attached spaces of its model (or its keys if there is no such
    space)."""
    resident: int
    bytes: int
    guaranteed: int
    """Resident blocks within the pin budgets, which are not evicted."""
    expired: bool = False
    strength: str = "guaranteed"
    degraded: int = 0
    """Resident blocks beyond the budgets: kept as under a soft pin."""
    expires_at: float | None = None
    """Unix seconds, including extensions by hits."""
    tier: str = "host"
    gpu_copies: Annotated[int, gauge("larder_pin_gpu_copies")] = 0
    """GPU copies of the blocks of a pin of the tier gpu, on all GPUs."""
    gpu_copy_bytes: Annotated[int, gauge("larder_pin_gpu_copy_bytes")] = 0
    """Bytes of the GPU copies of a pin of the tier gpu."""
    gpu_copies_wanted: Annotated[int, gauge("larder_pin_gpu_copies_wanted")] = 0
    """GPU copies that a gpu pin would have with unlimited memory: of each block on each GPU whose engines read it."""
    tiers: dict[str, PinInTier] = {}
    """What tiers behind memory hold of it, by the name of the tier; counted in parts after the pin changed."""
    only_in_tiers: int = 0
    """Blocks of a guaranteed or permanent pin that tiers hold and memory does not yet. They are loaded in the
    background, in chain order, as far as the pin budgets have room."""
    not_loaded: str = ""
    """Why blocks that are only in tiers are not being loaded now: `budget`: the pin budgets have no room; `failed`: the
    last load failed and is tried again; `detached`: no engine has attached a space of the model since the node started.
    Empty if they are being loaded, or if there are none."""


class GpuCopyPoolStats(msgspec.Struct):
    """Pool of GPU copies on one GPU; exists once an engine has asked for it."""

    device: str
    """UUID."""
    name: str
    """Name of the GPU model."""
    capacity_bytes: Annotated[int, gauge("larder_gpu_copy_pool_capacity_bytes")]
    """Memory of the GPU that GPU copies may use."""
    used_bytes: Annotated[int, gauge("larder_gpu_copy_pool_used_bytes")]
    """Memory of the GPU that is in use, in whole extents."""
    gpu_copies: Annotated[int, gauge("larder_gpu_copy_pool_gpu_copies")]
    """Blocks that engines may read on the GPU."""
    gpu_copy_bytes: Annotated[int, gauge("larder_gpu_copy_pool_gpu_copy_bytes")]
    """Bytes of blocks that engines may read on the GPU."""
    wanted: Annotated[int, gauge("larder_gpu_copy_pool_wanted_blocks")]
    """Blocks in the node's pool that pins require on the GPU and that engines there could read."""
    copying: Annotated[int, gauge("larder_gpu_copy_pool_copying_blocks")]
    """Blocks that are being copied."""
    leaving_bytes: Annotated[int, gauge("larder_gpu_copy_pool_leaving_bytes")] = 0
    """Bytes of withdrawn GPU copies that an engine still uses."""
    readers: Annotated[int, gauge("larder_gpu_copy_pool_readers")] = 0
    """Engines that have mapped the pool."""
    copied_blocks: Annotated[int, counter("larder_gpu_copy_pool_copied_blocks")] = 0
    """Blocks copied to the GPU."""
    copied_bytes: Annotated[int, counter("larder_gpu_copy_pool_copied_bytes")] = 0
    """Bytes copied to the GPU."""
    evicted_blocks: Annotated[int, counter("larder_gpu_copy_pool_evicted_blocks")] = 0
    """GPU copies that were removed, to make room or because their pin expired."""
    read_blocks: Annotated[int, counter("larder_gpu_copy_pool_read_blocks")] = 0
    """GPU copies that the data plane itself copied to engines.

    Reads by engines are not counted."""
    failed_copies: Annotated[int, counter("larder_gpu_copy_pool_failed_copies")] = 0
    """Copies to the GPU that failed."""
    problem: str = ""
    """Reason why the pool is smaller than its capacity or unusable; empty if there is no problem."""

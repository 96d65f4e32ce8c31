"""Pins, and the GPU copies of their blocks."""

import msgspec


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
    gpu_copies: int = 0
    """Copies of its blocks that are now in GPU memory, over all GPUs."""
    gpu_copy_bytes: int = 0
    gpu_copies_wanted: int = 0
    """Copies that the pin would have without a memory limit: one of each resident block on each GPU whose engines read
    it."""
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
    capacity_bytes: int
    used_bytes: int
    """Bytes of GPU memory, in whole extents."""
    gpu_copies: int
    """GPU copies that engines may read."""
    gpu_copy_bytes: int
    wanted: int
    """Blocks in the node's pool that pins want on this GPU and that its engines could read."""
    copying: int
    leaving_bytes: int = 0
    """Bytes of withdrawn GPU copies that an engine still uses."""
    readers: int = 0
    """Engines that have mapped the pool."""
    copied_blocks: int = 0
    copied_bytes: int = 0
    evicted_blocks: int = 0
    """GPU copies removed to make room for others or because their pin ended."""
    read_blocks: int = 0
    """Blocks that the data plane itself copied from here to engines. Reads by engines are not counted."""
    failed_copies: int = 0
    problem: str = ""
    """Reason why the pool is smaller than its capacity or unusable; empty if there is no problem."""

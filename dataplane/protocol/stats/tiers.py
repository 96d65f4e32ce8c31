"""Tiers behind memory."""

from typing import Literal

import msgspec

TierPhase = Literal["opening", "in service", "out of service", "not opened", "closing"]


class TierTenantStats(msgspec.Struct):
    """What one tenant holds in a tier."""

    tenant: str
    blocks: int
    bytes: int
    floor_bytes: int = 0
    """Floor of the tenant's quota in the tier."""
    effective_floor_bytes: int = 0
    """Floor that is guaranteed: less if the tier's budget cannot hold the sum of all floors."""
    limit_bytes: int | None = None
    """Limit of the tenant's quota in the tier; null for no limit."""


class TierStats(msgspec.Struct):
    """One tier behind memory. Counts are since the start of the process."""

    name: str
    type: str
    budget_bytes: int
    serves: bool
    """Whether the tier is in service."""
    reason: str = ""
    """Why it is not in service; empty if it is."""
    out_of_service: int = 0
    """Number of times that the tier was taken out of service."""
    blocks: int = 0
    stored_bytes: int = 0
    """Bytes of the budget in use, headers and rounding included."""
    spilled_blocks: int = 0
    """Blocks that were copied to the tier."""
    spilled_bytes: int = 0
    loaded_blocks: int = 0
    """Blocks that were loaded from the tier into memory."""
    loaded_bytes: int = 0
    evicted_blocks: int = 0
    """Blocks that the tier evicted to stay within its budget, or within limits of tenants."""
    refused: dict[str, int] = {}
    """Blocks that were not copied to the tier, by reason."""
    lost: dict[str, int] = {}
    """Blocks that were not loaded, by reason."""
    waiting_blocks: int = 0
    """Blocks that wait to be copied to the tier."""
    spilling_bytes: int = 0
    loading_bytes: int = 0
    load_bytes_per_s: float = 0.0
    """Measured bandwidth of loads."""
    tenants: list[TierTenantStats] = []
    """Largest first, at most 50."""
    state: TierPhase = "in service"
    """`opening`: its contents are being read; `not opened`: the last attempt failed, and another one follows;
    `closing`: it was removed, and calls under way end first."""
    from_settings: bool = True
    """Whether the node's settings declare the tier; otherwise a record does."""
    shared: bool = False
    """Whether other nodes use the same tier. The figures are then of blocks that this node wrote."""
    listed_blocks: int | None = None
    """While a shared tier is being listed after it was opened: number of blocks from before that were found so far.
    Null otherwise."""
    listing_fault: str = ""
    """Why the last attempt to list it failed; empty if none did. Another attempt follows."""
    logical_bytes: int = 0
    """Bytes of the blocks as they are in memory, before compression and without headers."""
    encodings: dict[str, int] = {}
    """Number of blocks by their encoding in the tier: `none` (as they are in memory), `zstd`, `fp8`."""
    not_compressed: dict[str, int] = {}
    """Blocks that were copied as they are although the tier compresses, by reason."""
    waiting_bytes: int = 0
    """Bytes of the blocks that wait to be copied to the tier. If the node ends with its memory, they are lost, and so
    are those of `spilling_bytes`, unless another tier holds them."""
    cascaded_blocks: int = 0
    """Those of the spilled blocks that were copied from another tier, which evicts them soon."""
    draining_blocks: int | None = None
    """While the tier drains: the most blocks that no other tier holds yet. Null if it does not drain."""
    foreign_objects: int = 0
    """Things in the tier's place that are not blocks, as of the last listing, at most 10,000. They are skipped."""
    first_foreign: str = ""
    """Name of the first of them."""

"""Tiers behind memory."""

from typing import Annotated, Literal

import msgspec

from dataplane.protocol.stats.figures import counter, gauge

TierPhase = Literal["opening", "in service", "out of service", "not opened", "closing"]


class TierTenantStats(msgspec.Struct):
    """What one tenant holds in a tier."""

    tenant: str
    blocks: Annotated[int, gauge("larder_tier_tenant_blocks")]
    """Blocks of a tenant that the tier holds."""
    bytes: Annotated[int, gauge("larder_tier_tenant_bytes")]
    """Bytes of the tier's budget that a tenant uses."""
    floor_bytes: int = 0
    """Floor of the tenant's quota in the tier."""
    effective_floor_bytes: int = 0
    """Floor that is guaranteed: less if the tier's budget cannot hold the sum of all floors."""
    limit_bytes: Annotated[int | None, gauge("larder_tier_tenant_limit_bytes")] = None
    """Most bytes of the tier that a tenant may use by its quota; absent without a limit."""


class TierStats(msgspec.Struct):
    """One tier behind memory. Counts are since the start of the process."""

    name: str
    type: str
    budget_bytes: Annotated[int, gauge("larder_tier_budget_bytes")]
    """Most bytes that the tier may hold."""
    serves: Annotated[bool, gauge("larder_tier_serves")]
    """1 while the tier is in service, else 0."""
    reason: str = ""
    """Why it is not in service; empty if it is."""
    out_of_service: Annotated[int, counter("larder_tier_out_of_service")] = 0
    """Number of times that the tier was taken out of service."""
    blocks: Annotated[int, gauge("larder_tier_blocks")] = 0
    """Blocks that the tier holds."""
    stored_bytes: Annotated[int, gauge("larder_tier_stored_bytes")] = 0
    """Bytes of the tier's budget in use, headers and rounding included."""
    spilled_blocks: Annotated[int, counter("larder_tier_spilled_blocks")] = 0
    """Blocks that were copied to the tier."""
    spilled_bytes: Annotated[int, counter("larder_tier_spilled_bytes")] = 0
    """Bytes of blocks that were copied to the tier."""
    loaded_blocks: Annotated[int, counter("larder_tier_loaded_blocks")] = 0
    """Blocks that were loaded from the tier into memory."""
    loaded_bytes: Annotated[int, counter("larder_tier_loaded_bytes")] = 0
    """Bytes of blocks that were loaded from the tier into memory."""
    evicted_blocks: Annotated[int, counter("larder_tier_evicted_blocks")] = 0
    """Blocks that the tier evicted to make room.

    To stay within its budget, or within limits of tenants."""
    refused: Annotated[dict[str, int], counter("larder_tier_refused_blocks", "reason")] = {}
    """Blocks that were not copied to the tier, by reason: away (out of service), waiting (too many wait), budget, limit
    (of the tenant), listing (the tier is being listed), evicted (the tier before it evicted the block first), full,
    late, failed."""
    lost: Annotated[dict[str, int], counter("larder_tier_lost_blocks", "reason")] = {}
    """Blocks that were not loaded from the tier, by reason: memory (the pool had no room), missing, corrupt, late,
    failed, invalidated, clock (its recorded time is in the future), waiting (too many loads wait)."""
    waiting_blocks: Annotated[int, gauge("larder_tier_waiting_blocks")] = 0
    """Blocks that wait to be copied to the tier."""
    spilling_bytes: Annotated[int, gauge("larder_tier_spilling_bytes")] = 0
    """Bytes that are being copied to the tier."""
    loading_bytes: Annotated[int, gauge("larder_tier_loading_bytes")] = 0
    """Bytes that are being loaded from the tier."""
    load_bytes_per_s: Annotated[float, gauge("larder_tier_load_bytes_per_second")] = 0.0
    """Measured bandwidth of loads from the tier; an assumed value before the first load."""
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
    logical_bytes: Annotated[int, gauge("larder_tier_logical_bytes")] = 0
    """Bytes of the blocks in the tier as they are in memory: before compression, without headers and rounding."""
    encodings: dict[str, int] = {}
    """Number of blocks by their encoding in the tier: `none` (as they are in memory), `zstd`, `fp8`."""
    not_compressed: Annotated[dict[str, int], counter("larder_tier_not_compressed_blocks", "reason")] = {}
    """Blocks that were copied as they are although the tier compresses, by reason: size (the encoded block is not
    smaller), dtype and heads (unknown or unsuitable for fp8), values (not finite)."""
    waiting_bytes: Annotated[int, gauge("larder_tier_waiting_bytes")] = 0
    """Bytes of the blocks that wait to be copied to the tier.

    If the node ends with its memory, they are lost, and so are those of `spilling_bytes`, unless another tier holds
    them."""
    cascaded_blocks: Annotated[int, counter("larder_tier_cascaded_blocks")] = 0
    """Those of the spilled blocks that were copied from another tier, which evicts them soon."""
    draining_blocks: Annotated[int | None, gauge("larder_tier_draining_blocks")] = None
    """Most blocks that no other tier holds yet; only while the tier drains."""
    foreign_objects: Annotated[int, gauge("larder_tier_foreign_objects")] = 0
    """Things in the tier's place that are not blocks, which are skipped.

    As of the last listing, at most 10,000."""
    first_foreign: str = ""
    """Name of the first of them."""

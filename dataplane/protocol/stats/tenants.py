"""What a tenant holds and did."""

from typing import Annotated

import msgspec

from dataplane.protocol.bounded import Identity
from dataplane.protocol.stats.figures import counter, gauge


class TenantStats(msgspec.Struct, omit_defaults=True):
    """State and counters of one tenant. Fields at their default are not sent: a node may report 1,000 tenants."""

    tenant: Identity
    bytes: Annotated[int, gauge("larder_tenant_bytes", "Bytes that the tenant holds.")] = 0
    blocks: int = 0
    limit_bytes: Annotated[int | None, gauge("larder_tenant_limit_bytes", "The tenant's limit.")] = None
    over_limit: bool = False
    managed: bool = False
    """A quota record exists."""
    floor_bytes: Annotated[int, gauge("larder_tenant_floor_bytes", "The tenant's floor.")] = 0
    effective_floor_bytes: Annotated[
        int, gauge("larder_tenant_effective_floor_bytes", "Part of the tenant's floor that the node guarantees.")
    ] = 0
    """Floor in effect: less than `floor_bytes` while the pool cannot hold the sum of all floors."""
    weight: float = 1.0
    pin_budget_bytes: int | None = None
    pinned_bytes: Annotated[
        int, gauge("larder_tenant_pinned_bytes", "Bytes that the tenant's guaranteed pins hold.")
    ] = 0
    lookup_bytes: Annotated[
        int,
        gauge(
            "larder_tenant_lookup_bytes",
            "Bytes of the tenant's blocks that look-ups of LMCache clients hold until their retrieve.",
        ),
    ] = 0
    store_rate_bytes: int | None = None
    on_exceed: str = "evict_self"
    mode: str = "enforce"
    would_refuse_blocks: Annotated[
        int, counter("larder_tenant_would_refuse_blocks", "Blocks that would have been refused in the mode `enforce`.")
    ] = 0
    refused: dict[str, int] = {}
    """Refused blocks by code name."""
    requested_blocks: Annotated[
        int, counter("larder_tenant_requested_blocks", "Blocks that the tenant's engines requested.")
    ] = 0
    hit_blocks: Annotated[
        int, counter("larder_tenant_hit_blocks", "Requested blocks of the tenant that were cached.")
    ] = 0
    stored_blocks: int = 0
    evicted_blocks: int = 0
    refused_blocks: int = 0
    evicted: dict[str, int] = {}
    """Evicted blocks by reason, including invalidated and corrupt ones, which `evicted_blocks` excludes."""
    hit_tokens: int = 0
    """Tokens of the chains that engines acquired, counted once per request: in spaces of rank, stage and group 0."""
    hit_bytes: int = 0
    """Bytes of the chains that engines acquired, in all spaces."""
    missed_tokens: Annotated[
        dict[str, int],
        counter(
            "larder_tenant_missed_tokens",
            "Tokens of the tenant's requests to vLLM and of LMCache's clients that were computed although a cache "
            "could have had them, by why the first of each request was missing.",
            "reason",
        ),
    ] = {}
    tier_hit_tokens: dict[str, int] = {}
    """Part of `hit_tokens` that tiers served, by name: blocks at their first use after a load. Memory served the rest.
    """
    tier_hit_bytes: dict[str, int] = {}
    """Part of `hit_bytes` that tiers served, by name."""

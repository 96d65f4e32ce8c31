"""What a tenant holds and did."""

from typing import Annotated

import msgspec

from dataplane.protocol.bounded import Identity
from dataplane.protocol.stats.figures import counter, gauge


class TenantStats(msgspec.Struct, omit_defaults=True):
    """State and counters of one tenant. Fields at their default are not sent: a node may report 1,000 tenants."""

    tenant: Identity
    bytes: Annotated[int, gauge("larder_tenant_bytes")] = 0
    """Bytes that the tenant holds."""
    blocks: int = 0
    limit_bytes: Annotated[int | None, gauge("larder_tenant_limit_bytes")] = None
    """The tenant's limit."""
    over_limit: bool = False
    managed: bool = False
    """A quota record exists."""
    floor_bytes: Annotated[int, gauge("larder_tenant_floor_bytes")] = 0
    """The tenant's floor."""
    effective_floor_bytes: Annotated[int, gauge("larder_tenant_effective_floor_bytes")] = 0
    """Part of the tenant's floor that the node guarantees.

    Less than `floor_bytes` while the pool cannot hold the sum of all floors."""
    weight: float = 1.0
    pin_budget_bytes: int | None = None
    pinned_bytes: Annotated[int, gauge("larder_tenant_pinned_bytes")] = 0
    """Bytes that the tenant's guaranteed pins hold."""
    lookup_bytes: Annotated[int, gauge("larder_tenant_lookup_bytes")] = 0
    """Bytes of the tenant's blocks that look-ups of LMCache clients hold until their retrieve."""
    store_rate_bytes: int | None = None
    on_exceed: str = "evict_self"
    mode: str = "enforce"
    would_refuse_blocks: Annotated[int, counter("larder_tenant_would_refuse_blocks")] = 0
    """Blocks that would have been refused in the mode `enforce`."""
    refused: dict[str, int] = {}
    """Refused blocks by code name."""
    requested_blocks: Annotated[int, counter("larder_tenant_requested_blocks")] = 0
    """Blocks that the tenant's engines requested."""
    hit_blocks: Annotated[int, counter("larder_tenant_hit_blocks")] = 0
    """Requested blocks of the tenant that were cached."""
    stored_blocks: int = 0
    evicted_blocks: int = 0
    refused_blocks: int = 0
    evicted: dict[str, int] = {}
    """Evicted blocks by reason, including invalidated and corrupt ones, which `evicted_blocks` excludes."""
    hit_tokens: int = 0
    """Tokens of the chains that engines acquired, counted once per request: in spaces of rank, stage and group 0."""
    hit_bytes: int = 0
    """Bytes of the chains that engines acquired, in all spaces."""
    missed_tokens: Annotated[dict[str, int], counter("larder_tenant_missed_tokens", "reason")] = {}
    """Tokens of the tenant's requests to vLLM and of LMCache's clients that were computed although a cache could have
    had them, by why the first of each request was missing."""
    tier_hit_tokens: dict[str, int] = {}
    """Part of `hit_tokens` that tiers served, by name: blocks at their first use after a load. Memory served the rest.
    """
    tier_hit_bytes: dict[str, int] = {}
    """Part of `hit_bytes` that tiers served, by name."""

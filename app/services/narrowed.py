"""What of the whole state is shown to callers who are limited to tenants: their own, and no other's name."""

from collections.abc import Sequence
from typing import Any

import msgspec

from app.ingest.history import Rates
from app.observe.facts import Fact
from app.schemas.nodes import NodeAnswer
from app.schemas.policies import PolicyAnswer
from app.schemas.status import RecordStatus
from app.schemas.tenants import TenantAnswer
from app.schemas.tokenizers import TokenizerAnswer
from app.services.callers import Caller
from dataplane.protocol.events import PoolStats, Totals


def is_shown(fact: Fact, by: Caller) -> bool:
    """Facts that name a tenant of the caller's; all others may name somebody else."""
    if by.salts is None:
        return True
    tenant = fact.fields.get("tenant")
    if tenant is None and fact.name.startswith("quota."):
        tenant = fact.fields.get("name")
    return isinstance(tenant, str) and by.sees_shown(tenant)


def pool_of(tenants: Sequence[TenantAnswer], whole: PoolStats) -> PoolStats:
    """Of a pool of this size, what these tenants have."""
    used = sum(tenant.bytes for tenant in tenants)
    return PoolStats(
        capacity_bytes=whole.capacity_bytes,
        used_bytes=used,
        ready_bytes=used,
        pinned_bytes=sum(tenant.pinned_bytes for tenant in tenants),
        blocks=sum(tenant.blocks for tenant in tenants),
        max_blocks=whole.max_blocks,
    )


def totals_of(tenants: Sequence[TenantAnswer]) -> Totals:
    """What is counted by tenant; the rest is 0."""
    names = ("requested_blocks", "hit_blocks", "stored_blocks", "evicted_blocks", "refused_blocks")
    return Totals(**{name: sum(getattr(tenant, name) for tenant in tenants) for name in names})


def rates_of(totals: Totals) -> Rates:
    """Rates are kept of everybody together alone; the ratio since the start is known of each."""
    ratio = totals.hit_blocks / totals.requested_blocks if totals.requested_blocks else None
    return Rates(None, ratio, 0.0, 0.0, 0.0)


def refused_of(tenants: Sequence[TenantAnswer]) -> dict[str, int]:
    refused: dict[str, int] = {}
    for tenant in tenants:
        for code, count in tenant.refused.items():
            refused[code] = refused.get(code, 0) + count
    return refused


def name_of(node: NodeAnswer) -> NodeAnswer:
    """What a tenant needs to know of a node: that it is there, how it is doing and how large it is. Where it is
    reached, what operators call it and what runs on it is the fleet's; statistics and faults name tenants, and
    generations and digests tell when others changed something."""
    nothing: dict[str, Any] = {
        **dict.fromkeys(("epoch", "release", "engine_socket", "control_url", "events_url"), ""),
        **dict.fromkeys(("public_key", "joined_by"), ""),
        **{name: {} for name in ("labels", "told_labels", "own_labels", "desired", "observed")},
        **{name: [] for name in ("lets_in", "faults")},
    }
    return msgspec.structs.replace(node, pid=0, clock_offset_s=0.0, stats=None, **nothing)


def tokenizer_of(tokenizer: TokenizerAnswer, by: Caller) -> TokenizerAnswer:
    """Limited callers see which models have one: how it reads text, and notes on it, are the fleet's."""
    if by.salts is None:
        return tokenizer
    return msgspec.structs.replace(tokenizer, digest="", chat_template=None, special_tokens=None, note="")


def rules_of(policy: PolicyAnswer | None) -> PolicyAnswer | None:
    """How victims are chosen, without what nodes count of everybody and what operators note."""
    if policy is None:
        return None
    status = RecordStatus(accepted=True, applied=policy.status.applied, nodes={})
    return msgspec.structs.replace(policy, note="", managed_by="", in_force={}, status=status)

"""Redacts the fleet's state for callers who are limited to tenants: they see their own tenants and no other names."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from app.observe.events import LarderEvent
from app.schemas.base.status import RecordStatus
from app.schemas.fleet.nodes import NodeAnswer
from app.schemas.records.policies import PolicyAnswer
from app.schemas.records.tenants import TenantAnswer
from app.schemas.records.tokenizers import TokenizerAnswer
from app.schemas.views.overview import RecentRates
from app.services.base.principals import Principal
from dataplane.protocol.stats.pool import PoolStats, Totals


def visible_events(events: Iterable[LarderEvent], by: Principal) -> list[LarderEvent]:
    """Return the events that the caller may see, without the names of other callers if it is limited to tenants."""
    if by.salts is None:
        return list(events)
    return [_redacted(event, by) for event in events if _is_shown(event, by)]


def _redacted(event: LarderEvent, by: Principal) -> LarderEvent:
    holder = event.fields.get("holder")
    fields = event.fields
    if isinstance(holder, str) and not by.sees_shown(holder):
        fields = {**fields, "holder": "", "holder_bytes": 0}
    actor = event.actor if event.actor == by.actor else ""
    return msgspec.structs.replace(event, actor=actor, fields=fields)


def _is_shown(event: LarderEvent, by: Principal) -> bool:
    """Return whether the event names one of the caller's tenants; other events may name others."""
    tenant = event.fields.get("tenant")
    return isinstance(tenant, str) and by.sees_shown(tenant)


def pool_of(tenants: Sequence[TenantAnswer], pool: PoolStats) -> PoolStats:
    """Return the pool with only the use of these tenants."""
    used = sum(tenant.bytes for tenant in tenants)
    return PoolStats(
        capacity_bytes=pool.capacity_bytes,
        used_bytes=used,
        ready_bytes=used,
        pinned_bytes=sum(tenant.pinned_bytes for tenant in tenants),
        blocks=sum(tenant.blocks for tenant in tenants),
        max_blocks=pool.max_blocks,
    )


def totals_of(tenants: Sequence[TenantAnswer]) -> Totals:
    """Return the totals that are counted by tenant; the others are 0."""
    counters = ("requested_blocks", "hit_blocks", "stored_blocks", "evicted_blocks", "refused_blocks")
    return Totals(**{name: sum(getattr(tenant, name) for tenant in tenants) for name in counters})


def rates_of(totals: Totals) -> RecentRates:
    """Return only the hit ratio since the start: the recent rates are not kept by tenant."""
    ratio = totals.hit_blocks / totals.requested_blocks if totals.requested_blocks else None
    return RecentRates(None, ratio, 0.0, 0.0, 0.0)


def refused_of(tenants: Sequence[TenantAnswer]) -> dict[str, int]:
    refused: Counter[str] = Counter()
    for tenant in tenants:
        refused.update(tenant.refused)
    return refused


def name_of(node: NodeAnswer) -> NodeAnswer:
    """Return the node with its name, state and size only. Addresses, labels and engines are known to the operators of
    the fleet alone; statistics and faults name tenants; generations and digests reveal when other tenants changed a
    record."""
    empty_fields: dict[str, Any] = {
        **dict.fromkeys(("epoch", "release", "engine_socket", "control_url", "events_url"), ""),
        **dict.fromkeys(("public_key", "joined_by"), ""),
        **{name: {} for name in ("labels", "reported_labels", "own_labels", "desired", "observed")},
        **{name: [] for name in ("admitted_managers", "faults", "conditions")},
    }
    return msgspec.structs.replace(node, pid=0, clock_offset_s=0.0, stats=None, **empty_fields)


def tokenizer_of(tokenizer: TokenizerAnswer, by: Principal) -> TokenizerAnswer:
    """Return the tokenizer; for limited callers without its digest, template, special tokens and notes, which belong to
    the fleet."""
    if by.salts is None:
        return tokenizer
    return msgspec.structs.replace(tokenizer, digest="", chat_template=None, special_tokens=None, note="")


def rules_of(policy: PolicyAnswer | None) -> PolicyAnswer | None:
    """Return the rules of a policy without statistics of all tenants and notes of operators."""
    if policy is None:
        return None
    status = RecordStatus(accepted=True, applied=policy.status.applied, nodes={})
    return msgspec.structs.replace(policy, note="", managed_by="", in_force={}, status=status)

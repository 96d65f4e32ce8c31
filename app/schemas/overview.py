"""The dashboard's whole state."""

import msgspec

from app.ingest.history import Rates, Series
from app.observe.facts import Fact
from app.schemas.nodes import NodeAnswer
from app.schemas.pins import PinAnswer
from app.schemas.policies import PolicyAnswer
from dataplane.protocol.events import PoolStats, Totals

__all__ = ["Fact", "Overview", "Rates", "Series", "TenantAnswer"]


class TenantAnswer(msgspec.Struct, frozen=True):
    """A tenant over all nodes: its numbers, and its quota when it has one."""

    tenant: str
    bytes: int
    blocks: int
    limit_bytes: int | None
    floor_bytes: int
    effective_floor_bytes: int | None
    """What is really guaranteed on every node; null when no node has told."""
    weight: float
    pin_budget_bytes: int | None
    pinned_bytes: int
    store_rate_bytes: int | None
    on_exceed: str
    mode: str
    would_refuse_blocks: int
    over_limit: bool
    managed: bool
    """A quota record exists."""
    requested_blocks: int
    hit_blocks: int
    stored_blocks: int
    evicted_blocks: int
    refused_blocks: int
    refused: dict[str, int]
    """Refused blocks by code name."""
    note: str


class Overview(msgspec.Struct, frozen=True):
    """Sums are over nodes that are not lost."""

    at: float
    armed: bool
    """Every living node enforces quotas, and there is one."""
    ready: bool
    """What `/readyz` says."""
    pool: PoolStats
    totals: Totals
    rates: Rates
    tenants: list[TenantAnswer]
    """Largest first, at most 500."""
    tenants_total: int
    pins: list[PinAnswer]
    """By name, at most 500."""
    pins_total: int
    policy: PolicyAnswer | None
    """The record, if there is one; what each node has in force is in its `stats.policy`."""
    nodes: list[NodeAnswer]
    refused: dict[str, int]
    """Refused blocks by code name."""
    recent: list[Fact]
    """The last 20, oldest first."""

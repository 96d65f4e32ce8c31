"""The complete state that the dashboard shows."""

import msgspec

from app.observe.events import LarderEvent
from app.schemas.fleet.nodes import NodeAnswer
from app.schemas.records.pins import PinAnswer
from app.schemas.records.policies import PolicyAnswer
from app.schemas.records.tenants import TenantAnswer
from app.schemas.views.findings import Finding
from dataplane.protocol.stats.pool import PoolStats, Totals

__all__ = ["LarderEvent", "Overview", "RecentRates"]


class RecentRates(msgspec.Struct, frozen=True):
    """Recent activity. A ratio is null if nothing was requested."""

    hit_ratio: float | None
    """Hit ratio of the last 60 s."""
    hit_ratio_total: float | None
    """Hit ratio since the nodes started."""
    stored_bytes_per_s: float
    read_bytes_per_s: float
    evicted_blocks_per_s: float


class Overview(msgspec.Struct, frozen=True):
    """State of the system. Sums are over nodes that are not lost."""

    at: float
    armed: bool
    """Whether every living node enforces quotas; false if there is no living node."""
    ready: bool
    """Result of `/healthz/fleet`: no node is lost, and every node has applied the current records."""
    pool: PoolStats
    totals: Totals
    rates: RecentRates
    tenants: list[TenantAnswer]
    """Largest first, at most 500."""
    tenants_total: int
    pins: list[PinAnswer]
    """By name, at most 500."""
    pins_total: int
    policy: PolicyAnswer | None
    """The policy record, if there is one; the policy in force on each node is in its `stats.policy`. Callers that are
    limited to tenants see only the rules of the policy."""
    nodes: list[NodeAnswer]
    refused: dict[str, int]
    """Refused blocks by code name."""
    findings: list[Finding]
    """What is wrong, or was in the last ten minutes, the worst first; see `/api/v1/findings`."""
    recent: list[LarderEvent]
    """The last 20 events, oldest first."""

"""The dashboard's whole state."""

import msgspec

from app.ingest.history import Rates, Series
from app.observe.facts import Fact
from app.schemas.nodes import NodeAnswer
from app.schemas.pins import PinAnswer
from app.schemas.policies import PolicyAnswer
from app.schemas.tenants import TenantAnswer
from dataplane.protocol.events import PoolStats, Totals

__all__ = ["Fact", "Overview", "Rates", "Series"]


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
    """The record, if there is one; what each node has in force is in its `stats.policy`. Callers who are limited to
    tenants see its rules alone."""
    nodes: list[NodeAnswer]
    refused: dict[str, int]
    """Refused blocks by code name."""
    recent: list[Fact]
    """The last 20, oldest first."""

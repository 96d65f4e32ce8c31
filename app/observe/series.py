"""Series that the management plane keeps: what is sampled from the reports of nodes, and what charts show of it.

A `SeriesColumn` is what is stored: an integer for each point, a gauge (state at the point) or a counter (increase since
the point before). A `SeriesDeclaration` is what is served: a gauge, the rate of a counter, or the ratio of two
counters, so that ratios and rates stay exact when points are merged.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from dataplane.protocol.stats.histogram import Histogram
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.tenants import TenantStats

FLEET = ""
"""Scope of the fleet's totals. The scope of a node is `n` with its name, that of a tenant `t` with its shown name."""
OTHER_TENANTS = "/other"
"""Shown for the tenants that have no series of their own. No tenant has this name."""
ScopeKind = Literal["fleet", "node", "tenant"]
Form = Literal["gauge", "rate", "ratio"]


def node_scope(node: str) -> str:
    return f"n{node}"


def tenant_scope(tenant: str) -> str:
    return f"t{tenant}"


def is_tenant(scope: str) -> bool:
    return scope.startswith("t")


@dataclass(frozen=True)
class SeriesColumn:
    """A stored column."""

    name: str
    is_counter: bool
    of_node: Callable[[NodeStats], int] | None = None
    """Return the value of a node; None: kept for tenants only."""
    of_tenant: Callable[[TenantStats], int | None] | None = None
    """Return the value of a tenant on one node; None: not kept for tenants."""
    adds: bool = True
    """Whether the values of several nodes add up; otherwise the largest counts."""


@dataclass(frozen=True)
class SeriesDeclaration:
    """A series, as it is served."""

    name: str
    unit: str
    meaning: str
    form: Form
    columns: tuple[str, ...]
    """The column, or the two columns of a ratio."""
    factor: float = 1.0
    """The values of the columns are multiplied by it."""

    @property
    def scopes(self) -> list[ScopeKind]:
        """What the series is kept for."""
        scopes: list[ScopeKind] = []
        if all(name in NODE_COLUMNS for name in self.columns):
            scopes += ["fleet", "node"]
        if all(name in TENANT_COLUMNS for name in self.columns):
            scopes.append("tenant")
        return scopes


def _pool(name: str) -> SeriesColumn:
    return SeriesColumn(name, is_counter=False, of_node=lambda stats: getattr(stats.pool, name))


def _total(name: str) -> SeriesColumn:
    return SeriesColumn(name, is_counter=True, of_node=lambda stats: getattr(stats.totals, name))


def _of_nodes_and_tenants(name: str) -> SeriesColumn:
    """Counter of nodes and of tenants."""
    return SeriesColumn(
        name,
        is_counter=True,
        of_node=lambda stats: getattr(stats.totals, name),
        of_tenant=lambda tenant: getattr(tenant, name),
    )


def _of_tenants(name: str, of_tenant: Callable[[TenantStats], int]) -> SeriesColumn:
    """Counter of tenants, whose sum is the node's."""

    def of_node(stats: NodeStats) -> int:
        unlisted = 0 if stats.other_tenants is None else of_tenant(stats.other_tenants)
        return sum(map(of_tenant, stats.tenants)) + unlisted

    return SeriesColumn(name, is_counter=True, of_node=of_node, of_tenant=of_tenant)


def _tiers(name: str, field: str, *, is_counter: bool = False) -> SeriesColumn:
    return SeriesColumn(name, is_counter, lambda stats: sum(getattr(tier, field) for tier in stats.tiers))


_COLUMNS = (
    _pool("capacity_bytes"),
    SeriesColumn("used_bytes", False, lambda stats: stats.pool.used_bytes, lambda tenant: tenant.bytes),
    _pool("ready_bytes"),
    _pool("reserved_bytes"),
    _pool("quarantined_bytes"),
    SeriesColumn("pinned_bytes", False, lambda stats: stats.pool.pinned_bytes, lambda tenant: tenant.pinned_bytes),
    _pool("pin_budget_bytes"),
    _pool("committed_bytes"),
    _pool("padding_bytes"),
    _pool("free_slot_bytes"),
    SeriesColumn("blocks", False, lambda stats: stats.pool.blocks, lambda tenant: tenant.blocks),
    SeriesColumn("limit_bytes", False, None, lambda tenant: tenant.limit_bytes, adds=False),
    SeriesColumn("nodes", False, lambda stats: 1),
    SeriesColumn("engines", False, lambda stats: sum(e.connected and e.is_engine for e in stats.engines)),
    SeriesColumn("leased_blocks", False, lambda stats: sum(engine.leased_blocks for engine in stats.engines)),
    SeriesColumn("gpu_copy_bytes", False, lambda stats: sum(pin.gpu_copy_bytes for pin in stats.pins)),
    _tiers("tier_budget_bytes", "budget_bytes"),
    _tiers("tier_used_bytes", "stored_bytes"),
    _tiers("tier_waiting_bytes", "waiting_bytes"),
    SeriesColumn("resident_bytes", False, lambda stats: stats.process.resident_bytes if stats.process else 0),
    _of_nodes_and_tenants("requested_blocks"),
    _of_nodes_and_tenants("hit_blocks"),
    _of_nodes_and_tenants("stored_blocks"),
    _of_nodes_and_tenants("evicted_blocks"),
    _of_nodes_and_tenants("refused_blocks"),
    _total("stored_bytes"),
    SeriesColumn("read_bytes", True, lambda stats: stats.totals.read_bytes, lambda tenant: tenant.hit_bytes),
    _total("evicted_bytes"),
    _total("evictions_cancelled"),
    _total("aborted_blocks"),
    _total("invalidated_blocks"),
    _total("corrupt_blocks"),
    _of_tenants("would_refuse_blocks", lambda tenant: tenant.would_refuse_blocks),
    _of_tenants("hit_tokens", lambda tenant: tenant.hit_tokens),
    _of_tenants("tier_hit_tokens", lambda tenant: sum(tenant.tier_hit_tokens.values())),
    _of_tenants("tier_hit_bytes", lambda tenant: sum(tenant.tier_hit_bytes.values())),
    _tiers("tier_spilled_bytes", "spilled_bytes", is_counter=True),
    _tiers("tier_loaded_bytes", "loaded_bytes", is_counter=True),
    _tiers("tier_evicted_blocks", "evicted_blocks", is_counter=True),
    SeriesColumn("acquires", True, lambda stats: _count(stats.operations.get("acquire"))),
    SeriesColumn("acquire_us", True, lambda stats: _micros(stats.operations.get("acquire"))),
    SeriesColumn("cpu_ms", True, lambda stats: int(stats.process.cpu_s * 1000) if stats.process else 0),
)


def _count(histogram: Histogram | None) -> int:
    return sum(histogram.counts) if histogram else 0


def _micros(histogram: Histogram | None) -> int:
    return int(histogram.total * 1e6) if histogram else 0


NODE_COLUMNS: Mapping[str, SeriesColumn] = {column.name: column for column in _COLUMNS if column.of_node}
TENANT_COLUMNS: Mapping[str, SeriesColumn] = {column.name: column for column in _COLUMNS if column.of_tenant}
COLUMNS: Mapping[str, SeriesColumn] = {column.name: column for column in _COLUMNS}
COUNTERS = frozenset(column.name for column in _COLUMNS if column.is_counter)


def _gauge(name: str, unit: str, meaning: str) -> SeriesDeclaration:
    return SeriesDeclaration(name, unit, meaning, "gauge", (name,))


def _rate(column: str, unit: str, meaning: str) -> SeriesDeclaration:
    return SeriesDeclaration(f"{column}_per_s", f"{unit}/s", meaning, "rate", (column,))


_ALL = (
    SeriesDeclaration(
        "hit_ratio", "ratio", "Requested blocks that were cached.", "ratio", ("hit_blocks", "requested_blocks")
    ),
    SeriesDeclaration(
        "tier_hit_ratio",
        "ratio",
        "Tokens that tiers served, as a part of those served from the cache.",
        "ratio",
        ("tier_hit_tokens", "hit_tokens"),
    ),
    _gauge("used_bytes", "bytes", "Bytes that are ready, reserved or quarantined."),
    _gauge("capacity_bytes", "bytes", "Size of the pool."),
    _gauge("ready_bytes", "bytes", "Bytes of blocks that can be read."),
    _gauge("reserved_bytes", "bytes", "Bytes being written."),
    _gauge("quarantined_bytes", "bytes", "Bytes that a process could still write."),
    _gauge("pinned_bytes", "bytes", "Bytes that guaranteed pins hold."),
    _gauge("pin_budget_bytes", "bytes", "Bytes that guaranteed pins may hold."),
    _gauge("committed_bytes", "bytes", "Memory of segments."),
    _gauge("padding_bytes", "bytes", "Internal fragmentation: bytes of slots beyond their blocks."),
    _gauge("free_slot_bytes", "bytes", "External fragmentation: free slots in committed segments."),
    _gauge("limit_bytes", "bytes", "Limit of the tenant's quota on one node."),
    _gauge("blocks", "blocks", "Blocks in the pool."),
    _gauge("leased_blocks", "blocks", "Blocks that engines lease."),
    _gauge("nodes", "nodes", "Nodes that report."),
    _gauge("engines", "engines", "Attached engines."),
    _gauge("gpu_copy_bytes", "bytes", "GPU memory of copies of pinned blocks."),
    _gauge("tier_budget_bytes", "bytes", "Budgets of tiers."),
    _gauge("tier_used_bytes", "bytes", "Bytes of the tiers' budgets in use."),
    _gauge("tier_waiting_bytes", "bytes", "Bytes of blocks that wait to be copied to a tier."),
    _gauge("resident_bytes", "bytes", "Resident memory of data planes."),
    _rate("requested_blocks", "blocks", "Blocks that engines requested."),
    _rate("hit_blocks", "blocks", "Requested blocks that were cached."),
    _rate("stored_blocks", "blocks", "Blocks committed."),
    _rate("evicted_blocks", "blocks", "Blocks evicted."),
    _rate("refused_blocks", "blocks", "Blocks refused."),
    _rate("would_refuse_blocks", "blocks", "Blocks that limits in mode `observe` would have refused."),
    _rate("aborted_blocks", "blocks", "Reserved blocks that engines gave up."),
    _rate("invalidated_blocks", "blocks", "Blocks invalidated."),
    _rate("corrupt_blocks", "blocks", "Blocks dropped because their bytes did not match their checksum."),
    _rate("evictions_cancelled", "blocks", "Evictions cancelled because of a lease."),
    _rate("hit_tokens", "tokens", "Tokens served from the cache."),
    _rate("tier_hit_tokens", "tokens", "Tokens served from the cache that tiers had loaded."),
    _rate("stored_bytes", "bytes", "Bytes of committed blocks."),
    _rate("read_bytes", "bytes", "Bytes of blocks that engines acquired."),
    _rate("tier_hit_bytes", "bytes", "Bytes of acquired blocks that tiers had loaded."),
    _rate("evicted_bytes", "bytes", "Bytes of evicted blocks."),
    _rate("tier_spilled_bytes", "bytes", "Bytes copied to tiers."),
    _rate("tier_loaded_bytes", "bytes", "Bytes loaded from tiers."),
    _rate("tier_evicted_blocks", "blocks", "Blocks that tiers evicted."),
    _rate("acquires", "acquires", "Acquired prefixes."),
    SeriesDeclaration(
        "acquire_seconds", "seconds", "Mean time to acquire a prefix.", "ratio", ("acquire_us", "acquires"), 1e-6
    ),
    SeriesDeclaration("cpu_cores", "cores", "CPU cores that data planes use.", "rate", ("cpu_ms",), 1e-3),
)
SERIES: Mapping[str, SeriesDeclaration] = {series.name: series for series in _ALL}
"""All series by name."""

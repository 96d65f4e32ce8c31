"""Metrics of a node: its pool, its engines and spaces, its eviction policy, its start, and what it has applied."""

from app.observe import process_metrics
from app.observe.page import NODE, MetricsPage, gauge, metrics_of
from dataplane.protocol.stats.engines import EngineStats
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pool import PolicyStats, PoolStats, SpaceStats, Totals
from dataplane.protocol.stats.processes import CacheStart

SPACE_LABELS = 50
ENGINE_LABELS = 100
UNNAMED = "unnamed"
"""Label of engines that gave no name."""
POOL = metrics_of(PoolStats, NODE)
TOTALS = metrics_of(Totals, NODE)
ENGINES = gauge("larder_engines", "Attached engines.", NODE)
_ENGINE = ("node", "engine")
ENGINE_BYTES = metrics_of(EngineStats, _ENGINE)
WAITS_FOR = gauge(
    "larder_engine_waits_for_processes",
    "Processes that must be gone before the bytes of detached engines of this name are freed.",
    _ENGINE,
)
POLICY = gauge("larder_policy_in_force", "1 for the eviction policy in force.", ("node", "algorithm"))
GATE = gauge(
    "larder_admission_gate_closed", "1 while a block is admitted only if its key was seen before, else 0.", NODE
)
POLICIES = metrics_of(PolicyStats, NODE)
_SPACE = ("node", "space", "model", "dtype", "rank")
SPACES = metrics_of(SpaceStats, _SPACE)
SWEEPS = gauge("larder_sweeps", "Invalidations and demotions in progress.", ("node", "kind"))
SWEEP_LEASED = gauge("larder_sweep_leased_blocks", "Invalidated blocks that are still leased.", NODE)
START_KINDS = ("unknown", "first", "warm", "cold", "released")
START = gauge(
    "larder_cache_start",
    "1 for how the cache started: first, warm, cold, released (on purpose) or unknown; 0 for the others.",
    ("node", "kind"),
)
STARTS = metrics_of(CacheStart, NODE)
ARMED = gauge("larder_node_armed", "1 when the node enforces quotas, else 0.", NODE)
DRAINING = gauge("larder_node_draining", "1 while the node accepts no new engines and no stores, else 0.", NODE)
NODES = metrics_of(NodeStats, NODE)
OBSERVED = gauge("larder_observed_generation", "Newest generation that the node has applied.", ("node", "type"))


def add(page: MetricsPage, stats: NodeStats) -> None:
    """Add the samples of one node."""
    page.add_fields(POOL, stats.pool, stats.node)
    page.add_fields(TOTALS, stats.totals, stats.node)
    page.add(ENGINES, sum(engine.connected for engine in stats.engines if engine.is_engine), stats.node)
    page.add(ARMED, stats.armed, stats.node)
    page.add(DRAINING, stats.draining, stats.node)
    page.add_fields(NODES, stats, stats.node)
    page.add(process_metrics.SPANS_DROPPED, stats.otel_spans_dropped, "data", stats.node)
    _start(page, stats)
    _engines(page, stats)
    for space in stats.spaces[:SPACE_LABELS]:
        page.add_fields(SPACES, space, stats.node, space.space, space.model, space.dtype, str(space.rank))
    _policy(page, stats)
    page.add_by(OBSERVED, ((kind, observed.generation) for kind, observed in stats.observed.items()), stats.node)


def _engines(page: MetricsPage, stats: NodeStats) -> None:
    """Add sums over the engines of each name: labels with client numbers or process ids would create new series at each
    start."""
    engines = [(engine.engine or UNNAMED, engine) for engine in stats.engines]
    named = frozenset(sorted({name for name, _ in engines})[:ENGINE_LABELS])
    for field, declared in ENGINE_BYTES.items():
        page.add_by(declared, ((name, getattr(engine, field)) for name, engine in engines), stats.node, named=named)
    waits = ((name, 0 if engine.connected else len(engine.waits_for_pids)) for name, engine in engines)
    page.add_by(WAITS_FOR, waits, stats.node, named=named)


def _start(page: MetricsPage, stats: NodeStats) -> None:
    began = "released" if stats.start.kind == "cold" and stats.start.released else stats.start.kind
    for kind in START_KINDS:
        page.add(START, kind == began, stats.node, kind)
    page.add_fields(STARTS, stats.start, stats.node)


def _policy(page: MetricsPage, stats: NodeStats) -> None:
    page.add(POLICY, 1, stats.node, stats.policy.algorithm)
    page.add(GATE, stats.policy.gate_closed, stats.node)
    page.add_fields(POLICIES, stats.policy, stats.node)
    for kind in ("invalidate", "demote"):
        page.add(SWEEPS, sum(sweep.kind == kind for sweep in stats.sweeps), stats.node, kind)
    page.add(SWEEP_LEASED, sum(sweep.leased for sweep in stats.sweeps), stats.node)

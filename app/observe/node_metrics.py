"""Metrics of a node: its pool, its engines and spaces, its eviction policy, its start, and what it has applied."""

from app.observe import process_metrics
from app.observe.bounded import OTHER
from app.observe.page import C, G, MetricDeclaration, MetricsPage
from dataplane.protocol.stats.engines import EngineStats
from dataplane.protocol.stats.node import NodeStats

SPACE_LABELS = 50
ENGINE_LABELS = 100
UNNAMED = "unnamed"
"""Label of engines that gave no name."""
POOL = {
    "capacity_bytes": MetricDeclaration("larder_pool_capacity_bytes", G, "Size of the pool.", ("node",)),
    "used_bytes": MetricDeclaration(
        "larder_pool_used_bytes", G, "Bytes that are ready, reserved or quarantined.", ("node",)
    ),
    "ready_bytes": MetricDeclaration("larder_pool_ready_bytes", G, "Bytes of blocks that can be read.", ("node",)),
    "reserved_bytes": MetricDeclaration("larder_pool_reserved_bytes", G, "Bytes being written.", ("node",)),
    "quarantined_bytes": MetricDeclaration(
        "larder_pool_quarantined_bytes",
        G,
        "Bytes that are not reused because a process could still write them.",
        ("node",),
    ),
    "pinned_bytes": MetricDeclaration("larder_pool_pinned_bytes", G, "Bytes that guaranteed pins hold.", ("node",)),
    "committed_bytes": MetricDeclaration("larder_pool_committed_bytes", G, "Memory of segments.", ("node",)),
    "blocks": MetricDeclaration("larder_pool_blocks", G, "Blocks in the pool.", ("node",)),
    "pin_budget_bytes": MetricDeclaration(
        "larder_pool_pin_budget_bytes", G, "Bytes that guaranteed pins may hold.", ("node",)
    ),
    "padding_bytes": MetricDeclaration(
        "larder_pool_padding_bytes", G, "Internal fragmentation: bytes of slots beyond their blocks.", ("node",)
    ),
    "free_slot_bytes": MetricDeclaration(
        "larder_pool_free_slot_bytes", G, "External fragmentation: free slots in committed segments.", ("node",)
    ),
    "prefaulted_bytes": MetricDeclaration(
        "larder_pool_prefaulted_bytes", G, "Committed memory that was allocated ahead of use.", ("node",)
    ),
    "hinted_bytes": MetricDeclaration(
        "larder_pool_hinted_bytes", G, "Bytes of blocks that requests asked to keep (`larder.pin`).", ("node",)
    ),
    "huge_pages": MetricDeclaration("larder_pool_huge_pages", G, "1 when memory is in huge pages, else 0.", ("node",)),
    "locked": MetricDeclaration("larder_pool_locked", G, "1 when memory is locked into RAM, else 0.", ("node",)),
}
TOTALS = {
    "requested_blocks": MetricDeclaration("larder_requested_blocks", C, "Blocks that engines requested.", ("node",)),
    "hit_blocks": MetricDeclaration("larder_hit_blocks", C, "Requested blocks that were cached.", ("node",)),
    "stored_bytes": MetricDeclaration("larder_stored_bytes", C, "Bytes of committed blocks.", ("node",)),
    "read_bytes": MetricDeclaration("larder_read_bytes", C, "Bytes of blocks that engines acquired.", ("node",)),
    "stored_blocks": MetricDeclaration("larder_stored_blocks", C, "Blocks committed.", ("node",)),
    "evictions_cancelled": MetricDeclaration(
        "larder_evictions_cancelled", C, "Evictions cancelled because of a lease.", ("node",)
    ),
    "aborted_blocks": MetricDeclaration("larder_aborted_blocks", C, "Reserved blocks that engines gave up.", ("node",)),
    "quarantined_blocks": MetricDeclaration(
        "larder_quarantined_blocks", C, "Blocks that were quarantined until a process ended.", ("node",)
    ),
    "invalidated_blocks": MetricDeclaration("larder_invalidated_blocks", C, "Blocks invalidated.", ("node",)),
    "corrupt_blocks": MetricDeclaration(
        "larder_corrupt_blocks", C, "Blocks dropped because their bytes do not match their checksum.", ("node",)
    ),
    "false_reports": MetricDeclaration(
        "larder_false_corruption_reports", C, "Corruption reports about intact blocks.", ("node",)
    ),
    "ring_dropped": MetricDeclaration(
        "larder_ring_dropped", C, "Accesses that engines could not record because their ring was full.", ("node",)
    ),
    "ring_entries_rejected": MetricDeclaration(
        "larder_ring_entries_rejected", C, "Ring entries that reference no live block.", ("node",)
    ),
    "hinted_ttl_blocks": MetricDeclaration(
        "larder_hinted_ttl_blocks", C, "Blocks stored with a hint `larder.ttl` of a request.", ("node",)
    ),
    "hinted_pin_blocks": MetricDeclaration(
        "larder_hinted_pin_blocks", C, "Blocks to which a hint `larder.pin` of a request applied.", ("node",)
    ),
    "refused_hinted_pin_blocks": MetricDeclaration(
        "larder_refused_hinted_pin_blocks",
        C,
        "Blocks to which a hint `larder.pin` did not apply, because such blocks held their share already.",
        ("node",),
    ),
    "malformed_messages": MetricDeclaration(
        "larder_node_malformed_messages", C, "Malformed messages that the node received.", ("node",)
    ),
}
ENGINES = MetricDeclaration("larder_engines", G, "Attached engines.", ("node",))
_ENGINE = ("node", "engine")
ENGINE_BYTES = {
    "reserved_bytes": MetricDeclaration(
        "larder_engine_reserved_bytes", G, "Bytes that engines of this name are writing.", _ENGINE
    ),
    "quarantined_bytes": MetricDeclaration(
        "larder_engine_quarantined_bytes",
        G,
        "Bytes that are not reused until the processes of engines of this name are gone.",
        _ENGINE,
    ),
    "leased_blocks": MetricDeclaration(
        "larder_engine_leased_blocks", G, "Blocks that engines of this name lease.", _ENGINE
    ),
}
WAITS_FOR = MetricDeclaration(
    "larder_engine_waits_for_processes",
    G,
    "Processes that must be gone before the bytes of detached engines of this name are freed.",
    _ENGINE,
)
POLICY = MetricDeclaration("larder_policy_in_force", G, "1 for the eviction policy in force.", ("node", "algorithm"))
GATE = MetricDeclaration(
    "larder_admission_gate_closed", G, "1 while a block is admitted only if its key was seen before, else 0.", ("node",)
)
VICTIM_IDLE = MetricDeclaration("larder_victim_idle_seconds", G, "Average time that victims had been idle.", ("node",))
ADMITTED = MetricDeclaration(
    "larder_admission_admitted_blocks",
    C,
    "Blocks admitted while admission was restricted to keys seen before.",
    ("node",),
)
DECLINED = MetricDeclaration(
    "larder_admission_declined_blocks",
    C,
    "Blocks refused while admission was restricted to keys seen before.",
    ("node",),
)
_SPACE = ("node", "space", "model", "dtype", "rank")
SPACES = {
    "bytes": MetricDeclaration("larder_space_bytes", G, "Bytes of the space's blocks.", _SPACE),
    "blocks": MetricDeclaration("larder_space_blocks", G, "Blocks of the space.", _SPACE),
    "padding_bytes": MetricDeclaration(
        "larder_space_padding_bytes", G, "Bytes of the space's slots beyond its blocks.", _SPACE
    ),
}
SWEEPS = MetricDeclaration("larder_sweeps", G, "Invalidations and demotions in progress.", ("node", "kind"))
SWEEP_LEASED = MetricDeclaration(
    "larder_sweep_leased_blocks", G, "Invalidated blocks that are still leased.", ("node",)
)
ADOPTED = MetricDeclaration("larder_adopted_blocks", G, "Blocks taken over from the previous process.", ("node",))
START_KINDS = ("unknown", "first", "warm", "cold", "released")
START = MetricDeclaration(
    "larder_cache_start",
    G,
    "1 for how the cache started: first, warm, cold, released (on purpose) or unknown; 0 for the others.",
    ("node", "kind"),
)
STARTS = {
    "blocks": MetricDeclaration(
        "larder_cache_start_kept_blocks", G, "Blocks that the data plane took over at its start.", ("node",)
    ),
    "bytes": MetricDeclaration(
        "larder_cache_start_kept_bytes", G, "Bytes that the data plane took over at its start.", ("node",)
    ),
    "lost_blocks": MetricDeclaration(
        "larder_cache_start_lost_blocks",
        G,
        "Blocks of the previous data plane that were lost when this one started.",
        ("node",),
    ),
    "lost_bytes": MetricDeclaration(
        "larder_cache_start_lost_bytes",
        G,
        "Bytes of the previous data plane that were lost when this one started.",
        ("node",),
    ),
}
ARMED = MetricDeclaration("larder_node_armed", G, "1 when the node enforces quotas, else 0.", ("node",))
DRAINING = MetricDeclaration(
    "larder_node_draining", G, "1 while the node accepts no new engines and no stores, else 0.", ("node",)
)
ID_JOURNAL = {
    "id_journal_bytes": MetricDeclaration(
        "larder_id_journal_bytes",
        G,
        "Size of the records of segments, and of tenants with blocks, in the id journal.",
        ("node",),
    ),
    "id_journal_capacity_bytes": MetricDeclaration(
        "larder_id_journal_capacity_bytes",
        G,
        "Maximum size of these records; stores of a tenant that does not fit are refused.",
        ("node",),
    ),
}
OBSERVED = MetricDeclaration(
    "larder_observed_generation", G, "Newest generation that the node has applied.", ("node", "type")
)


def add(page: MetricsPage, stats: NodeStats) -> None:
    """Add the samples of one node."""
    for name, declared in POOL.items():
        page.add(declared, getattr(stats.pool, name), stats.node)
    for name, declared in TOTALS.items():
        page.add(declared, getattr(stats.totals, name), stats.node)
    page.add(ENGINES, sum(engine.connected for engine in stats.engines if engine.is_engine), stats.node)
    page.add(ARMED, stats.armed, stats.node)
    page.add(DRAINING, stats.draining, stats.node)
    page.add(ADOPTED, stats.adopted_blocks, stats.node)
    page.add(process_metrics.SPANS_DROPPED, stats.otel_spans_dropped, "data", stats.node)
    _start(page, stats)
    for name, declared in ID_JOURNAL.items():
        page.add(declared, getattr(stats, name), stats.node)
    _engines(page, stats)
    for space in stats.spaces[:SPACE_LABELS]:
        for name, declared in SPACES.items():
            value = getattr(space, name)
            page.add(declared, value, stats.node, space.space, space.model, space.dtype, str(space.rank))
    _policy(page, stats)
    for kind, observed in stats.observed.items():
        page.add(OBSERVED, observed.generation, stats.node, kind)


def _engines(page: MetricsPage, stats: NodeStats) -> None:
    """Add sums over the engines of each name: labels with client numbers or process ids would create new series at each
    start."""
    by_name: dict[str, list[EngineStats]] = {}
    for engine in stats.engines:
        by_name.setdefault(engine.engine or UNNAMED, []).append(engine)
    for name in sorted(by_name)[ENGINE_LABELS:]:
        by_name.setdefault(OTHER, []).extend(by_name.pop(name) if name != OTHER else [])
    for name, engines in by_name.items():
        for attribute, declared in ENGINE_BYTES.items():
            page.add(declared, sum(getattr(engine, attribute) for engine in engines), stats.node, name)
        waits = sum(len(engine.waits_for_pids) for engine in engines if not engine.connected)
        page.add(WAITS_FOR, waits, stats.node, name)


def _start(page: MetricsPage, stats: NodeStats) -> None:
    began = "released" if stats.start.kind == "cold" and stats.start.released else stats.start.kind
    for kind in START_KINDS:
        page.add(START, kind == began, stats.node, kind)
    for name, declared in STARTS.items():
        page.add(declared, getattr(stats.start, name), stats.node)


def _policy(page: MetricsPage, stats: NodeStats) -> None:
    policy = stats.policy
    page.add(POLICY, 1, stats.node, policy.algorithm)
    page.add(GATE, policy.gate_closed, stats.node)
    page.add(ADMITTED, policy.admitted_blocks, stats.node)
    page.add(DECLINED, policy.declined_blocks, stats.node)
    if policy.victim_idle_s is not None:
        page.add(VICTIM_IDLE, policy.victim_idle_s, stats.node)
    for kind in ("invalidate", "demote"):
        page.add(SWEEPS, sum(sweep.kind == kind for sweep in stats.sweeps), stats.node, kind)
    page.add(SWEEP_LEASED, sum(sweep.leased for sweep in stats.sweeps), stats.node)

"""All metrics of this process, declared once. A scrape reads the current numbers from their owners; this module keeps
no counters.

Metrics of a node carry its name. The number of label values is bounded: the 50 largest tenants by bytes, and `other`
for the rest; the 50 largest spaces, 100 engines, 50 pins with GPU copies and 50 pins that hold nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.observe import gateway_metrics, gpu_copy_metrics, lmcache_metrics
from app.observe.page import C, G, MetricDeclaration, MetricsPage
from dataplane.protocol.events import NodeStats, TenantStats

TENANT_LABELS = 50
SPACE_LABELS = 50
ENGINE_LABELS = 100
PIN_LABELS = 50
OTHER = "other"


POOL = {
    "capacity_bytes": MetricDeclaration("larder_pool_capacity_bytes", G, "Size of the pool.", ("node",)),
    "used_bytes": MetricDeclaration(
        "larder_pool_used_bytes", G, "Bytes that are ready, reserved or quarantined.", ("node",)
    ),
    "ready_bytes": MetricDeclaration(
        "larder_pool_ready_bytes", G, "Bytes of blocks that can be read.", ("node",)
    ),
    "reserved_bytes": MetricDeclaration("larder_pool_reserved_bytes", G, "Bytes being written.", ("node",)),
    "quarantined_bytes": MetricDeclaration(
        "larder_pool_quarantined_bytes",
        G,
        "Bytes held back because a process could still touch them.",
        ("node",),
    ),
    "pinned_bytes": MetricDeclaration(
        "larder_pool_pinned_bytes", G, "Bytes that guaranteed pins keep.", ("node",)
    ),
    "committed_bytes": MetricDeclaration(
        "larder_pool_committed_bytes", G, "Memory given to segments.", ("node",)
    ),
    "blocks": MetricDeclaration("larder_pool_blocks", G, "Blocks in the pool.", ("node",)),
    "pin_budget_bytes": MetricDeclaration(
        "larder_pool_pin_budget_bytes", G, "Bytes that guaranteed pins may keep.", ("node",)
    ),
    "padding_bytes": MetricDeclaration(
        "larder_pool_padding_bytes",
        G,
        "Internal fragmentation: bytes of slots beyond their blocks.",
        ("node",),
    ),
    "free_slot_bytes": MetricDeclaration(
        "larder_pool_free_slot_bytes",
        G,
        "External fragmentation: free slots in committed segments.",
        ("node",),
    ),
    "prefaulted_bytes": MetricDeclaration(
        "larder_pool_prefaulted_bytes", G, "Committed memory that was taken ahead of use.", ("node",)
    ),
    "huge_pages": MetricDeclaration(
        "larder_pool_huge_pages", G, "1 when memory is in huge pages.", ("node",)
    ),
    "locked": MetricDeclaration("larder_pool_locked", G, "1 when memory is locked into RAM.", ("node",)),
}
TOTALS = {
    "requested_blocks": MetricDeclaration(
        "larder_requested_blocks", C, "Blocks that engines asked for.", ("node",)
    ),
    "hit_blocks": MetricDeclaration(
        "larder_hit_blocks", C, "Blocks that were there when asked for.", ("node",)
    ),
    "stored_bytes": MetricDeclaration("larder_stored_bytes", C, "Bytes of committed blocks.", ("node",)),
    "read_bytes": MetricDeclaration(
        "larder_read_bytes", C, "Bytes of blocks that engines acquired.", ("node",)
    ),
    "stored_blocks": MetricDeclaration("larder_stored_blocks", C, "Blocks committed.", ("node",)),
    "evicted_blocks": MetricDeclaration("larder_evicted_blocks", C, "Blocks evicted.", ("node",)),
    "evicted_bytes": MetricDeclaration("larder_evicted_bytes", C, "Bytes evicted.", ("node",)),
    "evictions_cancelled": MetricDeclaration(
        "larder_evictions_cancelled", C, "Evictions called off for a lease.", ("node",)
    ),
    "aborted_blocks": MetricDeclaration(
        "larder_aborted_blocks", C, "Reserved blocks that were given up.", ("node",)
    ),
    "quarantined_blocks": MetricDeclaration(
        "larder_quarantined_blocks", C, "Blocks that had to wait for the end of a process.", ("node",)
    ),
    "invalidated_blocks": MetricDeclaration("larder_invalidated_blocks", C, "Blocks invalidated.", ("node",)),
    "corrupt_blocks": MetricDeclaration(
        "larder_corrupt_blocks",
        C,
        "Blocks dropped because their bytes do not match their checksum.",
        ("node",),
    ),
    "false_reports": MetricDeclaration(
        "larder_false_corruption_reports", C, "Reports of corrupt blocks that were whole.", ("node",)
    ),
    "ring_dropped": MetricDeclaration(
        "larder_ring_dropped", C, "Accesses that full rings of engines did not take.", ("node",)
    ),
    "ring_entries_rejected": MetricDeclaration(
        "larder_ring_entries_rejected", C, "Ring entries that reference no live block.", ("node",)
    ),
    "malformed_messages": MetricDeclaration(
        "larder_node_malformed_messages", C, "Messages that a node could not read.", ("node",)
    ),
    "events_dropped": MetricDeclaration(
        "larder_node_events_dropped", C, "Events that a node could not publish.", ("node",)
    ),
}
REFUSED = MetricDeclaration("larder_refused_blocks", C, "Blocks refused, by reason.", ("node", "code"))
ENGINES = MetricDeclaration("larder_engines", G, "Attached engines.", ("node",))
_ENGINE = ("node", "client", "group", "pid")
ENGINE_BYTES = {
    "reserved_bytes": MetricDeclaration(
        "larder_engine_reserved_bytes", G, "Bytes that the engine writes.", _ENGINE
    ),
    "quarantined_bytes": MetricDeclaration(
        "larder_engine_quarantined_bytes",
        G,
        "Bytes held back until the engine's processes are gone.",
        _ENGINE,
    ),
    "leased_blocks": MetricDeclaration(
        "larder_engine_leased_blocks", G, "Blocks that the engine holds.", _ENGINE
    ),
}
WAITS_FOR = MetricDeclaration(
    "larder_engine_waits_for_processes",
    G,
    "Processes that must be gone before the bytes of a closed engine come back.",
    _ENGINE,
)
POLICY = MetricDeclaration(
    "larder_policy_in_force", G, "1 for the eviction policy in force.", ("node", "algorithm")
)
GATE = MetricDeclaration(
    "larder_admission_gate_closed",
    G,
    "1 while a block is admitted only if its key was seen before, else 0.",
    ("node",),
)
VICTIM_IDLE = MetricDeclaration(
    "larder_victim_idle_seconds", G, "How long victims had been idle, on average.", ("node",)
)
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
        "larder_space_padding_bytes", G, "Bytes of its slots beyond its blocks.", _SPACE
    ),
}
SWEEPS = MetricDeclaration("larder_sweeps", G, "Invalidations and demotions under way.", ("node", "kind"))
SWEEP_LEASED = MetricDeclaration(
    "larder_sweep_leased_blocks", G, "Invalidated blocks that wait for a lease.", ("node",)
)
ADOPTED = MetricDeclaration(
    "larder_adopted_blocks", G, "Blocks taken over from the process before.", ("node",)
)
START_KINDS = ("unknown", "first", "warm", "cold", "released")
START = MetricDeclaration(
    "larder_cache_start",
    G,
    "1 for the way in which the cache began: first, warm, cold, released (on purpose) or unknown; 0 for the others.",
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
COLD = MetricDeclaration(
    "larder_cache_cold",
    G,
    "1 while a cache that lost its blocks at its start, not on purpose, holds less than half of the lost bytes.",
    ("node",),
)
EMPTY_PINS = MetricDeclaration(
    "larder_pin_holds_nothing",
    G,
    "1 for each guaranteed or permanent pin of which no node caches a block.",
    ("pin",),
)
ARMED = MetricDeclaration("larder_node_armed", G, "1 when the node enforces quotas.", ("node",))
DRAINING = MetricDeclaration(
    "larder_node_draining", G, "1 when the node takes no new engines and stores nothing more.", ("node",)
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
        "Largest size of these records; stores of a tenant that does not fit are refused.",
        ("node",),
    ),
}
NODES = MetricDeclaration("larder_nodes", G, "Known nodes by their state.", ("state",))
UP = MetricDeclaration("larder_node_up", G, "1 when the node was heard within the last seconds.", ("node",))
OBSERVED = MetricDeclaration(
    "larder_observed_generation", G, "Generation that the node applied.", ("node", "type")
)
DESIRED = MetricDeclaration("larder_desired_generation", G, "Newest generation in the database.", ("type",))
TENANTS = {
    "bytes": MetricDeclaration("larder_tenant_bytes", G, "Bytes that the tenant keeps.", ("node", "tenant")),
    "limit_bytes": MetricDeclaration(
        "larder_tenant_limit_bytes", G, "The tenant's limit.", ("node", "tenant")
    ),
    "floor_bytes": MetricDeclaration(
        "larder_tenant_floor_bytes", G, "The tenant's floor.", ("node", "tenant")
    ),
    "effective_floor_bytes": MetricDeclaration(
        "larder_tenant_effective_floor_bytes", G, "What of it is guaranteed.", ("node", "tenant")
    ),
    "pinned_bytes": MetricDeclaration(
        "larder_tenant_pinned_bytes", G, "Bytes that its guaranteed pins keep.", ("node", "tenant")
    ),
    "would_refuse_blocks": MetricDeclaration(
        "larder_tenant_would_refuse_blocks",
        C,
        "Blocks that enforcing would have refused.",
        ("node", "tenant"),
    ),
    "requested_blocks": MetricDeclaration(
        "larder_tenant_requested_blocks", C, "Blocks asked for.", ("node", "tenant")
    ),
    "hit_blocks": MetricDeclaration("larder_tenant_hit_blocks", C, "Blocks found.", ("node", "tenant")),
    "evicted_blocks": MetricDeclaration(
        "larder_tenant_evicted_blocks", C, "Blocks evicted.", ("node", "tenant")
    ),
    "refused_blocks": MetricDeclaration(
        "larder_tenant_refused_blocks", C, "Blocks refused.", ("node", "tenant")
    ),
}
_SUMMED = (
    "bytes",
    "blocks",
    "floor_bytes",
    "effective_floor_bytes",
    "pinned_bytes",
    "would_refuse_blocks",
    "requested_blocks",
    "hit_blocks",
    "stored_blocks",
    "evicted_blocks",
    "refused_blocks",
)
REQUESTS = MetricDeclaration("larder_http_requests", C, "Answered HTTP requests.", ("method", "status"))
PUSHES = MetricDeclaration("larder_pushes", C, "Pushes to nodes, by how they ended.", ("state",))
EVENTS = MetricDeclaration("larder_events_received", C, "Events received from nodes.")
EVENTS_MALFORMED = MetricDeclaration(
    "larder_events_malformed", C, "Messages from nodes that could not be read."
)
EVENTS_LOST = MetricDeclaration("larder_events_lost", C, "Events that were sent and did not come.")
STREAMS = MetricDeclaration("larder_event_streams", G, "Open dashboard streams.")
STREAM_EVENTS_DROPPED = MetricDeclaration("larder_stream_events_dropped", C, "Events that slow streams lost.")
EVENTS_UNKEPT = MetricDeclaration(
    "larder_events_unkept", C, "Events that were not stored because the queue was full."
)
AUTH_FAILURES = MetricDeclaration(
    "larder_auth_failures",
    C,
    "Unauthenticated requests: a missing, malformed, unknown or expired token, or an ended session.",
    ("reason",),
)
CONNECTIONS_ENDED = MetricDeclaration(
    "larder_http_connections_ended",
    C,
    "Connections that were refused (all: too many) or closed (slow_head, slow_body).",
    ("reason",),
)
AUDIT_SUPPRESSED = MetricDeclaration(
    "larder_audit_suppressed", C, "Refusals that the audit log suppressed because they were too frequent."
)
APPLY_FILE = MetricDeclaration(
    "larder_apply_file_in_force", G, "0 while the file of apply_file cannot be applied."
)
APPLY_FILE_REFUSED = MetricDeclaration(
    "larder_apply_file_refused", C, "Times that the file could not be applied."
)
RESTARTS = MetricDeclaration("larder_data_plane_restarts", C, "Restarts of the embedded data plane.")

MANAGER_PUSHING = MetricDeclaration(
    "larder_manager_pushing", G, "1 when this management plane is the one that pushes to nodes."
)
DATABASE_UP = MetricDeclaration("larder_database_up", G, "1 while the database answers and takes changes.")


@dataclass(frozen=True)
class MetricSources:
    """Sources of a scrape; every call returns current numbers."""

    stats: Callable[[], Iterable[NodeStats]]
    nodes_up: Callable[[], Mapping[str, bool]]
    node_states: Callable[[], Mapping[str, int]]
    """Number of nodes by state."""
    desired: Callable[[], Mapping[str, int]]
    requests: Mapping[tuple[str, int], int]
    pushes: Mapping[str, int]
    auth_failures: Mapping[str, int]
    connections_ended: Mapping[str, int]
    cold: Callable[[], Mapping[str, bool]]
    """Whether the cache is cold, by node."""
    empty_pins: Callable[[], Sequence[str]]
    """Sorted names of pins that should keep their blocks and hold none."""
    numbers: Callable[[], Iterable[tuple[MetricDeclaration, float]]]
    """Values of metrics without labels."""
    lmcache_names: bool = False
    """Whether to add metrics under LMCache's names."""


class LarderCollector(Collector):
    """Builds the metric families from the sources at each scrape."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        page = MetricsPage()
        for node in self._sources.stats():
            _node(page, node)
            gpu_copy_metrics.add(page, node)
            if node.gateway is not None:
                gateway_metrics.add(page, node.node, node.gateway)
                if self._sources.lmcache_names:
                    lmcache_metrics.add(page, node, node.gateway)
        for name, up in self._sources.nodes_up().items():
            page.add(UP, up, name)
        for name, cold in self._sources.cold().items():
            page.add(COLD, cold, name)
        _empty_pins(page, self._sources.empty_pins())
        for state, count in self._sources.node_states().items():
            page.add(NODES, count, state)
        for kind, generation in self._sources.desired().items():
            page.add(DESIRED, generation, kind)
        for (method, status), count in list(self._sources.requests.items()):
            page.add(REQUESTS, count, method, str(status))
        for state, count in list(self._sources.pushes.items()):
            page.add(PUSHES, count, state)
        for reason, count in list(self._sources.auth_failures.items()):
            page.add(AUTH_FAILURES, count, reason)
        for reason, count in list(self._sources.connections_ended.items()):
            page.add(CONNECTIONS_ENDED, count, reason)
        for declared, value in self._sources.numbers():
            page.add(declared, value)
        return page.families.values()


def _node(page: MetricsPage, stats: NodeStats) -> None:
    for name, declared in POOL.items():
        page.add(declared, getattr(stats.pool, name), stats.node)
    for name, declared in TOTALS.items():
        page.add(declared, getattr(stats.totals, name), stats.node)
    for code, count in stats.refused.items():
        page.add(REFUSED, count, stats.node, code)
    page.add(ENGINES, sum(engine.connected for engine in stats.engines if engine.is_engine), stats.node)
    page.add(ARMED, stats.armed, stats.node)
    page.add(DRAINING, stats.draining, stats.node)
    page.add(ADOPTED, stats.adopted_blocks, stats.node)
    _start(page, stats)
    for name, declared in ID_JOURNAL.items():
        page.add(declared, getattr(stats, name), stats.node)
    for engine in stats.engines[:ENGINE_LABELS]:
        labels = (stats.node, str(engine.client), engine.group, str(engine.pid))
        for name, declared in ENGINE_BYTES.items():
            page.add(declared, getattr(engine, name), *labels)
        page.add(WAITS_FOR, 0 if engine.connected else len(engine.waits_for_pids), *labels)
    for space in stats.spaces[:SPACE_LABELS]:
        for name, declared in SPACES.items():
            value = getattr(space, name)
            page.add(declared, value, stats.node, space.space, space.model, space.dtype, str(space.rank))
    _policy(page, stats)
    for kind, observed in stats.observed.items():
        page.add(OBSERVED, observed.generation, stats.node, kind)
    for tenant in bounded(stats.tenants, stats.other_tenants):
        for name, declared in TENANTS.items():
            value = getattr(tenant, name)
            if value is not None:
                page.add(declared, value, stats.node, tenant.tenant)


def _start(page: MetricsPage, stats: NodeStats) -> None:
    began = "released" if stats.start.kind == "cold" and stats.start.released else stats.start.kind
    for kind in START_KINDS:
        page.add(START, kind == began, stats.node, kind)
    for name, declared in STARTS.items():
        page.add(declared, getattr(stats.start, name), stats.node)


def _empty_pins(page: MetricsPage, names: Sequence[str]) -> None:
    """Add the first PIN_LABELS pins by name, and as `other` the number of the rest, which includes a pin named
    `other`."""
    named = [name for name in names if name != OTHER]
    for name in named[:PIN_LABELS]:
        page.add(EMPTY_PINS, 1, name)
    if rest := len(names) - len(named[:PIN_LABELS]):
        page.add(EMPTY_PINS, rest, OTHER)


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


def bounded(tenants: list[TenantStats], rest: TenantStats | None) -> list[TenantStats]:
    """Return the largest tenants, and one `other` with the sum of the rest, which includes a tenant named `other`."""
    largest = sorted((t for t in tenants if t.tenant != OTHER), key=lambda t: -t.bytes)
    named, folded = largest[:TENANT_LABELS], largest[TENANT_LABELS:]
    folded += [t for t in tenants if t.tenant == OTHER] + ([rest] if rest is not None else [])
    if not folded:
        return named
    other = TenantStats(tenant=OTHER)
    for name in _SUMMED:
        setattr(other, name, sum(getattr(t, name) for t in folded))
    return [*named, other]


def registry_of(sources: MetricSources) -> CollectorRegistry:
    """Return a new registry: two applications in one process must not share metrics."""
    registry = CollectorRegistry()
    registry.register(LarderCollector(sources))
    return registry

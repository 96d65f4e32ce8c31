"""All metrics of this process, declared once. Numbers are read when a scrape asks; nothing is counted twice.

A node's metrics carry its name. Tenants are bounded: the largest 50 by bytes, the rest as `other`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dataplane.protocol.events import NodeStats, TenantStats

TENANT_LABELS = 50
OTHER = "other"


@dataclass(frozen=True)
class Declared:
    """A metric's name (counters without `_total`), kind, labels and help text."""

    name: str
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily]
    help: str
    labels: tuple[str, ...] = ()


G, C = GaugeMetricFamily, CounterMetricFamily

POOL = {
    "capacity_bytes": Declared("larder_pool_capacity_bytes", G, "Size of the pool.", ("node",)),
    "used_bytes": Declared(
        "larder_pool_used_bytes", G, "Bytes that are ready, reserved or quarantined.", ("node",)
    ),
    "ready_bytes": Declared("larder_pool_ready_bytes", G, "Bytes of blocks that can be read.", ("node",)),
    "reserved_bytes": Declared("larder_pool_reserved_bytes", G, "Bytes being written.", ("node",)),
    "quarantined_bytes": Declared(
        "larder_pool_quarantined_bytes",
        G,
        "Bytes held back because a process could still touch them.",
        ("node",),
    ),
    "pinned_bytes": Declared("larder_pool_pinned_bytes", G, "Bytes that guaranteed pins keep.", ("node",)),
    "committed_bytes": Declared("larder_pool_committed_bytes", G, "Memory given to segments.", ("node",)),
    "blocks": Declared("larder_pool_blocks", G, "Blocks in the pool.", ("node",)),
}
TOTALS = {
    "requested_blocks": Declared("larder_requested_blocks", C, "Blocks that engines asked for.", ("node",)),
    "hit_blocks": Declared("larder_hit_blocks", C, "Blocks that were there when asked for.", ("node",)),
    "bytes_in": Declared("larder_bytes_in", C, "Bytes of committed blocks.", ("node",)),
    "bytes_out": Declared("larder_bytes_out", C, "Bytes of blocks that engines acquired.", ("node",)),
    "stored_blocks": Declared("larder_stored_blocks", C, "Blocks committed.", ("node",)),
    "evicted_blocks": Declared("larder_evicted_blocks", C, "Blocks evicted.", ("node",)),
    "evicted_bytes": Declared("larder_evicted_bytes", C, "Bytes evicted.", ("node",)),
    "put_back_blocks": Declared("larder_put_back_blocks", C, "Evictions called off for a lease.", ("node",)),
    "aborted_blocks": Declared("larder_aborted_blocks", C, "Reserved blocks that were given up.", ("node",)),
    "malformed_messages": Declared(
        "larder_node_malformed_messages", C, "Messages that a node could not read.", ("node",)
    ),
    "events_dropped": Declared(
        "larder_node_events_dropped", C, "Events that a node could not publish.", ("node",)
    ),
}
REFUSED = Declared("larder_refused_blocks", C, "Blocks refused, by reason.", ("node", "code"))
ENGINES = Declared("larder_engines", G, "Attached engines.", ("node",))
ARMED = Declared("larder_node_armed", G, "1 when the node enforces quotas.", ("node",))
UP = Declared("larder_node_up", G, "1 when the node was heard within the last seconds.", ("node",))
OBSERVED = Declared("larder_observed_generation", G, "Generation that the node applied.", ("node", "type"))
DESIRED = Declared("larder_desired_generation", G, "Newest generation in the database.", ("type",))
TENANTS = {
    "bytes": Declared("larder_tenant_bytes", G, "Bytes that the tenant keeps.", ("node", "tenant")),
    "limit_bytes": Declared("larder_tenant_limit_bytes", G, "The tenant's limit.", ("node", "tenant")),
    "requested_blocks": Declared(
        "larder_tenant_requested_blocks", C, "Blocks asked for.", ("node", "tenant")
    ),
    "hit_blocks": Declared("larder_tenant_hit_blocks", C, "Blocks found.", ("node", "tenant")),
    "evicted_blocks": Declared("larder_tenant_evicted_blocks", C, "Blocks evicted.", ("node", "tenant")),
    "refused_blocks": Declared("larder_tenant_refused_blocks", C, "Blocks refused.", ("node", "tenant")),
}
_SUMMED = (
    "bytes",
    "blocks",
    "requested_blocks",
    "hit_blocks",
    "stored_blocks",
    "evicted_blocks",
    "refused_blocks",
)
REQUESTS = Declared("larder_http_requests", C, "Answered HTTP requests.", ("method", "status"))
PUSHES = Declared("larder_pushes", C, "Pushes to nodes, by how they ended.", ("state",))
EVENTS = Declared("larder_events_received", C, "Events received from nodes.")
EVENTS_MALFORMED = Declared("larder_events_malformed", C, "Messages from nodes that could not be read.")
EVENTS_LOST = Declared("larder_events_lost", C, "Events that were sent and did not come.")
STREAMS = Declared("larder_event_streams", G, "Open dashboard streams.")
FACTS_DROPPED = Declared("larder_facts_dropped", C, "Facts that slow streams lost.")
RESTARTS = Declared("larder_data_plane_restarts", C, "Restarts of the embedded data plane.")


@dataclass(frozen=True)
class Sources:
    """Where a scrape reads; every call answers with numbers of now."""

    stats: Callable[[], Iterable[NodeStats]]
    nodes_up: Callable[[], Mapping[str, bool]]
    desired: Callable[[], Mapping[str, int]]
    requests: Mapping[tuple[str, int], int]
    pushes: Mapping[str, int]
    numbers: Callable[[], Mapping[str, float]]
    """By metric name, for metrics without labels."""


class LarderCollector(Collector):
    """Makes families from the sources at each scrape."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        page = Page()
        for node in self._sources.stats():
            _node(page, node)
        for name, up in self._sources.nodes_up().items():
            page.add(UP, up, name)
        for kind, generation in self._sources.desired().items():
            page.add(DESIRED, generation, kind)
        for (method, status), count in list(self._sources.requests.items()):
            page.add(REQUESTS, count, method, str(status))
        for state, count in list(self._sources.pushes.items()):
            page.add(PUSHES, count, state)
        numbers = self._sources.numbers()
        for declared in (EVENTS, EVENTS_MALFORMED, EVENTS_LOST, STREAMS, FACTS_DROPPED, RESTARTS):
            page.add(declared, numbers.get(declared.name, 0))
        return page.families.values()


class Page:
    """Families of one scrape, in the order of their first sample."""

    def __init__(self) -> None:
        self.families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}

    def add(self, declared: Declared, value: float, *labels: str) -> None:
        family = self.families.get(declared.name)
        if family is None:
            family = declared.kind(declared.name, declared.help, labels=declared.labels)
            self.families[declared.name] = family
        family.add_metric(labels, float(value))


def _node(page: Page, stats: NodeStats) -> None:
    for name, declared in POOL.items():
        page.add(declared, getattr(stats.pool, name), stats.node)
    for name, declared in TOTALS.items():
        page.add(declared, getattr(stats.totals, name), stats.node)
    for code, count in stats.refused.items():
        page.add(REFUSED, count, stats.node, code)
    page.add(ENGINES, sum(engine.connected for engine in stats.engines), stats.node)
    page.add(ARMED, stats.armed, stats.node)
    for kind, observed in stats.observed.items():
        page.add(OBSERVED, observed.generation, stats.node, kind)
    for tenant in bounded(stats.tenants, stats.other_tenants):
        for name, declared in TENANTS.items():
            value = getattr(tenant, name)
            if value is not None:
                page.add(declared, value, stats.node, tenant.tenant)


def bounded(tenants: list[TenantStats], rest: TenantStats | None) -> list[TenantStats]:
    """The largest tenants, and one `other` that sums up the rest (a tenant of that name joins it)."""
    largest = sorted((t for t in tenants if t.tenant != OTHER), key=lambda t: -t.bytes)
    kept, folded = largest[:TENANT_LABELS], largest[TENANT_LABELS:]
    folded += [t for t in tenants if t.tenant == OTHER] + ([rest] if rest is not None else [])
    if not folded:
        return kept
    other = TenantStats(tenant=OTHER)
    for name in _SUMMED:
        setattr(other, name, sum(getattr(t, name) for t in folded))
    return [*kept, other]


def registry_of(sources: Sources) -> CollectorRegistry:
    """A registry of its own: two applications in one process do not share numbers."""
    registry = CollectorRegistry()
    registry.register(LarderCollector(sources))
    return registry

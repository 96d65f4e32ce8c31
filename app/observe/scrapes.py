"""Pages of scrapes: all metrics of this process. A scrape reads the current numbers from their owners; this module
keeps no counters.

Metrics of a node carry its name. Of several managers, the leader alone serves the metrics of nodes and of the fleet, so
that sums over managers count each node once. The number of label values is bounded: the 50 largest tenants by bytes,
and `other` for the rest; the 50 largest spaces, 100 engines by name, 50 pins with GPU copies and 50 pins that hold
nothing.
"""

import asyncio
from collections.abc import Callable, Iterable, Set

from app.observe import (
    gateway_metrics,
    gpu_copy_metrics,
    ipc_metrics,
    kv_event_metrics,
    lmcache_metrics,
    node_activity_metrics,
    node_metrics,
    pin_metrics,
    tenant_metrics,
    tier_metrics,
)
from app.observe.bounded import BoundedTenants
from app.observe.page import MetricsPage
from dataplane.protocol.stats.node import NodeStats


class Scrapes:
    """Makes the pages of scrapes. Instances share no state."""

    def __init__(
        self,
        *,
        leads: Callable[[], bool],
        stats: Callable[[], Iterable[NodeStats]],
        known: Callable[[], Set[str]],
        add_fleet: Callable[[MetricsPage], None],
        add_own: Callable[[MetricsPage], None],
        lmcache_names: bool,
    ) -> None:
        """`leads` returns whether this manager is the leader, or the last leader that it knows of, `stats` the reports
        of nodes, and `known` the names of all nodes. `add_fleet` adds what managers know of the fleet, and `add_own`
        the samples of this process. `lmcache_names`: whether to add metrics under LMCache's names."""
        self._leads = leads
        self._stats = stats
        self._known = known
        self._fleet = add_fleet
        self._own = add_own
        self._lmcache_names = lmcache_names
        self._nodes: dict[str, _NodePage] = {}
        self._lock = asyncio.Lock()

    async def page(self, *, openmetrics: bool = False) -> bytes:
        """Return the current numbers as text. Yields to other tasks between nodes; concurrent scrapes run one after the
        other, so that counters never fall from one scrape to the next."""
        page = MetricsPage(openmetrics=openmetrics)
        if self._leads():
            await self._add_nodes(page)
            self._fleet(page)
        self._own(page)
        return page.text()

    async def _add_nodes(self, page: MetricsPage) -> None:
        async with self._lock:
            for stats in self._stats():
                node_page = self._nodes.get(stats.node)
                if node_page is None or node_page.epoch != stats.epoch:
                    node_page = self._nodes[stats.node] = _NodePage(stats.epoch)
                page.add_page(node_page.of(stats, lmcache_names=self._lmcache_names))
                await asyncio.sleep(0)
            pin_metrics.add(page, list(self._stats()))
            for name in self._nodes.keys() - self._known():
                del self._nodes[name]


class _NodePage:
    """Samples of one node process, rebuilt for each of its reports."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self._tenants = BoundedTenants(tenant_metrics.counters)
        self._stats: NodeStats | None = None
        self._page = MetricsPage()

    def of(self, stats: NodeStats, *, lmcache_names: bool) -> MetricsPage:
        if stats is not self._stats:
            self._stats, self._page = stats, MetricsPage()
            self._tenants.update(stats.tenants, stats.other_tenants)
            node_metrics.add(self._page, stats)
            node_activity_metrics.add(self._page, stats)
            tenant_metrics.add(self._page, stats.node, self._tenants)
            gpu_copy_metrics.add(self._page, stats)
            tier_metrics.add(self._page, stats)
            if stats.kv_events is not None:
                kv_event_metrics.add(self._page, stats.node, stats.kv_events)
            if stats.ipc is not None:
                ipc_metrics.add(self._page, stats.node, stats.ipc)
            if stats.gateway is not None:
                gateway_metrics.add(self._page, stats.node, stats.gateway)
                if lmcache_names:
                    lmcache_metrics.add(self._page, stats, stats.gateway)
        return self._page

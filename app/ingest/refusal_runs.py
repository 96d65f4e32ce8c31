"""Detects when nodes begin to refuse blocks of a tenant, and publishes one event per run of refusals.

Nodes report numbers of refused blocks. An event for each refusal would mean thousands per second.
"""

import time
from collections.abc import Callable, Iterable

from app.observe.catalogue.alerts import RefusalsStarted
from app.observe.events import EventBus
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.tenants import TenantStats

QUIET_S = 60.0
"""Seconds without a refusal after which the next one begins a new run."""


class RefusalRuns:
    """Publishes `refusals.started`. Call `look` with the latest reports, about once a second."""

    def __init__(self, bus: EventBus, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._clock = clock
        self._counts: dict[tuple[str, str], dict[str, dict[str, int]]] = {}
        """Refused blocks by code, by tenant, by node and epoch."""
        self._last: dict[tuple[str, str], float] = {}
        """Time of the latest refusal by node and tenant."""

    def look(self, stats: Iterable[NodeStats]) -> None:
        now = self._clock()
        counts = {}
        for node in stats:
            key = (node.node, node.epoch)
            before = self._counts.get(key)
            counts[key] = {each.tenant: dict(each.refused) for each in node.tenants if each.refused}
            if before is None:  # the time of refusals before the first report is unknown
                continue
            for tenant in node.tenants:
                if tenant.refused and tenant.refused != (was := before.get(tenant.tenant, {})):
                    self._refused(node.node, tenant, was, now)
        self._counts = counts
        self._last = {key: at for key, at in self._last.items() if now - at <= QUIET_S}

    def _refused(self, node: str, tenant: TenantStats, was: dict[str, int], now: float) -> None:
        rises = {code: count - was.get(code, 0) for code, count in tenant.refused.items()}
        reason = max(rises, key=lambda code: rises[code])
        if rises[reason] <= 0:
            return
        key = (node, tenant.tenant)
        if now - self._last.get(key, -QUIET_S - 1) > QUIET_S:
            self._bus.publish(RefusalsStarted(tenant.tenant, reason), node=node)
        self._last[key] = now

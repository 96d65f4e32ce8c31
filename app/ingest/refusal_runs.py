"""Detects when nodes begin and cease to refuse blocks of a tenant, and when a tenant exceeds its limit.

Nodes report numbers of refused blocks. An event for each refusal would mean thousands per second.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from app.observe.catalogue.alerts import LimitExceeded, LimitRestored, RefusalsEnded, RefusalsStarted
from app.observe.events import EventBus
from dataplane.protocol.salts import shown
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.tenants import TenantStats

QUIET_S = 60.0
"""Seconds without a refusal, or within the limit, after which a run ends and the next one begins."""


NO_ROOM = frozenset({"pool_full", "index_full", "no_descriptor", "fragmented", "out_of_memory"})
"""Reasons of refusals that blocks of any tenant cause."""

_Key = tuple[str, str]
"""Node and tenant."""


class Refusal(NamedTuple):
    """Refusals of a tenant's blocks on a node, which last."""

    node: str
    """Empty for a caller that may not see it."""
    tenant: str
    """Tenant, as shown."""
    since: float
    """Unix seconds."""
    blocks: dict[str, int]
    """Refused blocks by code name."""


@dataclass
class _Run:
    """Refusals of a tenant on a node, or its time over its limit."""

    last: float
    """Time at which it was last seen."""
    since: float = field(default_factory=time.time)
    """Unix seconds."""
    blocks: Counter[str] = field(default_factory=Counter)
    """Refused blocks by code name."""


class RefusalRuns:
    """Publishes an event when a run begins and when it ends. Call `look` with the latest reports, about once a second.

    A run has no end if its node does not report then.
    """

    def __init__(self, bus: EventBus, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._clock = clock
        self._counts: dict[tuple[str, str], dict[str, dict[str, int]]] = {}
        """Refused blocks by code, by tenant, by node and epoch."""
        self._refusing: dict[_Key, _Run] = {}
        self._over: dict[_Key, _Run] = {}

    def look(self, stats: Iterable[NodeStats]) -> None:
        now = self._clock()
        counts = {}
        nodes = {node.node: node for node in stats}
        for node in nodes.values():
            key = (node.node, node.epoch)
            before = self._counts.get(key)
            counts[key] = {tenant.tenant: dict(tenant.refused) for tenant in node.tenants if tenant.refused}
            for tenant in node.tenants:
                if tenant.over_limit:
                    self._exceeds(node.node, tenant, now, begins=before is not None)
                if before is None:  # the time of refusals before the first report is unknown
                    continue
                if tenant.refused and tenant.refused != (was := before.get(tenant.tenant, {})):
                    self._refused(node, tenant, was, now)
        self._counts = counts
        for (name, salt), run in _ended(self._refusing, now):
            if name in nodes:
                self._bus.publish(RefusalsEnded(salt, run.blocks.total()), node=name)
        for (name, salt), _ in _ended(self._over, now):
            if name in nodes:
                nbytes = next((tenant.bytes for tenant in nodes[name].tenants if tenant.tenant == salt), 0)
                self._bus.publish(LimitRestored(salt, nbytes), node=name)

    def lasting(self, is_wanted: Callable[[str, str], bool]) -> list[Refusal]:
        """Return the refusals that have not ended, of wanted nodes and tenants (as shown)."""
        return [
            Refusal(node, tenant, run.since, dict(run.blocks))
            for (node, salt), run in self._refusing.items()
            if is_wanted(node, tenant := shown(salt))
        ]

    def _refused(self, node: NodeStats, tenant: TenantStats, was: dict[str, int], now: float) -> None:
        rises = {code: count - was.get(code, 0) for code, count in tenant.refused.items()}
        reason = max(rises, key=lambda code: rises[code])
        if rises[reason] <= 0:
            return
        key = (node.node, tenant.tenant)
        if key not in self._refusing:
            self._refusing[key] = _Run(now)
            largest = max(node.tenants, key=lambda listed: listed.bytes)
            holder, nbytes = (largest.tenant, largest.bytes) if reason in NO_ROOM and largest.bytes else ("", 0)
            self._bus.publish(RefusalsStarted(tenant.tenant, reason, holder, nbytes), node=node.node)
        run = self._refusing[key]
        run.last = now
        run.blocks.update({code: rise for code, rise in rises.items() if rise > 0})

    def _exceeds(self, node: str, tenant: TenantStats, now: float, *, begins: bool) -> None:
        """Note a tenant over its limit. `begins`: the node has reported before, so this is new."""
        run = self._over.get((node, tenant.tenant))
        if run is not None:
            run.last = now
            return
        self._over[node, tenant.tenant] = _Run(now)
        if begins:
            self._bus.publish(LimitExceeded(tenant.tenant, tenant.bytes, tenant.limit_bytes or 0), node=node)


def _ended(runs: dict[_Key, _Run], now: float) -> list[tuple[_Key, _Run]]:
    """Remove the runs that have ended, and return them."""
    ended = [(key, run) for key, run in runs.items() if now - run.last > QUIET_S]
    for key, _ in ended:
        del runs[key]
    return ended

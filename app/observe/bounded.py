"""Counters of a bounded number of tenants by name and of all others together, none of which ever falls.

Only the largest tenants have a series of their own, so tenants move between their series and `other`, and a node
forgets tenants that have no blocks. A sum of current values would fall each time, which Prometheus interprets as a
restart. Instead, each update adds the increase since the previous one, and the series of a tenant that returns
continues from its last value.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from app.observe.page import OTHER
from dataplane.protocol.stats.tenants import TenantStats

TENANT_LABELS = 50
HYSTERESIS = 1.25
"""A named tenant keeps its name until another is larger by this factor, so that tenants of equal size do not alternate.
"""
MAX_REMEMBERED = 10 * TENANT_LABELS
"""Number of tenants that lost their name in the metrics and whose last values are still stored."""
Key = TypeVar("Key", bound=Hashable)
"""Identifies a counter."""
Counts = Mapping[Key, int]
Series = dict[Key, int]


class BoundedTenants(Generic[Key]):
    """Tenants of one process of a node."""

    def __init__(self, counters: Callable[[TenantStats], Counts[Key]]) -> None:
        """`counters` returns the counters of a tenant."""
        self._counters = counters
        self._listed: dict[str, Counts[Key]] | None = None
        """Counters of the listed tenants at the last update; None before the first one."""
        self._unlisted: Counts[Key] | None = None
        """The node's counts for tenants that it did not list; None if it lists all tenants."""
        self._shown: dict[str, Series[Key]] = {}
        """Series by tenant, most recently named last."""
        self._other: Series[Key] = {}
        self.named: list[TenantStats] = []
        self.folded: list[TenantStats] = []
        """Tenants in `other`, including the node's sum of unlisted tenants."""

    def counts(self, tenant: str) -> Counts[Key]:
        """Return the values of the series of a named tenant or of `other`."""
        return self._other if tenant == OTHER else self._shown[tenant]

    def update(self, tenants: list[TenantStats], other_tenants: TenantStats | None) -> None:
        """Apply a node's report: the tenants that it lists, and the sum of the others (None if it lists all)."""
        by_name = {tenant.tenant: tenant for tenant in tenants}
        listed = {name: self._counters(tenant) for name, tenant in by_name.items()}
        unlisted = None if other_tenants is None else self._counters(other_tenants)
        self._choose(by_name)
        if self._listed is None:
            self._start(listed, unlisted)
        else:
            self._grow(self._listed, listed, unlisted)
        for forgotten in list(self._shown)[: -MAX_REMEMBERED - TENANT_LABELS]:
            del self._shown[forgotten]
        self._listed, self._unlisted = listed, unlisted
        if other_tenants is not None:
            self.folded.append(other_tenants)

    def _choose(self, by_name: dict[str, TenantStats]) -> None:
        """Choose the tenants with a series of their own. A tenant named `other` has none."""
        named = {tenant.tenant for tenant in self.named}

        def rank(tenant: TenantStats) -> tuple[float, str]:
            return -tenant.bytes * (HYSTERESIS if tenant.tenant in named else 1), tenant.tenant

        ranked = sorted((tenant for name, tenant in by_name.items() if name != OTHER), key=rank)
        self.named, self.folded = ranked[:TENANT_LABELS], ranked[TENANT_LABELS:]
        if OTHER in by_name:
            self.folded.append(by_name[OTHER])

    def _start(self, listed: dict[str, Counts[Key]], unlisted: Counts[Key] | None) -> None:
        self._shown = {tenant.tenant: dict(listed[tenant.tenant]) for tenant in self.named}
        for tenant in self.folded:
            _add(self._other, listed[tenant.tenant], {})
        _add(self._other, unlisted or {}, {})

    def _grow(
        self, before: dict[str, Counts[Key]], listed: dict[str, Counts[Key]], unlisted: Counts[Key] | None
    ) -> None:
        """Add what each tenant has counted since the last update: all of its counts if the node had forgotten it.

        The node adds the counts of tenants that it does not list to its own sum.
        """
        nothing: Counts[Key] = {}
        listed_all = self._unlisted is None
        for tenant in self.named:
            name = tenant.tenant
            series = self._shown.pop(name, None)
            if series is None:
                series = dict(listed[name])
            elif listed_all or name in before:
                _add(series, listed[name], before.get(name, nothing))
            self._shown[name] = series
        for tenant in self.folded:
            if listed_all or tenant.tenant in before:
                _add(self._other, listed[tenant.tenant], before.get(tenant.tenant, nothing))
        _add(self._other, unlisted or nothing, self._unlisted or nothing)


def _add(series: Series[Key], now: Counts[Key], before: Counts[Key]) -> None:
    """Add the increase of each counter; a counter that fell was reset to 0."""
    if now == before:
        return
    for key, value in now.items():
        was = before.get(key, 0)
        if value != was:
            series[key] = series.get(key, 0) + (value - was if value > was else value)
        elif key not in series:
            series[key] = 0

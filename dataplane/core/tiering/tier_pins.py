"""Pins in one tier: which of its blocks a pin holds, and which of those the tier does not evict.

Blocks under a guaranteed or a permanent pin are in no eviction queue, as long as they are within the pin budgets: a
fraction of the tier's budget for all tenants together, and the pin budget of each tenant. Blocks beyond the budgets are
evicted last, as those under a soft pin. In a tier, the blocks that arrive first get the budget, whichever of the two
strengths their pins have.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice

from dataplane.core.pool.pins import PinBundle
from dataplane.core.tenants.eviction_queues import Rank
from dataplane.core.tiering.tier_order import TierEntry, TierOrder, TierTenant
from dataplane.protocol.stats.pins import PinInTier


class TierPins:
    """Marks of pins on the blocks of one tier."""

    def __init__(self, name: str, order: TierOrder) -> None:
        """`name` is the name of the tier. No block is guaranteed before `set_budgets`."""
        self.budget_bytes = 0
        """Bytes for the guaranteed blocks of all tenants."""
        self.pinned_bytes = 0
        self._name = name
        self._order = order
        self._budgets: Mapping[str, int] = {}
        self._waiting: OrderedDict[TierEntry, None] = OrderedDict()
        """Blocks for which a budget had no room, in order of arrival."""
        self._freed = False
        """Whether budget may have become free since the last `step`."""
        self._to_look_at = 0
        """Blocks of `_waiting` that no step has looked at since budget became free."""
        self._over: dict[TierTenant, None] = {}
        """Tenants that may hold more than their budget."""

    def mark(self, entry: TierEntry, bundles: tuple[PinBundle, ...], now: float) -> None:
        """Set the bundles of pins that hold a block."""
        if bundles == entry.bundles:
            return
        self.unmark(entry)
        if not bundles:
            self._order.move(entry, Rank.NORMAL, now)
            return
        entry.bundles = bundles
        for bundle in bundles:
            in_tier = bundle.tiers.setdefault(self._name, PinInTier())
            in_tier.blocks += 1
            in_tier.bytes += entry.charge
        if all(bundle.strength == "soft" for bundle in bundles):
            self._order.move(entry, Rank.SOFT, now)
        elif self._fits(entry):
            self._guarantee(entry)
        else:
            self._waiting[entry] = None
            self._order.move(entry, Rank.SOFT, now)

    def unmark(self, entry: TierEntry) -> None:
        """Remove a block from the accounts of its pins. The caller gives it a rank or removes it."""
        if not entry.bundles:
            return
        if entry.guaranteed:
            self._end_guarantee(entry)
        for bundle in entry.bundles:
            in_tier = bundle.tiers[self._name]
            in_tier.blocks -= 1
            in_tier.bytes -= entry.charge
            if not in_tier.blocks:
                del bundle.tiers[self._name]
        entry.bundles = ()
        self._waiting.pop(entry, None)

    def set_budgets(self, budget_bytes: int, budgets: Mapping[str, int], tenants: Mapping[str, TierTenant]) -> None:
        """Set the budget of all tenants together and those of tenants, by salt, in bytes. `step` applies them."""
        self.budget_bytes = budget_bytes
        self._budgets = budgets
        self._over = dict.fromkeys(tenant for tenant in tenants.values() if tenant.guaranteed)
        self._freed = True

    def step(self, now: float, most: int) -> None:
        """Apply changed budgets to at most `most` blocks; call it again for the others."""
        for tenant in list(self._over):
            while self._is_over(tenant) and tenant.guaranteed:
                if not most:
                    return
                most -= 1
                last = next(reversed(tenant.guaranteed))
                self._end_guarantee(last)
                self._waiting[last] = None
                self._order.move(last, Rank.SOFT, now)
            del self._over[tenant]
        if self._freed:
            self._freed, self._to_look_at = False, len(self._waiting)
        looked_at = list(islice(self._waiting, min(most, self._to_look_at)))
        self._to_look_at -= len(looked_at)
        for entry in looked_at:
            del self._waiting[entry]
            if self._fits(entry):
                self._guarantee(entry)
            else:
                self._waiting[entry] = None  # behind those that no step has looked at yet

    def _fits(self, entry: TierEntry) -> bool:
        budget = self._budgets.get(entry.stored.tenant)
        return self.pinned_bytes + entry.charge <= self.budget_bytes and (
            budget is None or entry.tenant.pinned_bytes + entry.charge <= budget
        )

    def _is_over(self, tenant: TierTenant) -> bool:
        budget = self._budgets.get(tenant.salt)
        return self.pinned_bytes > self.budget_bytes or (budget is not None and tenant.pinned_bytes > budget)

    def _guarantee(self, entry: TierEntry) -> None:
        self._order.move(entry, None, 0.0)
        entry.guaranteed = True
        entry.tenant.guaranteed[entry] = None
        entry.tenant.pinned_bytes += entry.charge
        self.pinned_bytes += entry.charge
        for bundle in entry.bundles:
            bundle.tiers[self._name].guaranteed += 1

    def _end_guarantee(self, entry: TierEntry) -> None:
        entry.guaranteed = False
        del entry.tenant.guaranteed[entry]
        entry.tenant.pinned_bytes -= entry.charge
        self.pinned_bytes -= entry.charge
        self._freed = True
        for bundle in entry.bundles:
            bundle.tiers[self._name].guaranteed -= 1

"""Quotas and pin budgets of tenants in one tier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dataplane.core.tenants.tenant import Tenant
from dataplane.core.tiering.contents import TierShare


def shares_in(name: str, tenants: Iterable[Tenant]) -> dict[str, TierShare]:
    """Return the quotas that are enforced in the tier of this name, by salt."""
    return {
        tenant.salt: TierShare(
            quota.floor_bytes, quota.limit_bytes, tenant.spec.weight, rejects=tenant.spec.on_exceed == "reject"
        )
        for tenant in tenants
        if tenant.spec is not None and tenant.enforced and (quota := tenant.spec.tiers.get(name)) is not None
    }


def pin_budgets(tenants: Iterable[Tenant], shares: Mapping[str, TierShare]) -> dict[str, int]:
    """Return the bytes that guaranteed pins may hold in the tier, by salt, for tenants with a bound: the smaller of
    `pin_budget_bytes` of their quota and 90 % of their limit in the tier, so that pins leave room below the limit."""
    budgets: dict[str, int] = {}
    for tenant in tenants:
        if tenant.spec is None or not tenant.enforced:
            continue
        share = shares.get(tenant.salt)
        limit = None if share is None else share.limit_bytes
        bounds = [tenant.spec.pin_budget_bytes, None if limit is None else limit * 9 // 10]
        given = [bound for bound in bounds if bound is not None]
        if given:
            budgets[tenant.salt] = min(given)
    return budgets

"""Quotas: limits and guarantees of tenants, and how tenants use them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from app.errors import FloorsExceedCapacity
from app.ingest.fleet import FleetNode
from app.schemas.base.records import written
from app.schemas.records.quotas import QuotaAnswer, QuotaList, QuotaPut, QuotaRecord, TierQuotaPut
from app.services.base import checks
from app.services.base.changes import Change
from app.services.base.principals import PLANE, Principal
from app.services.records import ceilings
from app.services.records.record_types import PushedType, Values, checked, columns, defaults
from app.services.records.records import RecordService
from app.services.records.tenant_totals import TenantTotals, totals_by_tenant
from app.store.records import quotas
from app.store.records.quotas import QuotaRow
from dataplane.base.field_errors import MAX_SHOWN
from dataplane.base.labels import matches
from dataplane.base.units import format_exact_size as size
from dataplane.base.units import format_size
from dataplane.protocol.control.records import MAX_QUOTA_TIERS, MAX_WEIGHT, MIN_WEIGHT, QuotaSpec, TierQuota
from dataplane.protocol.salts import shown
from dataplane.protocol.tiers import EXPECTED_TIER_NAME, is_tier_name

QUOTAS = PushedType(
    name="quotas",
    noun="quota",
    row=QuotaRow,
    sortable=quotas.SORTABLE,
    key="tenant",
    put=QuotaPut,
    answer=QuotaAnswer,
    listing=QuotaList,
    written=written(QuotaRecord),
)
SHARE = QuotaPut.AT_LEAST_ONE
"""Fields of an intent that nodes receive."""
DEFAULTS = defaults(QuotaPut, QuotaSpec)
_OTHERS = tuple(name for name in QuotaPut.__struct_fields__ if name not in SHARE)
_REPORTED = ("blocks", "pinned_bytes", "over_limit", "would_refuse_blocks", "refused_blocks", "refused")
Floor = tuple[Mapping[str, str] | None, int]
"""Selector of a quota, and the bytes that it guarantees; 0 when the floor is not enforced."""


class Quotas(RecordService[QuotaRow, QuotaPut, QuotaAnswer]):
    kind = QUOTAS

    async def _columns(self, name: str, intent: QuotaPut, by: Principal) -> Values:
        return resolve(name, intent)

    async def _store(self, change: Change, key: str, row: QuotaRow | None, values: Values) -> QuotaRow:
        """Check the tenant's ceiling, and that no connected node is too small for a floor that grows."""
        before = None if row is None else QUOTAS.audited(row)
        await ceilings.check_quota(change, key, before, values)
        was, floor = floor_of(before), floor_of(values)
        nodes = self._fleet.connected()
        if nodes and floor[1] and (was[0] != floor[0] or floor[1] > was[1]):
            other_floors = await quotas.floors(change.session, excluded=key)
            if message := excess([*other_floors, was], [*other_floors, floor], nodes, whole=change.by.salts is None):
                raise FloorsExceedCapacity.at("floor_bytes", message)
        return await super()._store(change, key, row, values)

    async def remove(self, change: Change, row: QuotaRow) -> None:
        """Delete a record. Raises Forbidden."""
        await ceilings.check_quota(change, row.tenant, QUOTAS.audited(row), None)
        await super().remove(change, row)

    def answers(self, rows: Sequence[QuotaRow], by: Principal = PLANE) -> list[QuotaAnswer]:
        """Return records with what the nodes report about their tenants."""
        totals = totals_by_tenant(self._fleet.stats(), {shown(row.tenant) for row in rows})
        reported = [{tier.name for tier in stats.tiers} for stats in self._fleet.stats()]
        answers = []
        for row in rows:
            now, status = totals.get(shown(row.tenant), TenantTotals()), self._status(row, by)
            if reported and (unknown := sorted(row.tiers.keys() - set().union(*reported))):
                accepted = status.conditions[0]
                message = f"{accepted.message}; no node reports a tier called {', '.join(map(repr, unknown))}"
                status.conditions[0] = msgspec.structs.replace(accepted, message=message)
            answers.append(
                QuotaAnswer(
                    **QUOTAS.described(row),
                    used_bytes=now.bytes,
                    effective_floor_bytes=now.effective_floor(row.floor_bytes),
                    **columns(now, _REPORTED),
                    status=status,
                )
            )
        return answers


# ---- the rules of one quota


def resolve(tenant: str, intent: QuotaPut) -> Values:
    """Return the columns of the checked intent. Raises Invalid with every fault found."""
    faults = checks.Faults()
    salt = faults.check("tenant", lambda: checks.new_tenant(tenant))
    share = {name: value for name in SHARE if (value := getattr(intent, name)) is not msgspec.UNSET}
    if not share:
        faults.add("limit_bytes", f"expected at least one of {', '.join(SHARE)}")
    for name, value in share.items():
        if name.endswith("_bytes"):
            share[name] = faults.check(name, _size_of(value))
    if "tiers" in share:
        share["tiers"] = _tiers(share["tiers"], faults)
    other_columns = checked(columns(intent, _OTHERS), faults)
    faults.stop()
    assert salt is not None
    spec = QuotaSpec(tenant=salt, **share)
    _check(spec, faults)
    faults.stop()
    return {**msgspec.structs.asdict(spec), "tiers": msgspec.to_builtins(spec.tiers), **other_columns}


def _tiers(shares: Mapping[str, TierQuotaPut], faults: checks.Faults) -> dict[str, TierQuota]:
    """Return the shares in tiers, by name in order, so that equal shares are stored as equal texts."""
    tier_quotas: dict[str, TierQuota] = {}
    if len(shares) > MAX_QUOTA_TIERS:
        faults.add("tiers", f"expected at most {MAX_QUOTA_TIERS} tiers, got {len(shares)}")
        return tier_quotas
    for name, share in sorted(shares.items()):
        path = f"tiers.{name}"
        if not is_tier_name(name):
            faults.add("tiers", f"{EXPECTED_TIER_NAME}, got {name[:MAX_SHOWN]!r}")
            continue
        floor = faults.check(f"{path}.floor_bytes", _size_of(share.floor_bytes)) or 0
        limit = faults.check(f"{path}.limit_bytes", _size_of(share.limit_bytes))
        if limit is not None and floor > limit:
            message = f"expected at most limit_bytes, {size(limit)}, got {size(floor)}"
            faults.add(f"{path}.floor_bytes", message)
        tier_quotas[name] = TierQuota(floor, limit)
    return tier_quotas


def _size_of(value: int | str | None) -> Callable[[], int | None]:
    return lambda: checks.size(value)


def _check(spec: QuotaSpec, faults: checks.Faults) -> None:
    limit, floor, budget = spec.limit_bytes, spec.floor_bytes, spec.pin_budget_bytes
    if limit is not None and floor > limit:
        faults.add("floor_bytes", f"expected at most limit_bytes, {size(limit)}, got {size(floor)}")
    if budget is not None and floor and budget > floor:
        faults.add("pin_budget_bytes", f"expected at most floor_bytes, {size(floor)}, got {size(budget)}")
    elif budget is not None and limit is not None and budget > limit:
        faults.add("pin_budget_bytes", f"expected at most limit_bytes, {size(limit)}, got {size(budget)}")
    if not MIN_WEIGHT <= spec.weight <= MAX_WEIGHT:
        faults.add("weight", f"expected {MIN_WEIGHT:g} to {MAX_WEIGHT:g}, got {spec.weight:g}")
    if spec.store_rate_bytes is not None and spec.store_rate_bytes < 1:
        faults.add(
            "store_rate_bytes", f"expected at least 1 byte a second, or null for no bound, got {spec.store_rate_bytes}"
        )


# ---- floors of all quotas


def floor_of(values: Mapping[str, Any] | None) -> Floor:
    """Return the floor of a quota; None has none."""
    if values is None or values["mode"] != "enforce":
        return None, 0
    return values["selector"], values["floor_bytes"]


def excess(
    before: Iterable[Floor], after: Iterable[Floor], nodes: Sequence[FleetNode], *, whole: bool = True
) -> str | None:
    """Return why these floors exceed the capacity of a connected node; None if they fit.

    Floors that were too large before may stay, and shrink. Without a connected node, nodes check later. Unless the
    caller may see the `whole`, the message has no number: with its own floor, the caller could compute the sum of all
    others.
    """
    for node in nodes:
        total, capacity = _sum(after, node), _capacity(node)
        if total > max(capacity, _sum(before, node)):
            if not whole:
                return "this floor does not fit beside the floors of other tenants; ask an admin"
            return (
                f"the floors of all tenants would be {format_size(total)} ({total} bytes) on {node.name}, which holds "
                f"{format_size(capacity)} ({capacity} bytes)"
            )
    return None


def _sum(floors: Iterable[Floor], node: FleetNode) -> int:
    return sum(size for selector, size in floors if size and matches(node.labels, selector))


def _capacity(node: FleetNode) -> int:
    return node.capacity_bytes if node.stats is None else node.stats.pool.capacity_bytes

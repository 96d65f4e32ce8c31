"""A requested quota, checked: sizes are parsed, and the fields must be consistent."""

from collections.abc import Callable, Mapping

import msgspec

from app.schemas.base.fields import MAX_WEIGHT, MIN_WEIGHT
from app.schemas.base.records import written
from app.schemas.records.quotas import QuotaAnswer, QuotaList, QuotaPut, QuotaRecord, TierQuotaPut
from app.services.base import checks
from app.services.records.record_types import PushedType, Values, checked, columns, defaults
from app.store.records import quotas
from app.store.records.quotas import QuotaRow
from dataplane.base.field_errors import MAX_SHOWN
from dataplane.base.units import format_exact_size as size
from dataplane.protocol.control.records import MAX_QUOTA_TIERS, QuotaSpec, TierQuota
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

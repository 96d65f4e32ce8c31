"""A requested quota, checked: sizes are parsed, and the fields must be consistent."""

from collections.abc import Callable

import msgspec

from app.schemas.base.records import written
from app.schemas.records.quotas import QuotaPut, QuotaRecord
from app.services.base import checks
from app.services.records.record_types import PushedType, Values, checked, columns, defaults
from app.store.records.quotas import QuotaRow
from dataplane.base.units import format_exact_size as said
from dataplane.protocol.control import QuotaSpec

QUOTAS = PushedType(
    name="quotas", noun="quota", row=QuotaRow, key="tenant", put=QuotaPut, written=written(QuotaRecord)
)
MIN_WEIGHT, MAX_WEIGHT = 0.01, 1000.0
SHARE = QuotaSpec.__struct_fields__[1:]
"""Fields of an intent that nodes receive."""
DEFAULTS = defaults(QuotaPut, QuotaSpec)
_OTHERS = tuple(name for name in QuotaPut.__struct_fields__ if name not in SHARE)


def resolve(tenant: str, intent: QuotaPut) -> Values:
    """Return the columns of the checked intent. Raises Invalid with every fault found."""
    faults = checks.Faults()
    salt = faults.check("tenant", lambda: checks.new_tenant(tenant))
    given = {name: value for name in SHARE if (value := getattr(intent, name)) is not msgspec.UNSET}
    if not given:
        faults.add("limit_bytes", f"expected at least one of {', '.join(SHARE)}")
    for name, value in given.items():
        if name.endswith("_bytes"):
            given[name] = faults.check(name, _size_of(value))
    others = checked(columns(intent, _OTHERS), faults)
    faults.stop()
    assert salt is not None
    spec = QuotaSpec(tenant=salt, **given)
    _check(spec, faults)
    faults.stop()
    return {**msgspec.structs.asdict(spec), **others}


def _size_of(value: int | str | None) -> Callable[[], int | None]:
    return lambda: checks.size(value)


def _check(spec: QuotaSpec, faults: checks.Faults) -> None:
    limit, floor, budget = spec.limit_bytes, spec.floor_bytes, spec.pin_budget_bytes
    if limit is not None and floor > limit:
        faults.add("floor_bytes", f"expected at most limit_bytes, {said(limit)}, got {said(floor)}")
    if budget is not None and floor and budget > floor:
        faults.add("pin_budget_bytes", f"expected at most floor_bytes, {said(floor)}, got {said(budget)}")
    elif budget is not None and limit is not None and budget > limit:
        faults.add("pin_budget_bytes", f"expected at most limit_bytes, {said(limit)}, got {said(budget)}")
    if not MIN_WEIGHT <= spec.weight <= MAX_WEIGHT:
        faults.add("weight", f"expected {MIN_WEIGHT:g} to {MAX_WEIGHT:g}, got {spec.weight:g}")
    if spec.store_rate_bytes is not None and spec.store_rate_bytes < 1:
        faults.add(
            "store_rate_bytes",
            f"expected at least 1 byte a second, or null for no bound, got {spec.store_rate_bytes}",
        )

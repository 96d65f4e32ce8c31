"""A requested quota, checked: sizes are parsed, and the fields must be consistent."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from app.errors import Invalid
from app.schemas.records.quotas import QuotaPut
from app.services.base import checks
from dataplane.base.units import format_exact_size as said
from dataplane.protocol.control import QuotaSpec

MIN_WEIGHT, MAX_WEIGHT = 0.01, 1000.0
SHARE = (
    "limit_bytes",
    "floor_bytes",
    "weight",
    "pin_budget_bytes",
    "store_rate_bytes",
    "on_exceed",
    "mode",
)
"""Fields of an intent that nodes receive."""


@dataclass(frozen=True)
class QuotaIntent:
    """Values of a quota record."""

    spec: QuotaSpec
    note: str
    managed_by: str
    selector: dict[str, str] | None


def resolve(tenant: str, intent: QuotaPut) -> QuotaIntent:
    """Return the checked intent. Raises Invalid with every fault found."""
    faults = checks.Faults()
    salt = faults.check("tenant", lambda: checks.new_tenant(tenant))
    given = {name: value for name in SHARE if (value := getattr(intent, name)) is not msgspec.UNSET}
    if not given:
        faults.add("limit_bytes", f"expected at least one of {', '.join(SHARE)}")
    for name in ("limit_bytes", "floor_bytes", "pin_budget_bytes", "store_rate_bytes"):
        if name in given:
            given[name] = faults.check(name, _size_of(given[name]))
    note = faults.check("note", lambda: checks.note(intent.note))
    managed_by = faults.check("managed_by", lambda: checks.managed_by(intent.managed_by))
    selector = faults.check("selector", lambda: checks.labels(intent.selector))
    if faults.errors or salt is None or note is None or managed_by is None:
        faults.stop()
        raise Invalid("the quota is not valid", faults.errors)
    spec = QuotaSpec(tenant=salt, **given)
    _check(spec, faults)
    faults.stop()
    return QuotaIntent(spec, note, managed_by, selector)


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

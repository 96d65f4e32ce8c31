"""Ceilings: records that limit what callers limited to a tenant may request, and the checks against them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from app.errors import FieldError, Forbidden
from app.schemas.records.ceilings import CeilingAnswer, CeilingList, CeilingPut
from app.services.base import checks
from app.services.base.changes import Change
from app.services.base.durations import span
from app.services.base.expiry import ttl
from app.services.base.merge import patched
from app.services.base.principals import PLANE, Principal
from app.services.records.record_types import RecordType, Values, checked
from app.services.records.records import RecordService
from app.store.records import ceilings
from app.store.records.ceilings import CeilingRow
from dataplane.base.units import format_exact_size, format_size
from dataplane.protocol.control.records import Strength
from dataplane.protocol.salts import shown

SIZES = ("max_limit_bytes", "max_floor_bytes", "max_pin_budget_bytes", "max_store_rate_bytes")
STRENGTHS: tuple[Strength, ...] = ("soft", "guaranteed")
"""Strengths that callers limited to tenants may give a pin if no ceiling says otherwise."""
MAX_BYTES = 1 << 60
_BOUNDED = (*SIZES, "max_weight")
_DEFAULTS: Mapping[str, Any] = {"floor_bytes": 0, "weight": 1.0, "mode": "enforce"}
"""Quota of a tenant that has none: no bounds."""
CEILINGS = RecordType(
    noun="ceiling",
    row=CeilingRow,
    sortable=ceilings.SORTABLE,
    key="tenant",
    put=CeilingPut,
    answer=CeilingAnswer,
    listing=CeilingList,
    written=CeilingPut.__struct_fields__,
    hint=lambda _tenant: (
        f"; without one, callers who are limited to the tenant may pin ({' and '.join(STRENGTHS)}), "
        "and not change its quota"
    ),
)


class Ceilings(RecordService[CeilingRow, CeilingPut, CeilingAnswer]):
    """Also the callers that a ceiling binds see it."""

    kind = CEILINGS

    async def _columns(self, name: str, intent: CeilingPut, by: Principal) -> Values:
        salt = checks.valid("tenant", lambda: checks.new_tenant(name))
        faults = checks.Faults()
        sizes = {field: faults.check(field, partial(_size, getattr(intent, field))) for field in SIZES}
        if intent.max_weight is not None and not 0.01 <= intent.max_weight <= 1000:
            faults.add("max_weight", f"expected 0.01 to 1000, got {intent.max_weight:g}")
        if (max_ttl_s := intent.max_ttl_s) is not None:
            faults.check("max_ttl_s", lambda: ttl(max_ttl_s))
        for field in intent.no_bound:
            if getattr(intent, field) is not None:
                faults.add("no_bound", f"{field} has a bound: leave it out of here, or give {field} no value")
        values = {"tenant": salt, **checked(msgspec.structs.asdict(intent), faults), **sizes}
        faults.stop()
        values["strengths"] = None if intent.strengths is None else sorted(set(intent.strengths))
        values["no_bound"] = sorted(set(intent.no_bound) - {"max_ttl_s"})
        return values

    async def _patched(self, row: CeilingRow, patch: dict[str, Any], change: Change) -> Values:
        current = CEILINGS.as_put(row)
        if "no_bound" not in patch:  # a field that gets a bound by this patch leaves the list
            current["no_bound"] = [name for name in row.no_bound or () if patch.get(name) is None]
        return await self._columns(shown(row.tenant), patched(CeilingPut, current, patch), change.by)

    def answers(self, rows: Sequence[CeilingRow], by: Principal = PLANE) -> list[CeilingAnswer]:
        """Return ceilings; callers limited to tenants do not see the note, which is for admins."""
        return [
            CeilingAnswer(
                **{
                    **CEILINGS.described(row),
                    "no_bound": [*(row.no_bound or ()), *(["max_ttl_s"] if row.max_ttl_s is None else [])],
                    "note": row.note if by.salts is None else "",
                }
            )
            for row in rows
        ]


async def check_quota(
    change: Change, salt: str, current: Mapping[str, Any] | None, request: Mapping[str, Any] | None
) -> None:
    """Refuse a quota above the tenant's ceiling to a caller who is limited to tenants. `request` None deletes the
    quota. Unchanged fields are not checked. Raises Forbidden."""
    if change.by.salts is None:
        return
    change.by.check_salt(salt)
    row = await change.session.get(CeilingRow, salt)
    if row is None:
        raise Forbidden(
            f"the tenant {shown(salt)!r} has no ceiling, so this token may not change its quota; an admin sets one: "
            f"'larder ceilings set {shown(salt)}'"
        )
    requested = _DEFAULTS if request is None else request
    faults = [fault for name in _BOUNDED if (fault := _above(name, row, current, requested)) is not None]
    was = _DEFAULTS if current is None else current
    if requested.get("mode") != was.get("mode") and requested.get("mode") != "enforce":
        faults.append(FieldError("mode", "'observe' lifts every bound: only callers of all tenants may set it"))
    if (requested.get("tiers") or {}) != (was.get("tiers") or {}):
        faults.append(FieldError("tiers", "a ceiling has no bounds in tiers: only callers of all tenants may set them"))
    if requested.get("selector") != was.get("selector"):
        faults.append(
            FieldError(
                "selector", "a selector exempts other nodes from the quota: only callers of all tenants may set it"
            )
        )
    if faults:
        raise Forbidden("; ".join(f"{fault.path}: {fault.message}" for fault in faults), faults)


async def check_pin(change: Change, salt: str, selector: Mapping[str, str] | None, values: Mapping[str, Any]) -> None:
    """Refuse a pin beyond the tenant's ceiling, and a changed selector, to a caller who is limited to tenants.
    `selector`: of the pin as it is; `values`: its columns as they will be. Raises Forbidden."""
    if change.by.salts is None:
        return
    if (selector or None) != (values["selector"] or None):
        message = "labels of nodes belong to the fleet: only callers of all tenants may set a pin's selector"
        raise Forbidden.at("selector", message)
    change.by.check_salt(salt)
    row = await change.session.get(CeilingRow, salt)
    strength = values["strength"]
    allowed = STRENGTHS if row is None or row.strengths is None else tuple(row.strengths)
    if strength not in allowed:
        message = f"expected {' or '.join(allowed) or 'none: no pins'} (the tenant's ceiling), got {strength}"
        raise Forbidden.at("strength", message)
    max_ttl_s = None if row is None else row.max_ttl_s
    ends_in_s = None if values["expires_at"] is None else values["expires_at"] - change.now
    if max_ttl_s is not None and (ends_in_s is None or ends_in_s > max_ttl_s):
        requested_end = "no end" if ends_in_s is None else span(round(ends_in_s))
        raise Forbidden.at(
            "ttl_s", f"expected an end within {span(max_ttl_s)}: the tenant's ceiling; got {requested_end}"
        )


def _above(
    name: str, row: CeilingRow, current: Mapping[str, Any] | None, requested: Mapping[str, Any]
) -> FieldError | None:
    """Return the error for a field above its ceiling, or for a raised field without a ceiling; None if it is
    allowed."""
    field = name.removeprefix("max_")
    value, ceiling = requested.get(field), getattr(row, name)
    if ceiling is None and name in (row.no_bound or ()):
        return None
    if current is not None and value == current.get(field):
        return None
    bound = "the tenant's ceiling"
    if ceiling is None:
        ceiling = (_DEFAULTS if current is None else current).get(field)
        bound = "the current value: the tenant's ceiling sets no bound for it, so it can only be lowered"
    if value == ceiling or (value is not None and (ceiling is None or value <= ceiling)):
        return None
    format_value = format_size if field.endswith("_bytes") else "{:g}".format
    value_text = "no bound" if value is None else format_value(value)
    return FieldError(field, f"expected at most {format_value(ceiling)} ({bound}), got {value_text}")


def _size(value: int | str | None) -> int | None:
    size = checks.size(value)
    if size is not None and size > MAX_BYTES:
        raise ValueError(f"expected at most {format_exact_size(MAX_BYTES)}, got {format_exact_size(size)}")
    return size

"""Ceilings: records that limit what callers limited to a tenant may request, and the checks against them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from app.errors import FieldError, Forbidden
from app.observe.catalogue.records import CeilingChanged, CeilingCreated, CeilingDeleted
from app.schemas.base.listing import PageRequest
from app.schemas.records.ceilings import CeilingAnswer, CeilingList, CeilingPut
from app.services.base import checks
from app.services.base.changes import Change, Changes
from app.services.base.durations import span
from app.services.base.expiry import ttl
from app.services.base.merge import patched
from app.services.base.preconditions import Precondition
from app.services.base.principals import Principal
from app.services.records.record_types import RecordType, checked
from app.store.base.database import Database
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
_UNASKED: Mapping[str, Any] = {"floor_bytes": 0, "weight": 1.0, "mode": "enforce"}
"""Quota of a tenant that has none: no bounds."""
CEILINGS = RecordType(
    noun="ceiling",
    events=(CeilingCreated, CeilingChanged, CeilingDeleted),
    row=CeilingRow,
    sortable=ceilings.SORTABLE,
    key="tenant",
    put=CeilingPut,
    written=CeilingPut.__struct_fields__,
    hint=lambda _tenant: (
        f"; without one, callers who are limited to the tenant may pin ({' and '.join(STRENGTHS)}), "
        "and not change its quota"
    ),
)


class Ceilings:
    """Ceiling operations: get, also for the callers that a ceiling binds; put, patch and delete, for admins."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self._changes = changes

    async def get(self, tenant: str, by: Principal) -> CeilingAnswer:
        """Return the tenant's ceiling. Raises Invalid, Forbidden, NotFound."""
        salt = checks.tenant_in_path(tenant)
        by.check_salt(salt)
        row = await CEILINGS.read(self._database, salt)
        return _seen(row, by)

    async def page(self, page_request: PageRequest, by: Principal) -> CeilingList:
        """Return a page of the ceilings that the caller may see. Raises Invalid."""
        page = await CEILINGS.page(self._database, page_request, salts=by.salts)
        return CeilingList([_seen(row, by) for row in page.rows], page.total, page.next_cursor)

    async def put(
        self, tenant: str, request: CeilingPut, by: Principal, expected: Precondition, *, dry_run: bool = False
    ) -> tuple[CeilingAnswer, bool]:
        """Store the record unless it is a dry run. Return it and whether it is new. Raises Invalid, PreconditionFailed,
        PreconditionRequired."""
        salt = checks.valid("tenant", lambda: checks.new_tenant(tenant))
        values = _checked(request)
        async with self._changes.begin(by, dry_run=dry_run) as change:
            row = await change.session.get(CeilingRow, salt)
            CEILINGS.check_state(expected, salt, row)
            made = CEILINGS.write(change, salt, row, values)
        return _answer(made), row is None

    async def patch(
        self, tenant: str, patch: dict[str, Any], by: Principal, expected: Precondition, *, dry_run: bool = False
    ) -> CeilingAnswer:
        """Apply a JSON merge patch. Raises what `put` raises, and NotFound."""
        salt = checks.tenant_in_path(tenant)
        async with self._changes.begin(by, dry_run=dry_run) as change:
            row = await CEILINGS.existing(change, salt, expected)
            current = CEILINGS.as_put(row)
            if "no_bound" not in patch:  # a field that gets a bound by this patch leaves the list
                current["no_bound"] = [name for name in row.no_bound or () if patch.get(name) is None]
            made = CEILINGS.write(change, salt, row, _checked(patched(CeilingPut, current, patch)))
        return _answer(made)

    async def delete(self, tenant: str, by: Principal, expected: Precondition) -> None:
        """Delete the record. Raises Invalid, NotFound, PreconditionFailed, PreconditionRequired."""
        salt = checks.tenant_in_path(tenant)
        async with self._changes.begin(by) as change:
            await CEILINGS.remove(change, await CEILINGS.existing(change, salt, expected))


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
    wish = _UNASKED if request is None else request
    faults = [fault for name in _BOUNDED if (fault := _above(name, row, current, wish)) is not None]
    was = _UNASKED if current is None else current
    if wish.get("mode") != was.get("mode") and wish.get("mode") != "enforce":
        faults.append(FieldError("mode", "'observe' lifts every bound: only callers of all tenants may set it"))
    if (wish.get("tiers") or {}) != (was.get("tiers") or {}):
        faults.append(FieldError("tiers", "a ceiling has no bounds in tiers: only callers of all tenants may set them"))
    if wish.get("selector") != was.get("selector"):
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
    most = None if row is None else row.max_ttl_s
    ends_in_s = None if values["expires_at"] is None else values["expires_at"] - change.now
    if most is not None and (ends_in_s is None or ends_in_s > most):
        got = "no end" if ends_in_s is None else span(round(ends_in_s))
        raise Forbidden.at("ttl_s", f"expected an end within {span(most)}: the tenant's ceiling; got {got}")


def _above(name: str, row: CeilingRow, current: Mapping[str, Any] | None, wish: Mapping[str, Any]) -> FieldError | None:
    """Return the error for a field above its ceiling, or for a raised field without a ceiling; None if it is
    allowed."""
    field = name.removeprefix("max_")
    value, ceiling = wish.get(field), getattr(row, name)
    if ceiling is None and name in (row.no_bound or ()):
        return None
    if current is not None and value == current.get(field):
        return None
    bound = "the tenant's ceiling"
    if ceiling is None:
        ceiling = (_UNASKED if current is None else current).get(field)
        bound = "the current value: the tenant's ceiling sets no bound for it, so it can only be lowered"
    if value == ceiling or (value is not None and (ceiling is None or value <= ceiling)):
        return None
    say = format_size if field.endswith("_bytes") else "{:g}".format
    got = "no bound" if value is None else say(value)
    return FieldError(field, f"expected at most {say(ceiling)} ({bound}), got {got}")


def _checked(request: CeilingPut) -> dict[str, Any]:
    """Return the checked values of a request. Raises Invalid."""
    faults = checks.Faults()
    values: dict[str, Any] = {}
    for name in SIZES:
        values[name] = faults.check(name, partial(_size, getattr(request, name)))
    if request.max_weight is not None and not 0.01 <= request.max_weight <= 1000:
        faults.add("max_weight", f"expected 0.01 to 1000, got {request.max_weight:g}")
    if (most := request.max_ttl_s) is not None:
        faults.check("max_ttl_s", lambda: ttl(most))
    for name in request.no_bound:
        if getattr(request, name) is not None:
            faults.add("no_bound", f"{name} has a bound: leave it out of here, or give {name} no value")
    values = {**checked(msgspec.structs.asdict(request), faults), **values}
    faults.stop()
    values["strengths"] = None if request.strengths is None else sorted(set(request.strengths))
    values["no_bound"] = sorted(set(request.no_bound) - {"max_ttl_s"})
    return values


def _size(given: int | str | None) -> int | None:
    size = checks.size(given)
    if size is not None and size > MAX_BYTES:
        raise ValueError(f"expected at most {format_exact_size(MAX_BYTES)}, got {format_exact_size(size)}")
    return size


def _answer(row: CeilingRow) -> CeilingAnswer:
    values = CEILINGS.described(row, ("tenant", *CEILINGS.written, "revision"))
    values["no_bound"] = [*(row.no_bound or ()), *(["max_ttl_s"] if row.max_ttl_s is None else [])]
    return CeilingAnswer(**values)


def _seen(row: CeilingRow, by: Principal) -> CeilingAnswer:
    """Return the answer; callers limited to tenants do not see the note, which is for admins."""
    answer = _answer(row)
    return answer if by.salts is None else msgspec.structs.replace(answer, note="")

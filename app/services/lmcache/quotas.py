"""LMCache's quotas mapped to Larder's: `limit_gb` is the `limit_bytes` of a tenant's record, and nothing else.

LMCache sees a quota where a record has a limit. Deleting the quota leaves the other fields of the record as they are; a
record without other fields is deleted.
"""

from contextlib import suppress
from math import isfinite
from typing import Any

from app.errors import Conflict, FieldError, Invalid, NotFound, PreconditionFailed
from app.ingest.fleet import Fleet
from app.schemas.base.listing import PageRequest
from app.schemas.lmcache.objects import QuotaGot, QuotaRemoved, QuotaSet, QuotasListed, QuotaUsage
from app.schemas.records.quotas import QuotaAnswer, QuotaPut
from app.services.base import checks
from app.services.base.preconditions import Precondition
from app.services.base.principals import Principal
from app.services.records.quotas import DEFAULTS, QUOTAS, Quotas
from app.services.records.tenant_totals import totals_by_tenant
from dataplane.base.units import MAX_SIZE_BYTES
from dataplane.protocol.salts import shown

GIB = 1 << 30
APPLIED_S = 1.0
"""Seconds that a change waits for the nodes: LMCache's clients expect it to be in force once it is answered."""
ATTEMPTS = 5
"""Attempts to change a record that others change at the same time."""
_PAGE = 1000
_BUSY = "this tenant's quota keeps changing: try again"


class LmcacheQuotas:
    """LMCache's routes of quotas, on the quotas of Larder."""

    def __init__(self, quotas: Quotas, fleet: Fleet) -> None:
        self._quotas = quotas
        self._fleet = fleet

    async def put(self, name: str, body: Any, by: Principal) -> QuotaSet:
        """Set a limit. Raises Invalid, Forbidden, Conflict."""
        limit_gb = _limit(body)
        salt = shown(checks.tenant_in_path(name))
        limit_bytes = int(limit_gb * GIB)
        for _ in range(ATTEMPTS):
            with suppress(NotFound):
                await self._quotas.patch(salt, {"limit_bytes": limit_bytes}, by, wait_s=APPLIED_S)
                return QuotaSet(salt, limit_gb)
            with suppress(PreconditionFailed):  # another client created it meanwhile: try again
                intent = QuotaPut(limit_bytes=limit_bytes)
                await self._quotas.put(salt, intent, by, Precondition(absent=True), APPLIED_S)
                return QuotaSet(salt, limit_gb)
        raise Conflict(_BUSY)

    async def get(self, name: str, by: Principal) -> QuotaGot:
        """Return the limit and the use of a tenant. Raises Invalid, Forbidden."""
        salt = shown(checks.tenant_in_path(name))
        limit = None
        with suppress(NotFound):
            limit = (await self._quotas.get(salt, by)).limit_bytes
        totals = totals_by_tenant(self._fleet.stats()).get(salt)
        used = 0 if totals is None else totals.bytes
        return QuotaGot(salt, (limit or 0) / GIB, used / GIB, limit is not None)

    async def list(self, by: Principal) -> QuotasListed:
        """Return all limits that the caller may see."""
        users: dict[str, QuotaUsage] = {}
        page_request = PageRequest(_PAGE, "", "")
        while True:
            page = await self._quotas.page(page_request, {}, by)
            users |= {
                item.tenant: QuotaUsage(item.limit_bytes / GIB, item.used_bytes / GIB)
                for item in page.items
                if item.limit_bytes is not None
            }
            if not page.next_cursor:
                return QuotasListed(users)
            page_request = PageRequest(_PAGE, page.next_cursor, "")

    async def delete(self, name: str, by: Principal) -> QuotaRemoved:
        """Remove a limit. Raises Invalid, Forbidden, Conflict."""
        salt = shown(checks.tenant_in_path(name))
        for _ in range(ATTEMPTS):
            try:
                record = await self._quotas.get(salt, by)
            except NotFound:
                return QuotaRemoved(salt, "not_found")
            if record.limit_bytes is None:
                return QuotaRemoved(salt, "not_found")
            state = Precondition(frozenset({record.etag}))
            with suppress(NotFound, PreconditionFailed):  # another client changed it meanwhile: try again
                if _has_other_fields(record):
                    await self._quotas.patch(salt, {"limit_bytes": None}, by, state, APPLIED_S)
                else:
                    await self._quotas.delete(salt, by, state, APPLIED_S)
                return QuotaRemoved(salt, "removed")
        raise Conflict(_BUSY)


def _limit(body: Any) -> float:
    """Return `limit_gb` of a body, in GiB. Raises Invalid, in LMCache's words."""
    if not isinstance(body, dict) or "limit_gb" not in body:
        raise Invalid("body must be {'limit_gb': <float>}", [FieldError("limit_gb", "expected a number")])
    limit_value = body["limit_gb"]
    try:
        limit = float(limit_value)
    except (TypeError, ValueError, OverflowError):
        raise _invalid_limit("numeric") from None
    if isinstance(limit_value, bool):
        raise _invalid_limit("numeric")
    if not isfinite(limit):
        raise _invalid_limit("finite")
    if limit < 0:
        raise _invalid_limit("non-negative")
    if limit * GIB > MAX_SIZE_BYTES:
        raise _invalid_limit(f"at most {MAX_SIZE_BYTES // GIB}")
    return limit


def _invalid_limit(expected: str) -> Invalid:
    return Invalid(f"limit_gb must be {expected}", [FieldError("limit_gb", f"expected a number that is {expected}")])


def _has_other_fields(record: QuotaAnswer) -> bool:
    """Return whether a record has any field set besides its limit."""
    return any(getattr(record, name) != DEFAULTS[name] for name in QUOTAS.written if name != "limit_bytes")

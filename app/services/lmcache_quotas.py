"""LMCache's quotas are limits of Larder's: `limit_gb` is `limit_bytes` of a tenant's record, and nothing else of it.

There is a quota, to LMCache, where a record has a limit. Taking it away leaves the rest of a record as it is; a record
that says nothing else goes with it.
"""

from contextlib import suppress
from math import isfinite
from typing import Any

from app.errors import Conflict, FieldError, Invalid, NotFound, PreconditionFailed
from app.ingest.fleet import Fleet
from app.schemas.lmcache import QuotaGot, QuotaRemoved, QuotaSet, QuotasListed, QuotaUsage
from app.schemas.quotas import QuotaAnswer, QuotaPut
from app.services import checks
from app.services.callers import Caller
from app.services.preconditions import Expected
from app.services.quotas import Quotas
from app.services.standing import standings
from app.store.listing import Wanted
from app.store.quotas import Filters
from dataplane.protocol.salts import shown
from dataplane.protocol.units import MAX_SIZE_BYTES

GIB = 1 << 30
APPLIED_S = 1.0
"""How long a change waits for the nodes: to LMCache's clients it is in force once it is answered."""
ATTEMPTS = 5
"""To change a record that others change at the same time."""
_PAGE = 1000
_BUSY = "others change this tenant's quota all the time: try again"


class LmcacheQuotas:
    def __init__(self, quotas: Quotas, fleet: Fleet) -> None:
        self._quotas = quotas
        self._fleet = fleet

    async def put(self, name: str, body: Any, by: Caller) -> QuotaSet:
        """Set a limit. Raises Invalid, Forbidden, Conflict."""
        limit_gb = _limit(body)
        salt = shown(checks.tenant_in_path(name))
        limit_bytes = int(limit_gb * GIB)
        for _ in range(ATTEMPTS):
            with suppress(NotFound):
                await self._quotas.patch(salt, {"limit_bytes": limit_bytes}, by, wait_s=APPLIED_S)
                return QuotaSet(salt, limit_gb)
            with suppress(PreconditionFailed):  # somebody made it meanwhile
                intent = QuotaPut(limit_bytes=limit_bytes)
                await self._quotas.put(salt, intent, by, Expected(absent=True), APPLIED_S)
                return QuotaSet(salt, limit_gb)
        raise Conflict(_BUSY)

    async def get(self, name: str, by: Caller) -> QuotaGot:
        """Raises Invalid, Forbidden."""
        salt = shown(checks.tenant_in_path(name))
        limit = None
        with suppress(NotFound):
            limit = (await self._quotas.get(salt, by)).limit_bytes
        now = standings(self._fleet.stats()).get(salt)
        used = 0 if now is None else now.bytes
        return QuotaGot(salt, (limit or 0) / GIB, used / GIB, limit is not None)

    async def list(self, by: Caller) -> QuotasListed:
        """All limits that the caller sees."""
        users: dict[str, QuotaUsage] = {}
        wanted = Wanted(_PAGE, "", "")
        while True:
            page = await self._quotas.page(wanted, Filters(None, None), by)
            users |= {
                item.tenant: QuotaUsage(item.limit_bytes / GIB, item.used_bytes / GIB)
                for item in page.items
                if item.limit_bytes is not None
            }
            if not page.next_cursor:
                return QuotasListed(users)
            wanted = Wanted(_PAGE, page.next_cursor, "")

    async def delete(self, name: str, by: Caller) -> QuotaRemoved:
        """Take a limit away. Raises Invalid, Forbidden, Conflict."""
        salt = shown(checks.tenant_in_path(name))
        for _ in range(ATTEMPTS):
            try:
                record = await self._quotas.get(salt, by)
            except NotFound:
                return QuotaRemoved(salt, "not_found")
            if record.limit_bytes is None:
                return QuotaRemoved(salt, "not_found")
            state = Expected(frozenset({record.etag}))
            with suppress(NotFound, PreconditionFailed):  # else it was changed meanwhile
                if _says_more(record):
                    await self._quotas.patch(salt, {"limit_bytes": None}, by, state, APPLIED_S)
                else:
                    await self._quotas.delete(salt, by, state, APPLIED_S)
                return QuotaRemoved(salt, "removed")
        raise Conflict(_BUSY)


def _limit(body: Any) -> float:
    """`limit_gb` of a body, in GiB. Raises Invalid, in LMCache's words."""
    if not isinstance(body, dict) or "limit_gb" not in body:
        raise Invalid("body must be {'limit_gb': <float>}", [FieldError("limit_gb", "expected a number")])
    given = body["limit_gb"]
    try:
        limit = float(given)
    except (TypeError, ValueError, OverflowError):
        raise _wrong("numeric") from None
    if isinstance(given, bool):
        raise _wrong("numeric")
    if not isfinite(limit):
        raise _wrong("finite")
    if limit < 0:
        raise _wrong("non-negative")
    if limit * GIB > MAX_SIZE_BYTES:
        raise _wrong(f"at most {MAX_SIZE_BYTES // GIB}")
    return limit


def _wrong(expected: str) -> Invalid:
    return Invalid(
        f"limit_gb must be {expected}", [FieldError("limit_gb", f"expected a number that is {expected}")]
    )


def _says_more(record: QuotaAnswer) -> bool:
    """Whether a record says anything besides its limit."""
    return (
        record.floor_bytes != 0
        or record.weight != 1.0
        or record.pin_budget_bytes is not None
        or record.store_rate_bytes is not None
        or record.on_exceed != "evict_self"
        or record.mode != "enforce"
        or bool(record.note or record.managed_by or record.selector)
    )

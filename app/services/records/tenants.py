"""Tenants: reports of nodes, combined with records."""

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from app.errors import Conflict
from app.ingest.fleet import Fleet
from app.schemas.base.listing import PageRequest
from app.schemas.records.quotas import QuotaAnswer, QuotaPut
from app.schemas.records.tenants import AdoptPost, TenantAnswer, TenantList
from app.services.base import checks
from app.services.base.changes import Changes
from app.services.base.principals import Principal
from app.services.base.yielding import with_pauses
from app.services.records.quotas import Quotas, resolve
from app.services.records.record_types import columns
from app.services.records.tenant_totals import SUMMED, TenantTotals, totals_by_tenant
from app.store.base.database import Database
from app.store.base.listing import page_of
from app.store.records import pins, quotas
from app.store.records.quotas import QuotaRow, TenantShare
from dataplane.protocol.control.records import TierQuota
from dataplane.protocol.salts import shown
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.tenants import TenantStats

ANSWERS_AT_ONCE = 200
"""Number of answers that a thread builds between pauses: a few milliseconds."""
SORTABLE = (
    "tenant",
    *SUMMED,
    "limit_bytes",
    "floor_bytes",
    "effective_floor_bytes",
    "weight",
    "pin_budget_bytes",
    "store_rate_bytes",
    "pins",
    "hit_ratio",
)


_OF_THE_QUOTA = ("limit_bytes", "floor_bytes", "weight", "pin_budget_bytes", "store_rate_bytes", "on_exceed", "mode")


class Tenants:
    """List, get, adopt. A tenant exists when it holds blocks, has a pin or has a quota; nodes report only their largest
    tenants."""

    def __init__(self, database: Database, changes: Changes, fleet: Fleet, quota_service: Quotas) -> None:
        self._database = database
        self._changes = changes
        self._fleet = fleet
        self._quotas = quota_service

    async def page(self, page_request: PageRequest, managed: bool | None, by: Principal) -> TenantList:
        """Return a page of the tenants that the caller may see. Raises Invalid."""
        tenants = await known_tenants(self._database, self._fleet.stats(), by.salts)

        def make_page() -> TenantList:
            matches = [answer for answer in tenants if managed in (None, answer.managed)]
            page = page_of(matches, lambda answer: answer.tenant, _BY_NAME, page_request)
            return TenantList(list(page.rows), total=page.total, next_cursor=page.next_cursor)

        return await asyncio.to_thread(make_page)

    async def get(self, tenant: str, by: Principal) -> TenantAnswer:
        """Return the tenant. Raises Invalid, Forbidden, NotFound."""
        salt = checks.tenant_in_path(tenant)
        by.check_salt(salt)
        for answer in await known_tenants(self._database, self._fleet.stats(), frozenset({salt})):
            return answer
        raise checks.missing("tenant", tenant, "; a tenant is known once it holds blocks, or has a quota or a pin")

    async def adopt(self, tenant: str, request: AdoptPost, by: Principal, wait_s: float = 0.0) -> QuotaAnswer:
        """Create a quota record for a tenant that has none. Raises Invalid, Forbidden, NotFound, Conflict,
        FloorsExceedCapacity."""
        intent = resolve(tenant, QuotaPut(limit_bytes=None, floor_bytes=request.floor_bytes, note=request.note))
        salt = intent["tenant"]
        current = await self.get(tenant, by)
        async with self._changes.begin(by, "quotas") as change:
            row = await change.session.get(QuotaRow, salt)
            if row is not None:
                raise Conflict(
                    f"tenant {current.tenant!r} already has a quota; change it at /api/v1/quotas/{current.tenant}"
                )
            row = await self._quotas.write(change, salt, None, intent)
        return await self._quotas.settled(row, wait_s, by)


async def known_tenants(
    database: Database, stats: Sequence[NodeStats], salts: Collection[str] | None
) -> list[TenantAnswer]:
    """Return all tenants, or the known ones among these salts. The work is proportional to the requested tenants and
    runs in a thread, not on the event loop. Raises StoreUnavailable."""
    async with database.read() as session:
        rows = await quotas.shares(session, salts)
        pin_counts = await pins.counts(session, salts)
    only = None if salts is None else frozenset(map(shown, salts))
    return await asyncio.to_thread(merged, stats, rows, pin_counts, only)


def merged(
    stats: Iterable[NodeStats],
    rows: Sequence[TenantShare],
    pin_counts: Mapping[str, int],
    only: Container[str] | None = None,
) -> list[TenantAnswer]:
    """Return every tenant with blocks or counts, a quota or a pin. `pin_counts` are by salt, `only` by shown name.
    Nodes remember other tenants for a while, such as one whose quota was deleted; those are left out."""
    records = {shown(row.tenant): row for row in rows}
    pinned = {shown(salt): count for salt, count in pin_counts.items()}
    totals = {name: TenantTotals() for name in (*records, *pinned)}
    for name, now in totals_by_tenant(stats, only).items():
        if name in totals or not now.is_empty:
            totals[name] = now
    return [
        _answer(name, now, records.get(name), pinned.get(name, 0))
        for name, now in with_pauses(totals.items(), ANSWERS_AT_ONCE)
    ]


def _answer(name: str, now: TenantTotals, record: TenantShare | None, pin_count: int) -> TenantAnswer:
    share = record or now.latest or TenantStats(tenant=name)
    return TenantAnswer(
        tenant=name,
        **columns(share, _OF_THE_QUOTA),
        tiers={} if record is None else msgspec.convert(record.tiers, dict[str, TierQuota]),
        effective_floor_bytes=now.effective_floor(share.floor_bytes),
        over_limit=now.over_limit,
        limit_share=now.limit_share,
        refused=now.refused,
        missed_tokens=now.missed_tokens,
        managed=record is not None,
        note="" if record is None else record.note,
        pins=pin_count,
        hit_ratio=now.hit_blocks / now.requested_blocks if now.requested_blocks else None,
        **{field: getattr(now, field) for field in SUMMED},
    )


def _field(name: str) -> Callable[[TenantAnswer], Any]:
    return lambda answer: getattr(answer, name)


_BY_NAME = {name: _field(name) for name in SORTABLE}

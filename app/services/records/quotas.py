"""Quotas: limits and guarantees of tenants, and how tenants use them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.errors import FloorsExceedCapacity
from app.ingest.fleet import Fleet, FleetNode
from app.schemas.base.listing import PageRequest
from app.schemas.records.quotas import QuotaAnswer, QuotaFilters, QuotaList, QuotaPut, QuotaRecord
from app.services.base import checks
from app.services.base.changes import Change, Changes
from app.services.base.merge import patched
from app.services.base.preconditions import ANY, Precondition
from app.services.base.principals import Principal
from app.services.records import ceilings, owners
from app.services.records.progress import RecordProgress
from app.services.records.quota_intent import QUOTAS, resolve
from app.services.records.record_types import Values
from app.services.records.tenant_totals import TenantTotals, totals_by_tenant
from app.store.base.database import Database
from app.store.records import quotas
from app.store.records.quotas import QuotaRow
from dataplane.base.labels import matches
from dataplane.base.units import format_size
from dataplane.protocol.salts import shown

Floor = tuple[Mapping[str, str] | None, int]
"""Selector of a quota, and the bytes that it guarantees; 0 when the floor is not enforced."""


class Quotas:
    """Get, put, patch, delete; a put of an identical record changes nothing."""

    def __init__(self, database: Database, changes: Changes, progress: RecordProgress, fleet: Fleet) -> None:
        self._database = database
        self._changes = changes
        self._progress = progress
        self._fleet = fleet

    async def get(self, tenant: str, by: Principal) -> QuotaAnswer:
        """Return the tenant's quota. Raises Invalid, Forbidden, NotFound."""
        salt = checks.tenant_in_path(tenant)
        by.check_salt(salt)
        row = await QUOTAS.read(self._database, salt)
        return self.answers([row], by)[0]

    async def page(self, page_request: PageRequest, filters: QuotaFilters, by: Principal) -> QuotaList:
        """Return a page of quotas of the tenants that the caller may see. Raises Invalid."""
        page = await QUOTAS.page(self._database, page_request, vars(filters), by.salts)
        return QuotaList(self.answers(page.rows, by), page.total, page.next_cursor)

    async def put(
        self, tenant: str, intent: QuotaPut, by: Principal, expected: Precondition = ANY, wait_s: float = 0.0
    ) -> tuple[QuotaAnswer, bool]:
        """Store the record, and return it and whether it is new. Raises Invalid, Forbidden, PreconditionFailed,
        PreconditionRequired, FloorsExceedCapacity."""
        values = resolve(tenant, intent)
        salt = values["tenant"]
        by.check_salt(salt)
        async with self._changes.begin(by, "quotas") as change:
            row = await change.session.get(QuotaRow, salt)
            QUOTAS.check_state(expected, salt, row)
            created = row is None
            row = await self.write(change, row, values)
        return await self.settled(row, wait_s, by), created

    async def patch(
        self, tenant: str, patch: dict[str, Any], by: Principal, expected: Precondition = ANY, wait_s: float = 0.0
    ) -> QuotaAnswer:
        """Apply a JSON merge patch to the record. Raises what `put` raises, and NotFound."""
        salt = checks.tenant_in_path(tenant)
        by.check_salt(salt)
        async with self._changes.begin(by, "quotas") as change:
            row = await QUOTAS.existing(change, salt, expected)
            intent = patched(QuotaPut, QUOTAS.as_put(row), patch)
            row = await self.write(change, row, resolve(tenant, intent))
        return await self.settled(row, wait_s, by)

    async def settled(self, row: QuotaRow, wait_s: float, by: Principal) -> QuotaAnswer:
        """Return the record's answer after nodes applied or refused it, or after `wait_s` seconds."""
        await self._progress.wait("quotas", row.generation, wait_s)
        return self.answers([row], by)[0]

    async def write(self, change: Change, row: QuotaRow | None, values: Values) -> QuotaRow:
        """Write the intent to the record, within a change of `quotas`. Raises Forbidden, FloorsExceedCapacity."""
        salt = values["tenant"]
        before = None if row is None else QUOTAS.audited(row)
        owners.check(change.by, None if row is None else row.managed_by, values["managed_by"])
        await ceilings.check_quota(change, salt, before, values)
        await self._check_floors(change, values)
        return QUOTAS.write(change, salt, row, values)

    async def delete(self, tenant: str, by: Principal, expected: Precondition = ANY, wait_s: float = 0.0) -> None:
        """Delete the record. Raises Invalid, Forbidden, NotFound, PreconditionFailed, PreconditionRequired."""
        salt = checks.tenant_in_path(tenant)
        by.check_salt(salt)
        async with self._changes.begin(by, "quotas") as change:
            row = await QUOTAS.existing(change, salt, expected)
            await self.remove(change, row)
        await self._progress.wait("quotas", change.generations["quotas"], wait_s)

    async def remove(self, change: Change, row: QuotaRow) -> None:
        """Delete a record, within a change of `quotas`. Raises Forbidden."""
        await ceilings.check_quota(change, row.tenant, QUOTAS.audited(row), None)
        await QUOTAS.remove(change, row)

    async def _check_floors(self, change: Change, values: Values) -> None:
        """Refuse floors that grow beyond the capacity of a connected node."""
        nodes = self._fleet.connected()
        if not nodes or not _binding_floor(values):
            return
        before = await quotas.floors(change.session)
        after = {**before, values["tenant"]: (values["selector"], _binding_floor(values))}
        if message := excess(before, after, nodes, whole=change.by.salts is None):
            raise FloorsExceedCapacity.at("floor_bytes", message)

    def answers(self, rows: Sequence[QuotaRow], by: Principal) -> list[QuotaAnswer]:
        """Return records with what the nodes report about their tenants."""
        standing = totals_by_tenant(self._fleet.stats(), {shown(row.tenant) for row in rows})
        whole = by.salts is None
        reported = [{tier.name for tier in stats.tiers} for stats in self._fleet.stats()]
        return [
            self._answer(
                row,
                standing.get(shown(row.tenant), TenantTotals()),
                sorted(row.tiers.keys() - set().union(*reported)) if reported else [],
                whole=whole,
            )
            for row in rows
        ]

    def _answer(self, row: QuotaRow, now: TenantTotals, unknown_tiers: Sequence[str], *, whole: bool) -> QuotaAnswer:
        """`unknown_tiers`: tiers that the record names and no node reports."""
        status = self._progress.status(
            "quotas", row.generation, name=shown(row.tenant), selector=row.selector, since=row.updated_at, whole=whole
        )
        if unknown_tiers:
            accepted = status.conditions[0]
            message = f"{accepted.message}; no node reports a tier called {', '.join(map(repr, unknown_tiers))}"
            status.conditions[0] = msgspec.structs.replace(accepted, message=message)
        return QuotaAnswer(
            **QUOTAS.described(row, QuotaRecord.__struct_fields__),
            used_bytes=now.bytes,
            blocks=now.blocks,
            pinned_bytes=now.pinned_bytes,
            effective_floor_bytes=now.effective_floor(row.floor_bytes),
            over_limit=now.over_limit,
            would_refuse_blocks=now.would_refuse_blocks,
            refused_blocks=now.refused_blocks,
            refused=now.refused,
            status=status,
        )


def _binding_floor(values: Values) -> int:
    return values["floor_bytes"] if values["mode"] == "enforce" else 0


def excess(
    before: Mapping[str, Floor], after: Mapping[str, Floor], nodes: Sequence[FleetNode], *, whole: bool = True
) -> str | None:
    """Return why these floors, by tenant, exceed the capacity of a connected node; None if they fit.

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


def _sum(floors: Mapping[str, Floor], node: FleetNode) -> int:
    return sum(size for selector, size in floors.values() if size and matches(node.labels, selector))


def _capacity(node: FleetNode) -> int:
    return node.capacity_bytes if node.stats is None else node.stats.pool.capacity_bytes

"""Quotas: limits and guarantees of tenants, and how tenants use them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from app.errors import FloorsExceedCapacity
from app.ingest.fleet import FleetNode
from app.schemas.records.quotas import QuotaAnswer, QuotaPut
from app.services.base.changes import Change
from app.services.base.principals import PLANE, Principal
from app.services.records import ceilings
from app.services.records.quota_intent import QUOTAS, resolve
from app.services.records.record_types import Values, columns
from app.services.records.records import RecordService
from app.services.records.tenant_totals import TenantTotals, totals_by_tenant
from app.store.records import quotas
from app.store.records.quotas import QuotaRow
from dataplane.base.labels import matches
from dataplane.base.units import format_size
from dataplane.protocol.salts import shown

_REPORTED = ("blocks", "pinned_bytes", "over_limit", "would_refuse_blocks", "refused_blocks", "refused")
Floor = tuple[Mapping[str, str] | None, int]
"""Selector of a quota, and the bytes that it guarantees; 0 when the floor is not enforced."""


class Quotas(RecordService[QuotaRow, QuotaPut, QuotaAnswer]):
    kind = QUOTAS

    def _columns(self, name: str, intent: QuotaPut) -> Values:
        return resolve(name, intent)

    async def _check(self, change: Change, key: str, row: QuotaRow | None, values: Values) -> None:
        """Check the tenant's ceiling, and that no connected node is too small for a floor that grows."""
        before = None if row is None else QUOTAS.audited(row)
        await ceilings.check_quota(change, key, before, values)
        was, floor = (None, 0) if before is None else _floor(before), _floor(values)
        nodes = self._fleet.connected()
        if not nodes or not floor[1] or (was[0] == floor[0] and floor[1] <= was[1]):
            return
        other_floors = await quotas.floors(change.session, excluded=key)
        if message := excess([*other_floors, was], [*other_floors, floor], nodes, whole=change.by.salts is None):
            raise FloorsExceedCapacity.at("floor_bytes", message)

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


def _floor(values: Mapping[str, Any]) -> Floor:
    return values["selector"], values["floor_bytes"] if values["mode"] == "enforce" else 0


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

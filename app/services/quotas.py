"""Quotas: intent about tenants, and how tenants stand."""

from collections.abc import Sequence
from typing import Any, cast

from app.errors import FieldError, FloorsExceedCapacity
from app.ingest.fleet import Fleet
from app.schemas.quotas import QuotaAnswer, QuotaList, QuotaPut
from app.services import checks
from app.services.changes import Author, Change, Changes
from app.services.progress import Progress
from app.services.quota_intent import resolve
from app.services.tenants import Standing, standings
from app.store import quotas
from app.store.database import Database
from app.store.quotas import SPEC_COLUMNS, QuotaRow
from dataplane.protocol.control import Mode, OnExceed, QuotaSpec
from dataplane.protocol.salts import shown
from dataplane.protocol.units import format_size

_SHARE = tuple(name for name in SPEC_COLUMNS if name != "tenant")


class Quotas:
    """Get, put, delete; a put of what is already there changes nothing."""

    def __init__(self, database: Database, changes: Changes, progress: Progress, fleet: Fleet) -> None:
        self._database = database
        self._changes = changes
        self._progress = progress
        self._fleet = fleet

    async def get(self, tenant: str) -> QuotaAnswer:
        """Raises Invalid, NotFound."""
        salt = checks.tenant_in_path(tenant)
        async with self._database.read() as session:
            row = await quotas.get(session, salt)
        if row is None:
            raise checks.missing("quota for tenant", tenant)
        return self.answers([row])[0]

    async def page(self, limit: int, offset: int) -> QuotaList:
        async with self._database.read() as session:
            rows, total = await quotas.page(session, limit, offset)
        return QuotaList(self.answers(rows), total)

    async def put(
        self, tenant: str, intent: QuotaPut, by: Author, wait_s: float = 0.0
    ) -> tuple[QuotaAnswer, bool]:
        """The record, and whether it is new. Raises Invalid, FloorsExceedCapacity."""
        spec, note = resolve(tenant, intent)
        async with self._changes.begin("quotas", "quota", by) as change:
            row = await quotas.get(change.session, spec.tenant)
            created = row is None
            before = None if row is None else _audited(row)
            await self._check_floors(change, spec, 0 if row is None else _binding_floor(row))
            if row is None:
                row = QuotaRow(tenant=spec.tenant, created_at=change.now)
                change.session.add(row)
            for name in _SHARE:
                setattr(row, name, getattr(spec, name))
            row.note = note
            after = _audited(row)
            if before != after:
                row.generation, row.updated_at = change.generation, change.now
                change.made("create" if created else "update", shown(spec.tenant), before, after)
        if wait_s:
            await self._progress.wait("quotas", row.generation, wait_s)
        return self.answers([row])[0], created

    async def _check_floors(self, change: Change, spec: QuotaSpec, before: int) -> None:
        """Refuse a floor that grows beyond what the smallest connected node can hold; with no node, nodes tell."""
        floor = _binding_floor(spec)
        capacity = self._fleet.smallest_capacity()
        if floor <= before or capacity is None:
            return
        total = floor + await quotas.floors(change.session, besides=spec.tenant)
        if total > capacity:
            message = (
                f"the floors of all tenants would be {format_size(total)} ({total} bytes), and the smallest connected "
                f"node holds {format_size(capacity)} ({capacity} bytes)"
            )
            raise FloorsExceedCapacity(message, [FieldError("floor_bytes", message)])

    async def delete(self, tenant: str, by: Author, wait_s: float = 0.0) -> None:
        """Raises Invalid, NotFound."""
        salt = checks.tenant_in_path(tenant)
        async with self._changes.begin("quotas", "quota", by) as change:
            row = await quotas.get(change.session, salt)
            if row is None:
                raise checks.missing("quota for tenant", tenant)
            change.made("delete", shown(salt), _audited(row), None)
            await change.session.delete(row)
        if wait_s:
            await self._progress.wait("quotas", change.generation, wait_s)

    def answers(self, rows: Sequence[QuotaRow]) -> list[QuotaAnswer]:
        """Records with what the nodes say about their tenants."""
        standing = standings(self._fleet.stats())
        return [self._answer(row, standing.get(shown(row.tenant), Standing())) for row in rows]

    def _answer(self, row: QuotaRow, now: Standing) -> QuotaAnswer:
        return QuotaAnswer(
            tenant=shown(row.tenant),
            limit_bytes=row.limit_bytes,
            floor_bytes=row.floor_bytes,
            weight=row.weight,
            pin_budget_bytes=row.pin_budget_bytes,
            store_rate_bytes=row.store_rate_bytes,
            on_exceed=cast(OnExceed, row.on_exceed),
            mode=cast(Mode, row.mode),
            note=row.note,
            generation=row.generation,
            created_at=row.created_at,
            updated_at=row.updated_at,
            used_bytes=now.bytes,
            blocks=now.blocks,
            pinned_bytes=now.pinned_bytes,
            effective_floor_bytes=now.effective_floor(row.floor_bytes),
            over_limit=now.over_limit,
            would_refuse_blocks=now.would_refuse_blocks,
            refused_blocks=now.refused_blocks,
            refused=now.refused,
            status=self._progress.status("quotas", row.generation),
        )


def _binding_floor(share: QuotaRow | QuotaSpec) -> int:
    return share.floor_bytes if share.mode == "enforce" else 0


def _audited(row: QuotaRow) -> dict[str, Any]:
    return {**{name: getattr(row, name) for name in _SHARE}, "note": row.note}

"""Quotas: intent about tenants, and how tenants stand."""

from collections.abc import Sequence
from typing import Any

from app.ingest.fleet import Fleet
from app.schemas.quotas import QuotaAnswer, QuotaList, QuotaPut
from app.services import checks
from app.services.changes import Author, Changes
from app.services.progress import Progress
from app.store import quotas
from app.store.database import Database
from app.store.quotas import QuotaRow
from dataplane.protocol.salts import shown


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
        """The record, and whether it is new. Raises Invalid."""
        salt = checks.tenant_in_path(tenant)
        faults = checks.Faults()
        limit_bytes = faults.check("limit_bytes", lambda: checks.size(intent.limit_bytes))
        note = faults.check("note", lambda: checks.note(intent.note))
        faults.stop()
        async with self._changes.begin("quotas", "quota", by) as change:
            row = await quotas.get(change.session, salt)
            created = row is None
            if row is None:
                row = QuotaRow(tenant=salt, created_at=change.now)
                change.session.add(row)
            before = None if created else _audited(row)
            row.limit_bytes, row.note = limit_bytes, note or ""
            after = _audited(row)
            if before != after:
                row.generation, row.updated_at = change.generation, change.now
                change.made("create" if created else "update", shown(salt), before, after)
        if wait_s:
            await self._progress.wait("quotas", row.generation, wait_s)
        return self.answers([row])[0], created

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
        used: dict[str, tuple[int, int, bool]] = {}
        for stats in self._fleet.stats():
            for tenant in stats.tenants:
                size, blocks, over = used.get(tenant.tenant, (0, 0, False))
                used[tenant.tenant] = (size + tenant.bytes, blocks + tenant.blocks, over or tenant.over_limit)
        answers = []
        for row in rows:
            size, blocks, over = used.get(shown(row.tenant), (0, 0, False))
            answers.append(
                QuotaAnswer(
                    tenant=shown(row.tenant),
                    limit_bytes=row.limit_bytes,
                    note=row.note,
                    generation=row.generation,
                    created_at=row.created_at,
                    updated_at=row.updated_at,
                    used_bytes=size,
                    blocks=blocks,
                    over_limit=over,
                    status=self._progress.status("quotas", row.generation),
                )
            )
        return answers


def _audited(row: QuotaRow) -> dict[str, Any]:
    return {"limit_bytes": row.limit_bytes, "note": row.note}

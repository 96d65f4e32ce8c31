"""Policies: rules for choosing victims, and the rules that nodes have in force.

The policy named `default` applies to every node that no other policy selects. All others have a selector; of several
that match a node, the one with the highest `priority` is in force there.
"""

from collections.abc import Sequence
from typing import Any, cast

from app.errors import NotFound
from app.ingest.fleet import Fleet
from app.schemas.base.listing import PageRequest
from app.schemas.records.policies import PolicyAnswer, PolicyFilters, PolicyList, PolicyPut
from app.services.base import checks
from app.services.base.changes import Change, Changes
from app.services.base.merge import patched
from app.services.base.preconditions import ANY, Precondition, etag
from app.services.base.principals import Principal
from app.services.records import owners
from app.services.records.policy_intent import RULES, PolicyIntent, resolve
from app.services.records.progress import RecordProgress
from app.store.base.database import Database
from app.store.records import policies
from app.store.records.policies import PolicyRow
from dataplane.protocol.control import POLICY_IN_FORCE, Algorithm
from dataplane.protocol.events import PolicyStats

_WRITTEN = (*RULES, "note", "managed_by", "selector", "priority")
"""Fields of a record that clients write."""


class Policies:
    """Get, put, patch, delete; a put of an identical record changes nothing."""

    def __init__(self, database: Database, changes: Changes, progress: RecordProgress, fleet: Fleet) -> None:
        self._database = database
        self._changes = changes
        self._progress = progress
        self._fleet = fleet

    async def get(self, name: str) -> PolicyAnswer:
        """Return the policy. Raises Invalid, NotFound."""
        checks.pin_name(name)
        row = await self._database.row(PolicyRow, name)
        if row is None:
            raise _missing(name)
        return self._answer(row)

    async def page(self, wanted: PageRequest, filters: PolicyFilters) -> PolicyList:
        """Return a page of policies. Raises Invalid."""
        async with self._database.read() as session:
            page = await policies.page(session, wanted, filters)
        return PolicyList(self.answers(page.rows), page.total, page.next_cursor, self.in_force())

    async def put(
        self, name: str, intent: PolicyPut, by: Principal, expected: Precondition = ANY, wait_s: float = 0.0
    ) -> tuple[PolicyAnswer, bool]:
        """Store the record, and return it and whether it is new. Raises Invalid, Forbidden, PreconditionFailed,
        PreconditionRequired."""
        checks.pin_name(name)
        asked = resolve(name, intent)
        async with self._changes.begin(by, "policies") as change:
            row = await policies.get(change.session, name)
            expected.check(*_state(name, row))
            created = row is None
            row = await self.write(change, row, asked)
        if wait_s:
            await self._progress.wait("policies", row.generation, wait_s)
        return self._answer(row), created

    async def patch(
        self,
        name: str,
        patch: dict[str, Any],
        by: Principal,
        expected: Precondition = ANY,
        wait_s: float = 0.0,
    ) -> PolicyAnswer:
        """Apply a JSON merge patch to the record. Raises what `put` raises, and NotFound."""
        checks.pin_name(name)
        async with self._changes.begin(by, "policies") as change:
            row = await policies.get(change.session, name)
            if row is None:
                raise _missing(name)
            expected.check(*_state(name, row))
            intent = patched(PolicyPut, _as_put(row), patch)
            row = await self.write(change, row, resolve(name, intent))
        if wait_s:
            await self._progress.wait("policies", row.generation, wait_s)
        return self._answer(row)

    async def write(self, change: Change, row: PolicyRow | None, asked: PolicyIntent) -> PolicyRow:
        """Write the intent to the record, within a change of `policies`."""
        spec = asked.spec
        before = None if row is None else _audited(row)
        owners.check(change.by, None if row is None else row.managed_by, asked.managed_by)
        if row is None:
            row = PolicyRow(name=spec.name, created_at=change.now)
            change.session.add(row)
        for name in RULES:
            setattr(row, name, getattr(spec, name))
        row.note, row.managed_by = asked.note, asked.managed_by
        row.selector, row.priority = asked.selector, asked.priority
        after = _audited(row)
        if before != after:
            row.generation, row.updated_at = change.generations["policies"], change.now
            change.made("policies", "create" if before is None else "update", spec.name, before, after)
        return row

    async def delete(
        self, name: str, by: Principal, expected: Precondition = ANY, wait_s: float = 0.0
    ) -> None:
        """Delete the record. Raises Invalid, NotFound, PreconditionFailed, PreconditionRequired."""
        checks.pin_name(name)
        async with self._changes.begin(by, "policies") as change:
            row = await policies.get(change.session, name)
            if row is None:
                raise _missing(name)
            expected.check(*_state(name, row))
            await self.remove(change, row)
        if wait_s:
            await self._progress.wait("policies", change.generations["policies"], wait_s)

    async def remove(self, change: Change, row: PolicyRow) -> None:
        """Delete a record, within a change of `policies`."""
        change.made("policies", "delete", row.name, _audited(row), None)
        await change.session.delete(row)

    def answers(self, rows: Sequence[PolicyRow]) -> list[PolicyAnswer]:
        return [self._answer(row) for row in rows]

    def in_force(self) -> dict[str, PolicyStats]:
        """Return the policy that is in force on each node that is not lost."""
        return {stats.node: stats.policy for stats in self._fleet.stats()}

    def _answer(self, row: PolicyRow) -> PolicyAnswer:
        return PolicyAnswer(
            name=row.name,
            algorithm=cast(Algorithm, row.algorithm),
            admission=row.admission,
            admission_idle_s=row.admission_idle_s,
            high_watermark=row.high_watermark,
            low_watermark=row.low_watermark,
            note=row.note,
            managed_by=row.managed_by,
            selector=row.selector,
            priority=row.priority,
            etag=etag(row.generation),
            generation=row.generation,
            created_at=row.created_at,
            updated_at=row.updated_at,
            in_force=self.in_force(),
            status=self._progress.status(
                "policies", row.generation, name=row.name, selector=row.selector, since=row.updated_at
            ),
        )


def _missing(name: str) -> NotFound:
    more = "; nodes that no other policy is for use their defaults" if name == POLICY_IN_FORCE else ""
    return checks.missing("policy", name, more)


def _audited(row: PolicyRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _WRITTEN}


def _as_put(row: PolicyRow) -> dict[str, Any]:
    """Return the record as the body that would create it."""
    return {name: value for name in _WRITTEN if (value := getattr(row, name)) is not None}


def _state(name: str, row: PolicyRow | None) -> tuple[str, str | None]:
    """Return the name and the ETag of a record, for preconditions."""
    return f"policy {name!r}", None if row is None else etag(row.generation)

"""Policies: rules for choosing victims, and the rules that nodes have in force.

The policy named `default` applies to every node that no other policy selects. All others have a selector; of several
that match a node, the one with the highest `priority` is in force there.
"""

from collections.abc import Sequence
from typing import Any

from app.ingest.fleet import Fleet
from app.schemas.base.listing import PageRequest
from app.schemas.records.policies import PolicyAnswer, PolicyFilters, PolicyList, PolicyPut, PolicyRecord
from app.services.base import checks
from app.services.base.changes import Change, Changes
from app.services.base.merge import patched
from app.services.base.preconditions import ANY, Precondition
from app.services.base.principals import Principal
from app.services.records import owners
from app.services.records.policy_intent import POLICIES, resolve
from app.services.records.progress import RecordProgress
from app.services.records.record_types import Values, fields
from app.store.base.database import Database
from app.store.records import policies
from app.store.records.policies import PolicyRow
from dataplane.protocol.stats.pool import PolicyStats


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
            raise POLICIES.missing(name)
        return self._answer(row)

    async def page(self, page_request: PageRequest, filters: PolicyFilters) -> PolicyList:
        """Return a page of policies. Raises Invalid."""
        async with self._database.read() as session:
            page = await policies.page(session, page_request, filters)
        return PolicyList(self.answers(page.rows), page.total, page.next_cursor, self.in_force())

    async def put(
        self, name: str, intent: PolicyPut, by: Principal, expected: Precondition = ANY, wait_s: float = 0.0
    ) -> tuple[PolicyAnswer, bool]:
        """Store the record, and return it and whether it is new. Raises Invalid, Forbidden, PreconditionFailed,
        PreconditionRequired."""
        checks.pin_name(name)
        values = resolve(name, intent)
        async with self._changes.begin(by, "policies") as change:
            row = await policies.get(change.session, name)
            POLICIES.check_state(expected, name, row)
            created = row is None
            row = await self.write(change, row, values)
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
            row = await POLICIES.existing(change, name, expected)
            intent = patched(PolicyPut, POLICIES.as_put(row), patch)
            row = await self.write(change, row, resolve(name, intent))
        await self._progress.wait("policies", row.generation, wait_s)
        return self._answer(row)

    async def write(self, change: Change, row: PolicyRow | None, values: Values) -> PolicyRow:
        """Write the intent to the record, within a change of `policies`."""
        owners.check(change.by, None if row is None else row.managed_by, values["managed_by"])
        return POLICIES.write(change, values["name"], row, values)

    async def delete(
        self, name: str, by: Principal, expected: Precondition = ANY, wait_s: float = 0.0
    ) -> None:
        """Delete the record. Raises Invalid, NotFound, PreconditionFailed, PreconditionRequired."""
        checks.pin_name(name)
        async with self._changes.begin(by, "policies") as change:
            row = await POLICIES.existing(change, name, expected)
            await POLICIES.remove(change, row)
        await self._progress.wait("policies", change.generations["policies"], wait_s)

    def answers(self, rows: Sequence[PolicyRow]) -> list[PolicyAnswer]:
        return [self._answer(row) for row in rows]

    def in_force(self) -> dict[str, PolicyStats]:
        """Return the policy that is in force on each node that is not lost."""
        return {stats.node: stats.policy for stats in self._fleet.stats()}

    def _answer(self, row: PolicyRow) -> PolicyAnswer:
        return PolicyAnswer(
            **fields(row, PolicyRecord.__struct_fields__),
            etag=POLICIES.etag(row),
            created_at=row.created_at,
            updated_at=row.updated_at,
            in_force=self.in_force(),
            status=self._progress.status(
                "policies", row.generation, name=row.name, selector=row.selector, since=row.updated_at
            ),
        )

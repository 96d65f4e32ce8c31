"""Policies: rules for choosing victims, and the rules that nodes have in force.

The policy named `default` applies to every node that no other policy selects. All others have a selector; of several
that match a node, the one with the highest `priority` is in force there.
"""

from collections.abc import Sequence

from app.schemas.base.listing import PageRequest
from app.schemas.records.policies import PolicyAnswer, PolicyFilters, PolicyList, PolicyPut, PolicyRecord
from app.services.base import checks
from app.services.base.preconditions import ANY, Precondition
from app.services.base.principals import Principal
from app.services.records.named_records import PushedRecords
from app.services.records.policy_intent import POLICIES, resolve
from app.store.records.policies import PolicyRow
from dataplane.protocol.stats.pool import PolicyStats


class Policies(PushedRecords[PolicyRow, PolicyPut, PolicyAnswer]):
    _type = POLICIES
    _pushed = ("policies",)
    _resolve = staticmethod(resolve)

    async def page(self, page_request: PageRequest, filters: PolicyFilters) -> PolicyList:
        """Return a page of policies. Raises Invalid."""
        page = await POLICIES.page(self._database, page_request, vars(filters))
        return PolicyList(self.answers(page.rows), page.total, page.next_cursor, self.in_force())

    async def delete(self, name: str, by: Principal, expected: Precondition = ANY, wait_s: float = 0.0) -> None:
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
            **POLICIES.described(row, PolicyRecord.__struct_fields__),
            in_force=self.in_force(),
            status=self._progress.status(
                "policies", row.generation, name=row.name, selector=row.selector, since=row.updated_at
            ),
        )

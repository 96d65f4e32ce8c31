"""Policies: rules for choosing victims, and the rules that nodes have in force.

The policy named `default` applies to every node that no other policy selects. All others have a selector; of several
that match a node, the one with the highest `priority` is in force there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.schemas.records.policies import PolicyAnswer, PolicyPut
from app.services.base.principals import PLANE, Principal
from app.services.records.policy_intent import POLICIES, resolve
from app.services.records.record_types import Values
from app.services.records.records import RecordService
from app.store.records.policies import PolicyRow
from dataplane.protocol.stats.pool import PolicyStats


class Policies(RecordService[PolicyRow, PolicyPut, PolicyAnswer]):
    kind = POLICIES

    def _columns(self, name: str, intent: PolicyPut) -> Values:
        return resolve(name, intent)

    def answers(self, rows: Sequence[PolicyRow], by: Principal = PLANE) -> list[PolicyAnswer]:
        in_force = self._in_force()
        return [
            PolicyAnswer(**POLICIES.described(row), in_force=in_force, status=self._status(row, by)) for row in rows
        ]

    def _list_fields(self, filters: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"in_force": self._in_force()}

    def _in_force(self) -> dict[str, PolicyStats]:
        """Return the policy that is in force on each node that is not lost."""
        return {stats.node: stats.policy for stats in self._fleet.stats()}

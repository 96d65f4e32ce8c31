"""Policies: rules for choosing victims, and the rules that nodes have in force.

The policy named `default` applies to every node that no other policy selects. All others have a selector; of several
that match a node, the one with the highest `priority` is in force there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.schemas.base.records import written
from app.schemas.records.policies import (
    MAX_IDLE_S,
    MAX_PRIORITY,
    MIN_IDLE_S,
    MIN_WATERMARK,
    PolicyAnswer,
    PolicyList,
    PolicyPut,
    PolicyRecord,
)
from app.services.base import checks
from app.services.base.durations import span
from app.services.base.principals import PLANE, Principal
from app.services.records.record_types import PushedType, Values, checked, columns
from app.services.records.records import RecordService
from app.store.records import policies
from app.store.records.policies import PolicyRow
from dataplane.protocol.control.records import POLICY_IN_FORCE, PolicySpec
from dataplane.protocol.stats.pool import PolicyStats

POLICIES = PushedType(
    name="policies",
    noun="policy",
    row=PolicyRow,
    sortable=policies.SORTABLE,
    key="name",
    put=PolicyPut,
    answer=PolicyAnswer,
    listing=PolicyList,
    written=written(PolicyRecord),
    hint=lambda name: "; nodes that no other policy is for use their defaults" if name == POLICY_IN_FORCE else "",
)
RULES = PolicyPut.AT_LEAST_ONE
"""Fields of an intent that nodes receive."""
_OTHERS = tuple(name for name in PolicyPut.__struct_fields__ if name not in RULES)


class Policies(RecordService[PolicyRow, PolicyPut, PolicyAnswer]):
    kind = POLICIES

    async def _columns(self, name: str, intent: PolicyPut, by: Principal) -> Values:
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


# ---- the rules of one policy


def resolve(name: str, intent: PolicyPut) -> Values:
    """Return the columns of the checked intent; omitted fields have their defaults. Raises Invalid with every fault
    found, also if all fields are omitted."""
    faults = checks.Faults()
    rules = {field: value for field in RULES if (value := getattr(intent, field)) is not msgspec.UNSET}
    if not rules:
        faults.add("algorithm", f"expected at least one of {', '.join(RULES)}")
    spec = PolicySpec(name, **rules)
    _check(spec, faults)
    other_columns = checked(columns(intent, _OTHERS), faults)
    _check_reach(name, other_columns["selector"], intent.priority, faults)
    faults.stop()
    return {**msgspec.structs.asdict(spec), **other_columns}


def _check_reach(name: str, selector: dict[str, str] | None, priority: int, faults: checks.Faults) -> None:
    """Check that the default policy has no selector and no priority, and that every other policy has a selector."""
    if any(fault.path == "selector" for fault in faults.errors):
        return
    if name == POLICY_IN_FORCE:
        if selector is not None:
            faults.add("selector", f"expected null: {name!r} is for every node that no other policy is for, got labels")
        if priority:
            faults.add("priority", f"expected 0: {name!r} comes after all others, got {priority}")
        return
    if selector is None:
        faults.add("selector", f"expected at least one label: only {POLICY_IN_FORCE!r} is for every node, got none")
    if not 0 <= priority <= MAX_PRIORITY:
        faults.add("priority", f"expected 0 to {MAX_PRIORITY:,}, got {priority}")


def _check(spec: PolicySpec, faults: checks.Faults) -> None:
    if not MIN_IDLE_S <= spec.admission_idle_s <= MAX_IDLE_S:
        faults.add(
            "admission_idle_s", f"expected {span(MIN_IDLE_S)} to {span(MAX_IDLE_S)}, got {span(spec.admission_idle_s)}"
        )
    high, low = spec.high_watermark, spec.low_watermark
    if not MIN_WATERMARK <= high <= 1:
        faults.add("high_watermark", f"expected {MIN_WATERMARK:g} to 1, got {high:g}")
    if not MIN_WATERMARK <= low <= 1:
        faults.add("low_watermark", f"expected {MIN_WATERMARK:g} to 1, got {low:g}")
    elif low > high:
        faults.add("low_watermark", f"expected at most high_watermark, {high:g}, got {low:g}")

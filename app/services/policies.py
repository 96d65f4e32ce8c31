"""The policy: intent about how victims are chosen, and what nodes have in force. One record, named `default`."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from app.ingest.fleet import Fleet
from app.schemas.policies import PolicyAnswer, PolicyList, PolicyPut
from app.services import checks
from app.services.callers import Caller
from app.services.changes import Changes
from app.services.progress import Progress
from app.store import policies
from app.store.database import Database
from app.store.policies import PolicyRow
from dataplane.protocol.control import POLICY_IN_FORCE, Algorithm, PolicySpec
from dataplane.protocol.events import PolicyStats

MIN_IDLE_S, MAX_IDLE_S = 1.0, 86_400.0
MIN_WATERMARK = 0.5
_FIELDS = tuple(name for name in PolicyPut.__struct_fields__ if name != "note")


class Policies:
    """Get, put, delete; a put of what is already there changes nothing."""

    def __init__(self, database: Database, changes: Changes, progress: Progress, fleet: Fleet) -> None:
        self._database = database
        self._changes = changes
        self._progress = progress
        self._fleet = fleet

    async def get(self, name: str) -> PolicyAnswer:
        """Raises Invalid, NotFound."""
        _check_name(name)
        async with self._database.read() as session:
            row = await policies.get(session, name)
        if row is None:
            raise checks.missing("policy record", name, "; nodes use their defaults")
        return self._answer(row)

    async def page(self) -> PolicyList:
        async with self._database.read() as session:
            rows = await policies.all_policies(session)
        return PolicyList(self.answers(rows), len(rows), self.in_force())

    async def put(
        self, name: str, intent: PolicyPut, by: Caller, wait_s: float = 0.0
    ) -> tuple[PolicyAnswer, bool]:
        """The record, and whether it is new. Raises Invalid."""
        _check_name(name)
        spec = _resolve(intent)
        async with self._changes.begin(by, "policies") as change:
            row = await policies.get(change.session, name)
            created = row is None
            before = None if row is None else _audited(row)
            if row is None:
                row = PolicyRow(name=name, created_at=change.now)
                change.session.add(row)
            for field in _FIELDS:
                setattr(row, field, getattr(spec, field))
            row.note = intent.note
            after = _audited(row)
            if before != after:
                row.generation, row.updated_at = change.generations["policies"], change.now
                change.made("policies", "create" if created else "update", name, before, after)
        if wait_s:
            await self._progress.wait("policies", row.generation, wait_s)
        return self._answer(row), created

    async def delete(self, name: str, by: Caller, wait_s: float = 0.0) -> None:
        """Raises Invalid, NotFound."""
        _check_name(name)
        async with self._changes.begin(by, "policies") as change:
            row = await policies.get(change.session, name)
            if row is None:
                raise checks.missing("policy record", name, "; nodes use their defaults")
            change.made("policies", "delete", name, _audited(row), None)
            await change.session.delete(row)
        if wait_s:
            await self._progress.wait("policies", change.generations["policies"], wait_s)

    def answers(self, rows: Sequence[PolicyRow]) -> list[PolicyAnswer]:
        return [self._answer(row) for row in rows]

    def in_force(self) -> dict[str, PolicyStats]:
        """What each node that is not lost has in force."""
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
            generation=row.generation,
            created_at=row.created_at,
            updated_at=row.updated_at,
            in_force=self.in_force(),
            status=self._progress.status("policies", row.generation),
        )


def _check_name(name: str) -> None:
    faults = checks.Faults()
    if name != POLICY_IN_FORCE:
        faults.add(
            "name", f"expected {POLICY_IN_FORCE!r}, the one policy that is in force, got {name[:128]!r}"
        )
    faults.stop()


def _resolve(intent: PolicyPut) -> PolicySpec:
    """What is left out has its default. Raises Invalid with every fault found, also when all is left out."""
    faults = checks.Faults()
    given = {name: value for name in _FIELDS if (value := getattr(intent, name)) is not msgspec.UNSET}
    if not given:
        faults.add("algorithm", f"expected at least one of {', '.join(_FIELDS)}")
    spec = PolicySpec(POLICY_IN_FORCE, **given)
    _check(spec, faults)
    faults.check("note", lambda: checks.note(intent.note))
    faults.stop()
    return spec


def _check(intent: PolicySpec, faults: checks.Faults) -> None:
    if not MIN_IDLE_S <= intent.admission_idle_s <= MAX_IDLE_S:
        faults.add(
            "admission_idle_s",
            f"expected {MIN_IDLE_S:g} to {MAX_IDLE_S:g} s, got {intent.admission_idle_s:g}",
        )
    high, low = intent.high_watermark, intent.low_watermark
    if not MIN_WATERMARK <= high <= 1:
        faults.add("high_watermark", f"expected {MIN_WATERMARK:g} to 1, got {high:g}")
    if not MIN_WATERMARK <= low <= 1:
        faults.add("low_watermark", f"expected {MIN_WATERMARK:g} to 1, got {low:g}")
    elif low > high:
        faults.add("low_watermark", f"expected at most high_watermark, {high:g}, got {low:g}")


def _audited(row: PolicyRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in (*_FIELDS, "note")}

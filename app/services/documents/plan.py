"""The plan of a document: the changes that applying it makes to existing records. Pure, so a dry run is exact."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from app.errors import Conflict, FieldError
from app.services.base import checks
from app.services.base.principals import Principal
from app.services.base.yielding import with_pauses
from app.services.documents.declared import DeclaredRecords
from app.services.documents.resource_types import KEPT_FIELDS, KINDS, DeclaredRecord
from app.services.records.record_types import PushedType, Values
from dataplane.protocol.control.snapshots import SnapshotType

StoredRecords = dict[SnapshotType, dict[str, Mapping[str, Any]]]
"""Existing rows of all types by key: the columns of `PushedType.written`, the key and `updated_at`."""


@dataclass(frozen=True)
class PlanStep:
    """The change of one record."""

    kind: PushedType[Any]
    key: str
    action: Literal["create", "update", "delete", "unchanged", "ended"]
    before: Mapping[str, Any] | None
    after: Values | None
    body: bytes = b""

    @property
    def fields(self) -> dict[str, tuple[Any, Any]]:
        """Old and new value of each field that changes."""
        if self.action in ("unchanged", "ended"):
            return {}
        before = {} if self.before is None else self.kind.audited(self.before)
        after = {} if self.after is None else self.kind.audited(self.after)
        return {
            name: (before.get(name), after.get(name)) for name in before or after if before.get(name) != after.get(name)
        }


@dataclass
class ApplyPlan:
    """Steps in the order of type and name."""

    steps: list[PlanStep] = field(default_factory=list)

    def of(self, kind: SnapshotType, *actions: str) -> list[PlanStep]:
        return [step for step in self.steps if step.kind.name == kind and step.action in actions]

    def changes(self, kind: SnapshotType) -> list[PlanStep]:
        return self.of(kind, "create", "update", "delete")

    def count(self, *actions: str) -> int:
        return sum(step.action in actions for step in self.steps)


def outcome(
    declared: DeclaredRecords, stored: StoredRecords, by: Principal, now: float, *, prune: bool, take_over: bool
) -> ApplyPlan:
    """Return the plan. Raises Conflict that lists every record of another owner; Forbidden for a record of another
    tenant."""
    result = ApplyPlan()
    conflicts: list[FieldError] = []
    for kind in KINDS.values():
        rows = stored[kind.name]
        records = declared.records[kind.name]
        for key, record in with_pauses(records.items(), 500):
            row = rows.get(key)
            if row is not None:
                _check_tenant(kind, record.path, row, by)
                _check_owner(kind, record, row, conflicts, take_over)
            result.steps.append(_step(kind, key, record, row, now))
        if prune:
            owner = declared.owner or declared.assumed
            result.steps += [
                PlanStep(kind, key, "delete", row, None)
                for key, row in rows.items()
                if key not in records and row["managed_by"] == owner and kind.is_own(row, by)
            ]
    if conflicts:
        hint = f"take_over (--take-over) makes {'them' if len(conflicts) > 1 else 'it'} the document's"
        raise Conflict(f"{Conflict.about(conflicts).message}; {hint}", conflicts)
    order = {kind: number for number, kind in enumerate(KINDS)}
    result.steps.sort(key=lambda step: (order[step.kind.name], step.kind.shown(step.key)))
    return result


def _step(
    kind: PushedType[Any], key: str, record: DeclaredRecord, row: Mapping[str, Any] | None, now: float
) -> PlanStep:
    values = record.values
    if record.ttl_s is not None:
        values = {**values, "expires_at": _end(values, row, record.ttl_s, now)}
    if row is None:
        action: Literal["create", "ended"] = "ended" if record.ended else "create"
        return PlanStep(kind, key, action, None, values, record.body)
    fields = KEPT_FIELDS.get(kind.name, ())
    if fields and values["keys_digest"] == row["keys_digest"]:
        values = {**values, **{name: row[name] for name in fields}}
    is_unchanged = all(values[name] == row[name] for name in kind.written)
    return PlanStep(kind, key, "unchanged" if is_unchanged else "update", row, values, record.body)


def _end(values: Values, row: Mapping[str, Any] | None, ttl_s: float, now: float) -> float:
    """Return the end of a pin with a time to live, in Unix seconds. The time counts from when the pin was written, so
    applying the same document again does not move the end. If hits extend the pin, its end stays as hits moved it while
    the pin lives."""
    if row is None:
        return now + ttl_s
    end: float | None = row["expires_at"]
    if values["refresh_s"] is not None:
        keeps = row["refresh_s"] == values["refresh_s"] and end is not None and end > now
    else:
        keeps = row["refresh_s"] is None and end == row["updated_at"] + ttl_s
    return end if end is not None and keeps else now + ttl_s


def _check_owner(
    kind: PushedType[Any], record: DeclaredRecord, row: Mapping[str, Any], conflicts: list[FieldError], take_over: bool
) -> None:
    owner, requested = row["managed_by"], record.values["managed_by"]
    if owner == requested or take_over:
        return
    actual = f"is managed by {owner!r}" if owner else "is managed by hand (no owner)"
    expected = f", not by {requested!r}" if requested else ""
    record_name = f"the {kind.noun} {kind.shown(row[kind.key])!r}"
    conflicts.append(FieldError(record.path, f"{record_name} {actual}{expected}"))


def _check_tenant(kind: PushedType[Any], path: str, row: Mapping[str, Any], by: Principal) -> None:
    """Refuse a name that a record of another tenant has. Raises Forbidden."""
    if not kind.is_own(row, by):
        raise checks.taken(kind.noun, kind.shown(row[kind.key]), path)

"""What applying a document would do to the records that are there. Pure: a dry run says exactly what would follow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from app.errors import Conflict, FieldError
from app.services import checks
from app.services.callers import Caller
from app.services.declared import MAX_TOLD, Declared, Record
from app.services.kinds import KINDS, Kind, Values
from app.services.turns import giving_way
from dataplane.protocol.control import SnapshotType

Held = dict[SnapshotType, dict[str, Mapping[str, Any]]]
"""Rows of all types as they are, by key: the columns of `Kind.written`, the key and `updated_at`."""


@dataclass(frozen=True)
class Step:
    """What becomes of one record."""

    kind: Kind
    key: str
    action: Literal["create", "update", "delete", "unchanged", "ended"]
    before: Mapping[str, Any] | None
    after: Values | None
    body: bytes = b""

    @property
    def fields(self) -> dict[str, tuple[Any, Any]]:
        """Before and after of each field that changes."""
        if self.action in ("unchanged", "ended"):
            return {}
        before = {} if self.before is None else self.kind.audited(self.before)
        after = {} if self.after is None else self.kind.audited(self.after)
        return {
            name: (before.get(name), after.get(name))
            for name in before or after
            if before.get(name) != after.get(name)
        }


@dataclass
class Outcome:
    """By type and name."""

    steps: list[Step] = field(default_factory=list)

    def of(self, kind: SnapshotType, *actions: str) -> list[Step]:
        return [step for step in self.steps if step.kind.name == kind and step.action in actions]

    def count(self, *actions: str) -> int:
        return sum(step.action in actions for step in self.steps)


def outcome(
    declared: Declared, held: Held, by: Caller, now: float, *, prune: bool, take_over: bool
) -> Outcome:
    """Raises Conflict that lists every record of another owner; Forbidden for one of another tenant."""
    result = Outcome()
    conflicts: list[FieldError] = []
    for kind in KINDS.values():
        rows = held[kind.name]
        records = declared.records[kind.name]
        for key, record in giving_way(records.items(), 500):
            row = rows.get(key)
            if row is not None:
                _check_tenant(kind, record.path, row, by)
                _check_owner(kind, record, row, conflicts, take_over)
            result.steps.append(_step(kind, key, record, row, now))
        if prune:
            owner = declared.owner or declared.assumed
            result.steps += [
                Step(kind, key, "delete", row, None)
                for key, row in rows.items()
                if key not in records and row["managed_by"] == owner and _is_seen(kind, row, by)
            ]
    if conflicts:
        more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
        raise Conflict(f"{conflicts[0].path}: {conflicts[0].message}{more}", conflicts[:MAX_TOLD])
    order = {kind: number for number, kind in enumerate(KINDS)}
    result.steps.sort(key=lambda step: (order[step.kind.name], step.kind.shown(step.key)))
    return result


def _step(kind: Kind, key: str, record: Record, row: Mapping[str, Any] | None, now: float) -> Step:
    asked = record.asked
    values = asked.values
    if asked.ttl_s is not None:
        values = {**values, "expires_at": _end(values, row, asked.ttl_s, now)}
    if row is None:
        action: Literal["create", "ended"] = "ended" if asked.ended else "create"
        return Step(kind, key, action, None, values, asked.body)
    if kind.kept and values["keys_digest"] == row["keys_digest"]:
        values = {**values, **{name: row[name] for name in kind.kept}}
    same = all(values[name] == row[name] for name in kind.written)
    return Step(kind, key, "unchanged" if same else "update", row, values, asked.body)


def _end(values: Values, row: Mapping[str, Any] | None, ttl_s: float, now: float) -> float:
    """A time to live counts from when the pin was written: applying the same again moves nothing. The end of a pin that
    hits move is moved by hits as long as it lives."""
    if row is None:
        return now + ttl_s
    end: float | None = row["expires_at"]
    if values["refresh_s"] is not None:
        keeps = row["refresh_s"] == values["refresh_s"] and end is not None and end > now
    else:
        keeps = row["refresh_s"] is None and end == row["updated_at"] + ttl_s
    return end if end is not None and keeps else now + ttl_s


def _check_owner(
    kind: Kind, record: Record, row: Mapping[str, Any], conflicts: list[FieldError], take_over: bool
) -> None:
    owner, wanted = row["managed_by"], record.asked.values["managed_by"]
    if owner == wanted or take_over:
        return
    whose = f"is managed by {owner!r}" if owner else "is managed by nobody"
    what = f"the {kind.noun} {kind.shown(row[kind.key])!r} {whose}"
    conflicts.append(FieldError(record.path, f"{what}, not by {wanted!r}" if wanted else what))


def _check_tenant(kind: Kind, path: str, row: Mapping[str, Any], by: Caller) -> None:
    """A name that another tenant's record has already. Raises Forbidden."""
    if not _is_seen(kind, row, by):
        raise checks.taken(kind.noun, kind.shown(row[kind.key]), path)


def _is_seen(kind: Kind, row: Mapping[str, Any], by: Caller) -> bool:
    salt = kind.salt(row)
    return by.salts is None or (salt is not None and by.sees(salt))

"""Applied changes: audit entries in the form that alerts, annotations and `larder why` show.

Logins, changes of tokens and refused requests are omitted, because they do not affect nodes.
"""

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import Invalid
from app.ingest.fleet import Fleet, FleetNode
from app.schemas.views.changes import Annotation, ChangeAnswer, ChangedField
from app.services.base.expiry import LATEST, moment
from app.services.base.principals import Principal
from app.store.access import audit
from app.store.access.audit import AuditRow
from app.store.base.database import Database
from app.store.fleet import pushes
from dataplane.base.units import format_size

PRECEDING = 5
"""Maximum number of changes that are shown with an alert."""
SCANNED = 1000
"""Entries of the audit log that are searched for them."""
MAX_SEARCHED = 4000
"""Entries of the audit log that are searched for changes of some tenants or with tags."""
READ_AT_ONCE = 50
MAX_FIELDS = 12
MAX_VALUE = 200
"""Maximum number of characters of a value."""
MAX_SUMMARY_VALUE = 48
"""Characters of a value that a summary repeats, such as the parameters of a tier; `fields` has more."""
DEFAULT_S = 86_400.0
_NO_CHANGE = ("session", "agent_session", "token", "join_token", "request")
_TENANT_NAMED = ("quota", "ceiling")
"""Kinds of records that are named by their tenant."""


class Subject(NamedTuple):
    """The subject of an alert."""

    starts_at: float
    tenant: str
    node: str
    is_process: bool
    """Whether the alert is about a process or its connections, which the records of one tenant do not affect."""


class AppliedChanges:
    def __init__(self, database: Database, fleet: Fleet, window_s: float) -> None:
        """`window_s`: age in seconds up to which changes are shown with an alert."""
        self._database = database
        self._fleet = fleet
        self._window_s = window_s

    async def preceding(self, subjects: Iterable[Subject], by: Principal) -> dict[Subject, list[ChangeAnswer]]:
        """Return the latest changes before each time that concern a tenant, a node or the fleet, newest first."""
        newest_first = sorted(set(subjects), reverse=True)
        tenants = {subject.tenant for subject in newest_first}
        conditions = [] if "" in tenants else [AuditRow.kind.not_in(_TENANT_NAMED) | AuditRow.name.in_(tenants)]
        changes_by_subject: dict[Subject, list[ChangeAnswer]] = {}
        async with self._database.read() as session:
            read = _SharedRead(session, by, conditions, self._window_s)
            for subject in newest_first:
                changes_by_subject[subject] = await read.preceding(subject, newest_first[-1].starts_at)
                await asyncio.sleep(0)
        return changes_by_subject

    async def annotations(
        self, start: str, end: str, tags: Iterable[str], limit: int, by: Principal
    ) -> list[Annotation]:
        """Return the newest changes between two times, oldest first. The times are Unix milliseconds or RFC 3339; if
        empty, the last day is used. A change must have all of these tags. Raises Invalid."""
        last = _moment("to", end, time.time())
        first = _moment("from", start, last - DEFAULT_S)
        if first > last:
            raise Invalid.at("from", "expected a time before 'to'")
        async with self._database.read() as session:
            changes = await _between(session, first, last, frozenset(tags), limit, by)
            acknowledged = await pushes.acknowledged(session, {change.generation for change in changes if change.type})
        return [
            self._annotation(change, acknowledged.get((change.type, change.generation), change.at))
            for change in changes
        ]

    async def between(self, first: float, last: float, limit: int, by: Principal) -> list[ChangeAnswer]:
        """Return the newest changes between two times in Unix seconds, oldest first. Raises StoreUnavailable."""
        async with self._database.read() as session:
            return await _between(session, first, last, frozenset(), limit, by)

    def _annotation(self, change: ChangeAnswer, ended_at: float) -> Annotation:
        living = [node for node in self._fleet.nodes.values() if not node.lost]
        acked = [node for node in living if _has(node, change)]
        actor = f" by {change.actor}" if change.actor else ""
        lines = [_difference(field) for field in change.fields]
        if change.type:
            lines.append(
                f"generation {change.generation} of {change.type}, acknowledged by {len(acked)} of {len(living)} nodes"
            )
        return Annotation(
            time=int(change.at * 1000),
            time_end=int(max(change.at, ended_at) * 1000),
            title=f"{change.action} {change.kind} {change.name}{actor}",
            text="\n".join(lines),
            tags=_tags(change),
            change=change,
        )


class _SharedRead:
    """Reads audit entries, newest first and each once, for alerts whose times before them overlap."""

    def __init__(
        self, session: AsyncSession, by: Principal, conditions: Sequence[sa.ColumnElement[bool]], window_s: float
    ) -> None:
        self._session, self._by, self._conditions, self._window_s = session, by, conditions, window_s
        self._read: deque[tuple[float, int, list[ChangeAnswer]]] = deque()
        """Time and number of each entry, with its change if the caller may see one."""
        self._ended = False

    async def preceding(self, subject: Subject, oldest: float) -> list[ChangeAnswer]:
        """Return the latest changes that concern an alert. It must not begin after the one of the call before, or
        before `oldest`."""
        at = subject.starts_at
        matches: list[ChangeAnswer] = []
        while self._read and self._read[0][0] > at:
            self._read.popleft()
        for index in range(SCANNED):
            if index == len(self._read):
                await self._read_entries(oldest - self._window_s, at)
            if index == len(self._read) or self._read[index][0] < at - self._window_s:
                break
            when, _, changes = self._read[index]
            if when <= at:
                matches += [change for change in changes if _precedes(change, subject)]
            if len(matches) >= PRECEDING:
                break
        return matches[:PRECEDING]

    async def _read_entries(self, since: float, until: float) -> None:
        """Read the next entries, if there are any."""
        if self._ended:
            return
        older = [AuditRow.id < self._read[-1][1]] if self._read else []
        rows = await audit.applied(self._session, since, until, READ_AT_ONCE, *_changing(), *self._conditions, *older)
        self._read.extend((row.at, row.id, shown([row], self._by)) for row in rows)
        self._ended = not rows


async def _between(
    session: AsyncSession, first: float, last: float, tags: frozenset[str], limit: int, by: Principal
) -> list[ChangeAnswer]:
    """Return the newest changes between two times that have all of these tags, oldest first."""
    narrowed = [AuditRow.kind == tag[5:] for tag in tags if tag.startswith("type:")]
    row_limit = limit if not tags and by.salts is None else min(20 * limit, MAX_SEARCHED)
    rows = await audit.applied(session, first, last, row_limit, *_changing(), *narrowed)

    def newest() -> list[ChangeAnswer]:
        return [change for change in shown(rows, by) if tags <= set(_tags(change))][:limit][::-1]

    return await asyncio.to_thread(newest)


def _tags(change: ChangeAnswer) -> list[str]:
    about = {"tenant": change.tenant, "node": change.node, "actor": change.actor}
    return [f"type:{change.kind}", *(f"{name}:{value}" for name, value in about.items() if value)]


def _changing() -> tuple[sa.ColumnElement[bool], ...]:
    return AuditRow.kind.not_in(_NO_CHANGE), AuditRow.action != "verify"


def _has(node: FleetNode, change: ChangeAnswer) -> bool:
    """Return whether the node has applied the generation of a change, or a later one."""
    observed = node.observed.get(change.type)
    return observed is not None and observed.generation >= change.generation


def concerns(change: ChangeAnswer, tenant: str, node: str) -> bool:
    """Return whether a change concerns this tenant or node (empty: any) or the fleet."""
    if change.node:
        return change.node == node or not node
    if change.tenant:
        return change.tenant == tenant or not tenant
    return True


def _precedes(change: ChangeAnswer, subject: Subject) -> bool:
    if subject.is_process and change.tenant:
        return False
    return concerns(change, subject.tenant, subject.node)


def shown(rows: Iterable[AuditRow], by: Principal) -> list[ChangeAnswer]:
    """Return the changes that the caller may see, without malformed entries of a tampered database."""
    changes = []
    for row in rows:
        try:
            change = msgspec.convert(_answer(row), ChangeAnswer)
            if not math.isfinite(change.at):
                continue
            msgspec.json.encode(change)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
        changes.append(change)
    return visible(changes, by)


def visible(changes: Iterable[ChangeAnswer], by: Principal) -> list[ChangeAnswer]:
    """Return the changes that the caller may see: one that is limited to tenants, those of its tenants, without the
    names of other callers and the values that a record had while it belonged to another tenant."""
    if by.salts is None:
        return list(changes)
    return [_redacted(change, by) for change in changes if change.tenant and by.sees_shown(change.tenant)]


def _redacted(change: ChangeAnswer, by: Principal) -> ChangeAnswer:
    actor = change.actor if change.actor == by.actor else ""
    tenants_before = (field.before for field in change.fields if field.name == "tenant" and field.before is not None)
    if all(isinstance(tenant, str) and by.sees_shown(tenant) for tenant in tenants_before):
        return msgspec.structs.replace(change, audit_id=None, actor=actor)
    summary = f"{change.kind} {change.name}"
    return msgspec.structs.replace(change, audit_id=None, actor=actor, fields=[], summary=summary)


def _answer(row: AuditRow) -> dict[str, Any]:
    fields = _fields(row.before, row.after)
    about = f"{row.kind} {row.name}" if row.action == "update" else f"{row.action} {row.kind} {row.name}"
    differences = ", ".join(map(_difference, fields[:4]))
    return {
        "audit_id": row.id,
        **{name: getattr(row, name) for name in ("at", "actor", "action", "kind", "name", "type", "generation")},
        "tenant": row.name if row.kind in _TENANT_NAMED else _named(row, "tenant"),
        "node": row.name if row.kind == "node" else "",
        "summary": f"{about}: {differences}" if differences and row.action != "delete" else about,
        "fields": fields,
    }


def _named(row: AuditRow, field: str) -> str:
    """Return a field of the record after the change, or before it if it was deleted."""
    value = (row.after or row.before or {}).get(field)
    return value if isinstance(value, str) else ""


def _fields(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[ChangedField]:
    was, is_ = before or {}, after or {}
    field_names = list(dict.fromkeys((*is_, *was)))
    changed = [name for name in field_names if was.get(name) != is_.get(name) and (was.get(name) or is_.get(name))]
    return [ChangedField(name, _cut(was.get(name)), _cut(is_.get(name))) for name in changed[:MAX_FIELDS]]


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value)
    return value if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"


def _difference(field: ChangedField) -> str:
    before, after = _text(field.name, field.before), _text(field.name, field.after)
    return f"{field.name} {before} → {after}" if field.before is not None else f"{field.name} {after}"


def _text(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if name.endswith("_bytes") and isinstance(value, int):
        return format_size(value)
    if name.endswith("_at") and isinstance(value, float):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SUMMARY_VALUE else f"{text[:MAX_SUMMARY_VALUE]}…"


def _moment(name: str, text: str, default: float) -> float:
    """Return Unix seconds. Raises Invalid."""
    if not text:
        return default
    try:
        at = int(text) / 1000 if text.isascii() and text.isdecimal() and len(text) < 17 else moment(text)
    except ValueError:
        at = -1.0
    if not 0 <= at < LATEST:
        raise Invalid.at(name, f"expected Unix milliseconds or RFC 3339, got {text[:40]!r}")
    return at

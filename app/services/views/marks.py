"""Marks on the time axis of charts: changes, alerts, crashes and restarts that the database has."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from app.errors import StoreUnavailable
from app.observe.events import LarderEvent
from app.schemas.views.changes import ChangeAnswer
from app.schemas.views.series import Mark, MarkKind, MarkLevel
from app.services.base import redaction
from app.services.base.principals import Principal
from app.services.views.applied_changes import AppliedChanges
from app.store.base.database import Database
from app.store.views import events
from app.store.views.events import EventRow

MAX_MARKS = 500
MAX_LIMITED = 50
"""Changes for a caller who is limited to tenants: each is searched for among 20 entries of the audit log."""
RESTART_S = 10.0
"""Longest time in which a node that restarts joins."""
JOINED = "node joined"
Fields = Mapping[str, Any]


class _Marked(NamedTuple):
    """How an event is drawn."""

    kind: MarkKind
    level: Callable[[Fields], MarkLevel]
    title: Callable[[Fields], str]


def _always(level: MarkLevel) -> Callable[[Fields], MarkLevel]:
    return lambda _: level


def _of_alert(fields: Fields) -> MarkLevel:
    return "error" if fields.get("alert_severity") in ("critical", "page", "error") else "warning"


def _exited(fields: Fields) -> str:
    code = fields.get("code")
    if not isinstance(code, int):
        return "data plane exited"
    return f"data plane killed by signal {-code}" if code < 0 else f"data plane exited with code {code}"


MARKED: Mapping[str, _Marked] = {
    "alert.fired": _Marked("alert", _of_alert, lambda fields: f"{fields.get('alertname')} fires"),
    "alert.resolved": _Marked(
        "alert", _always("info"), lambda fields: f"{fields.get('alertname')} {fields.get('reason')}"
    ),
    "dataplane.exited": _Marked("crash", _always("error"), _exited),
    "dataplane.started": _Marked("restart", _always("info"), lambda _: "data plane started"),
    "dataplane.stopped": _Marked("restart", _always("info"), lambda _: "management plane stopped"),
    "cache.started_cold": _Marked(
        "restart", _always("warning"), lambda fields: f"cache started cold: {fields.get('reason')}"
    ),
    "manager.restart_requested": _Marked("restart", _always("info"), lambda _: "restart requested"),
    "node.joined": _Marked("node", _always("info"), lambda _: JOINED),
    "node.lost": _Marked("node", _always("error"), lambda _: "node lost"),
    "node.condition_started": _Marked(
        "node", _always("warning"), lambda fields: f"{fields.get('type')}: {fields.get('message')}"
    ),
    "tier.lost": _Marked(
        "tier", _always("error"), lambda fields: f"tier {fields.get('tier')} lost: {fields.get('reason')}"
    ),
    "tier.recovered": _Marked("tier", _always("info"), lambda fields: f"tier {fields.get('tier')} recovered"),
    "manager.promoted": _Marked("manager", _always("info"), lambda fields: f"manager on {fields.get('host')} leads"),
    "database.lost": _Marked("database", _always("error"), lambda fields: f"database lost: {fields.get('reason')}"),
    "database.recovered": _Marked("database", _always("info"), lambda _: "database recovered"),
    "backup.restored": _Marked("database", _always("warning"), lambda _: "backup restored"),
}
"""Events that are marks, by name."""
MAX_TITLE = 160


class Marks:
    def __init__(self, database: Database, changes: AppliedChanges) -> None:
        self._database = database
        self._changes = changes

    async def between(
        self, start: float, end: float, nodes: Collection[str], tenants: Collection[str], by: Principal
    ) -> list[Mark]:
        """Return the newest marks of a time that the caller may see, oldest first; none while the database is
        unavailable. Given nodes or tenants, those of other ones are left out."""
        try:
            limit = MAX_MARKS if by.salts is None else MAX_LIMITED
            changes = await self._changes.between(start, end, limit, by)
            async with self._database.read() as session:
                rows = await events.between(session, MARKED, start, end, MAX_MARKS)
        except StoreUnavailable:
            return []
        marks = [_of_change(change) for change in changes]
        marks += [mark for row in rows if (mark := _of_event(row, by)) is not None]
        marks = sorted((mark for mark in marks if _concerns(mark, nodes, tenants)), key=lambda mark: mark.at)
        return _without_rejoins(marks)[-MAX_MARKS:]


def _concerns(mark: Mark, nodes: Collection[str], tenants: Collection[str]) -> bool:
    """Return whether a mark is about everything, or about one of the wanted nodes and tenants."""
    if not nodes and not tenants:
        return True
    if mark.node is not None and nodes:
        return mark.node in nodes
    if mark.tenant is not None and tenants:
        return mark.tenant in tenants
    return True


def _without_rejoins(marks: Sequence[Mark]) -> list[Mark]:
    """Leave out that a node joined if its restart is a mark already."""
    started: dict[str | None, float] = {}
    distinct = []
    for mark in marks:
        if mark.kind == "restart":
            started[mark.node] = mark.at
        if mark.title != JOINED or mark.at - started.get(mark.node, -math.inf) > RESTART_S:
            distinct.append(mark)
    return distinct


def _of_change(change: ChangeAnswer) -> Mark:
    actor = f" by {change.actor}" if change.actor else ""
    return Mark(
        at=change.at,
        kind="change",
        level="info",
        title=_cut(f"{change.summary}{actor}"),
        node=change.node or None,
        tenant=change.tenant or None,
        ref="" if change.audit_id is None else f"audit/{change.audit_id}",
    )


def _of_event(row: EventRow, by: Principal) -> Mark | None:
    """Return the mark of an event; None if the caller may not see it."""
    fields = row.fields
    event = LarderEvent(row.name, row.at, row.id, row.node, fields, row.actor)
    if not redaction.visible_events([event], by):
        return None
    marked, tenant = MARKED[row.name], fields.get("tenant")
    return Mark(
        at=row.at,
        kind=marked.kind,
        level=marked.level(fields),
        title=_cut(marked.title(fields)),
        node=row.node or None,
        tenant=tenant if isinstance(tenant, str) and tenant else None,
        ref=f"event/{row.id}" if by.salts is None else "",
    )


def _cut(title: str) -> str:
    return title if len(title) <= MAX_TITLE else f"{title[: MAX_TITLE - 1]}…"

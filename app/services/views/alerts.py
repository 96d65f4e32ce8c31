"""Alerts of Alertmanager and Grafana: receives their webhooks, keeps one row per fingerprint, expires alerts that are
no longer sent, and lists each alert with the changes that preceded it.

All managers share the table; each may receive any webhook.
"""

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.observe.catalogue import name_of
from app.observe.catalogue.alerts import AlertFired, AlertResolved
from app.observe.events import EventBus, fields_of
from app.schemas.base.listing import PageRequest
from app.schemas.views.alerts import (
    FINGERPRINT,
    MAX_LABELS,
    MAX_LABELS_BYTES,
    MAX_NAME,
    MAX_STORED_BYTES,
    MAX_TEXT,
    VERSIONS,
    AlertAnswer,
    AlertFilters,
    AlertList,
    AlertsPost,
    AlertsTaken,
    AlertState,
    WebhookAlert,
)
from app.schemas.views.changes import ChangeAnswer
from app.services.base.checks import Faults
from app.services.base.expiry import moment
from app.services.base.fields import answer
from app.services.base.principals import Principal
from app.services.views.applied_changes import AppliedChanges, Subject
from app.store.base import notify
from app.store.base.database import Database
from app.store.base.notify import Notification
from app.store.views import alerts
from app.store.views.alerts import AlertRow
from dataplane.base.visible import plain
from dataplane.protocol.salts import shown

SORTABLE = alerts.SORTABLE
"""Fields by which the list can be sorted."""
AT_ONCE = 500
DAY_S = 86_400.0
EARLIEST = 946_684_800.0  # the year 2000
PROCESS_ALERTS = frozenset(
    (
        "LarderCacheCold",
        "LarderChecksumFailures",
        "LarderDataPlaneRestarts",
        "LarderDatabaseDown",
        "LarderDown",
        "LarderEventsDropped",
        "LarderGatewayMemoryShort",
        "LarderGatewayNameRemoved",
        "LarderGatewayUnreachable",
        "LarderGpuCopiesFail",
        "LarderNoLeader",
        "LarderNodeLost",
        "LarderTierOutOfService",
    )
)
"""Alerts of `deploy/prometheus/larder.rules.yml` about a process or its connections. A change of one tenant's records
is no cause of these, so they list changes of the node and of the fleet only."""
_Published = tuple[AlertFired | AlertResolved, Notification]
"""An event, and the notification for the other managers."""


@dataclass(frozen=True)
class _Received:
    """A checked alert of a webhook."""

    fingerprint: str
    firing: bool
    labels: dict[str, str]
    annotations: dict[str, str]
    generator_url: str
    starts_at: float
    ended_at: float | None
    expires_at: float


class Alerts:
    """Alerts of the fleet. Call `look` every few seconds: it expires alerts and counts the firing ones."""

    def __init__(
        self,
        database: Database,
        bus: EventBus,
        changes: AppliedChanges,
        expire_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._bus = bus
        self._changes = changes
        self._expire_s = expire_s
        self._clock = clock
        self._firing: dict[tuple[str, str], int] = {}

    def firing(self) -> Mapping[tuple[str, str], int]:
        """Return the number of firing alerts by name and severity, as of a few seconds ago."""
        return self._firing

    async def take(self, request: AlertsPost) -> AlertsTaken:
        """Store the alerts of a webhook. A repeated alert only updates its times. Raises Invalid."""
        now = self._clock()
        received = await asyncio.to_thread(self._checked, request, now)
        newest: dict[str, _Received] = {}
        for alert in received:  # one webhook may hold an alert twice: once resolved, once firing again
            before = newest.get(alert.fingerprint)
            if before is None or before.starts_at <= alert.starts_at:
                newest[alert.fingerprint] = alert
        counts = {"fired": 0, "resolved": 0, "repeated": len(received) - len(newest)}
        events: list[_Published] = []
        async with self._database.write() as session:
            rows = await alerts.locked(session, newest)
            for fingerprint, alert in newest.items():
                event = _merge(rows[fingerprint], alert)
                counts[event] += 1
                if event != "repeated" and not (event == "resolved" and not rows[fingerprint].received_at):
                    events.append(_event(rows[fingerprint]))
                rows[fingerprint].received_at = now
            await session.flush()
            await alerts.trim(session)
            await notify.post(session, [notification for _, notification in events])
            self._firing = await alerts.firing(session)
        self._publish(events)
        return AlertsTaken(**counts, truncated=request.truncated_alerts)

    async def page(self, page_request: PageRequest, filters: AlertFilters, by: Principal) -> AlertList:
        """Return a page of the alerts that the caller may see, newest first by default. Raises Invalid."""
        ordered = PageRequest(page_request.limit, page_request.cursor, page_request.sort or "-starts_at")
        tenants = None if by.salts is None else [shown(salt) for salt in by.salts]
        async with self._database.read() as session:
            page = await alerts.page(session, ordered, filters, tenants)
        preceding = await self._changes.preceding(map(_subject, page.rows), by)
        items = [_answer(row, preceding[_subject(row)]) for row in page.rows]
        return AlertList(items, total=page.total, next_cursor=page.next_cursor)

    async def look(self) -> None:
        """Expire alerts that were not sent again in time, and count the firing ones. Raises StoreUnavailable."""
        now = self._clock()
        async with self._database.read() as session:
            has_due = await alerts.any_due(session, now)
            self._firing = await alerts.firing(session)
        if has_due:
            async with self._database.write() as session:
                events = await _expire(session, now)
                self._firing = await alerts.firing(session)
            self._publish(events)

    def _publish(self, events: Sequence[_Published]) -> None:
        for event, notification in events:
            self._bus.publish(event, node=notification.node, at=notification.at)

    def _checked(self, request: AlertsPost, now: float) -> list[_Received]:
        """Return the checked alerts of a request. Raises Invalid with every fault."""
        faults = Faults()
        if request.version not in VERSIONS:
            faults.add("version", f"expected '4' (Alertmanager) or '1' (Grafana), got {request.version[:40]!r}")
        checked = [self._checked_alert(alert, f"alerts[{at}]", now, faults) for at, alert in enumerate(request.alerts)]
        faults.stop()
        return [alert for alert in checked if alert is not None]

    def _checked_alert(self, alert: WebhookAlert, path: str, now: float, faults: Faults) -> _Received | None:
        before = len(faults.errors)
        if not alert.labels:
            faults.add(f"{path}.labels", "expected at least one label")
        for name, texts in (("labels", alert.labels), ("annotations", alert.annotations)):
            if len(texts) > MAX_LABELS:
                faults.add(f"{path}.{name}", f"expected at most {MAX_LABELS}, got {len(texts)}")
            for key in list(texts)[: MAX_LABELS + 1]:
                if not 1 <= len(key) <= MAX_NAME:
                    faults.add(f"{path}.{name}", f"expected names of 1 to {MAX_NAME} characters, got {key[:40]!r}")
        for key, value in alert.labels.items():
            if len(value) > MAX_TEXT:
                faults.add(
                    f"{path}.labels.{key[:MAX_NAME]}", f"expected at most {MAX_TEXT:,} characters, got {len(value):,}"
                )
        if (size := _stored_bytes(_texts(alert.labels))) > MAX_LABELS_BYTES:
            faults.add(f"{path}.labels", f"expected at most {MAX_LABELS_BYTES:,} bytes together, got {size:,}")
        if re.fullmatch(FINGERPRINT, alert.fingerprint) is None:
            faults.add(f"{path}.fingerprint", "expected 1 to 64 of the characters A-Z a-z 0-9 _ -")
        starts_at = faults.check(f"{path}.startsAt", lambda: _start(alert.starts_at, now))
        end = faults.check(f"{path}.endsAt", lambda: moment(alert.ends_at) if alert.ends_at else 0.0)
        if len(faults.errors) > before or starts_at is None or end is None:
            return None
        firing = alert.status == "firing"
        ended_at = None if firing else end if EARLIEST <= end <= now else now
        labels = _texts(alert.labels)
        free_bytes = MAX_STORED_BYTES - _stored_bytes(labels)
        return _Received(
            fingerprint=alert.fingerprint or _hash(labels),
            firing=firing,
            labels=labels,
            annotations=_fitting(_texts(alert.annotations), free_bytes),
            generator_url=plain(alert.generator_url[:MAX_TEXT])[:MAX_TEXT],
            starts_at=starts_at,
            ended_at=ended_at,
            expires_at=end if firing and end > now else now + self._expire_s,
        )


def _subject(row: AlertRow) -> Subject:
    return Subject(row.starts_at, row.tenant, row.node, row.alertname in PROCESS_ALERTS)


def _answer(row: AlertRow, preceding: list[ChangeAnswer]) -> AlertAnswer:
    return answer(
        AlertAnswer,
        row,
        state=cast(AlertState, row.state),
        summary=row.annotations.get("summary") or row.annotations.get("description") or "",
        runbook_url=web_url(row.annotations.get("runbook_url", "")),
        generator_url=web_url(row.generator_url),
        preceding_changes=preceding,
    )


def _start(text: str, now: float) -> float:
    at = moment(text)
    if not EARLIEST <= at <= now + DAY_S:
        raise ValueError(f"expected a moment between the year 2000 and tomorrow, got {text[:40]!r}")
    return at


def _merge(row: AlertRow, alert: _Received) -> str:
    """Update the row of an alert. Return `fired`, `resolved` or `repeated`."""
    was, began = row.state, row.starts_at
    # A late message describes an earlier state than the stored one. The start alone is not enough to detect that:
    # Alertmanager moves it back when it merges alerts.
    if was and alert.firing and was != "firing" and alert.starts_at < began:
        return "repeated"
    if was and alert.ended_at is not None and alert.ended_at < began:
        return "repeated"
    row.labels, row.annotations, row.generator_url = alert.labels, alert.annotations, alert.generator_url
    row.alertname = alert.labels.get("alertname", "unnamed")[:MAX_NAME]
    for name in ("severity", "tenant", "node"):
        setattr(row, name, alert.labels.get(name, "")[:MAX_NAME])
    row.starts_at, row.ended_at, row.expires_at = alert.starts_at, alert.ended_at, alert.expires_at
    row.state = "firing" if alert.firing else "resolved"
    if alert.firing:
        return "repeated" if was == "firing" and alert.starts_at <= began else "fired"
    if was in ("resolved", "expired") and alert.starts_at <= began:
        return "repeated"
    return "resolved"


async def _expire(session: AsyncSession, now: float) -> list[_Published]:
    rows = await alerts.expire(session, now, AT_ONCE)
    events = [_event(row) for row in rows]
    await session.flush()
    await notify.post(session, [notification for _, notification in events])
    return events


def _event(row: AlertRow) -> _Published:
    """Return the event of a changed alert, and its notification for other managers."""
    shared = (row.alertname, row.severity, row.fingerprint, row.starts_at, row.tenant)
    event: AlertFired | AlertResolved
    event = AlertFired(*shared) if row.state == "firing" else AlertResolved(*shared, row.state)
    return event, Notification(name_of(event), time.time(), fields_of(event), row.node)


def web_url(text: str) -> str:
    """Return an http or https URL unchanged, and an empty string for any other text."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return ""
    return text if parts.scheme in ("http", "https") and parts.netloc else ""


def _texts(values: Mapping[str, str]) -> dict[str, str]:
    """Return labels or annotations for storage: truncated, and without invisible characters."""
    return {
        plain(name)[:MAX_NAME]: plain(value[:MAX_TEXT], lines=True)[:MAX_TEXT] for name, value in sorted(values.items())
    }


def _stored_bytes(texts: Mapping[str, str]) -> int:
    """Return the size of texts as the database stores them."""
    return len(json.dumps(texts))


def _fitting(texts: Mapping[str, str], free_bytes: int) -> dict[str, str]:
    """Return the annotations that fit into this many bytes, those that lists show first; others are left out."""
    fitting: dict[str, str] = {}
    for name in sorted(texts, key=lambda name: (name not in ("summary", "description", "runbook_url"), name)):
        free_bytes -= _stored_bytes({name: texts[name]})
        if free_bytes >= 0:
            fitting[name] = texts[name]
    return fitting


def _hash(labels: Mapping[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(sorted(labels.items()))).hexdigest()[:16]

"""Reads the events and changes that explain what is wrong, and finds it, as far as the caller may see it."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from app.errors import StoreUnavailable
from app.ingest.refusal_runs import RefusalRuns
from app.observe.events import LarderEvent
from app.schemas.views.changes import ChangeAnswer
from app.schemas.views.findings import ENDED_SHOWN_S, Finding
from app.schemas.views.overview import Overview
from app.services.base import redaction
from app.services.base.principals import PLANE, Principal
from app.services.views import applied_changes
from app.services.views.applied_changes import AppliedChanges
from app.services.views.diagnosis import REFUSAL_EVENTS, STATE_EVENTS, FleetState, bounded, findings, visible
from app.services.views.pin_problems import FurtherPins
from app.store.base.database import Database
from app.store.views import events
from app.store.views.events import EventRow

LOOK_BACK_S = 3600.0
"""How far back the overview looks at events and changes."""
STATES_BEFORE_S = 7 * 86_400.0
"""How long before that a state may have begun whose events are read."""
SHARED_S = 2.0
"""Age up to which overviews share what was read."""
MAX_EVENTS = 1000
MAX_CHANGES = 1000


@dataclass(frozen=True)
class Evidence:
    """Recent events and changes of all tenants and nodes, newest first."""

    since: float
    """Unix seconds."""
    events: Sequence[LarderEvent]
    changes: Sequence[ChangeAnswer]


class EvidenceReader:
    """Reads what happened. Overviews share what was read a moment ago."""

    def __init__(self, database: Database, changes: AppliedChanges, refusal_runs: RefusalRuns) -> None:
        self._database = database
        self._changes = changes
        self._refusal_runs = refusal_runs
        self._recent = Evidence(0.0, (), ())
        self._read_at = float("-inf")

    async def recent(self) -> Evidence:
        """Return the evidence of the last hour, read a moment ago; while it cannot be read, what was read last."""
        if time.monotonic() - self._read_at > SHARED_S:
            with suppress(StoreUnavailable):
                self._recent = await self.after(time.time() - LOOK_BACK_S)
            self._read_at = time.monotonic()
        return self._recent

    async def after(self, since: float) -> Evidence:
        """Return the newest events and changes after a time. Raises StoreUnavailable."""
        end = time.time() + LOOK_BACK_S  # clocks of nodes may be ahead
        async with self._database.read() as session:
            # States begin before the time at which the search begins.
            rows = [
                *await events.between(session, STATE_EVENTS, since - STATES_BEFORE_S, end, MAX_EVENTS),
                *await events.between(session, REFUSAL_EVENTS, since, end, MAX_EVENTS),
            ]
        changes = await self._changes.between(since, time.time(), MAX_CHANGES, PLANE)
        return Evidence(since, [_event(row) for row in sorted(rows, key=lambda row: -row.id)], changes[::-1])

    def state(self, overview: Overview, evidence: Evidence, further: FurtherPins, by: Principal) -> FleetState:
        """Return what `findings` looks at. Callers that are limited to tenants see no node's name in it."""
        lost = {node.name for node in overview.nodes if node.state == "lost"}
        refusals = self._refusal_runs.lasting(lambda node, tenant: by.sees_shown(tenant) and node not in lost)
        events = redaction.visible_events(evidence.events, by)
        if by.salts is not None:
            refusals = [run._replace(node="") for run in refusals]
            events = [msgspec.structs.replace(event, node="") for event in events]
        return FleetState(
            overview=overview,
            events=events,
            changes=applied_changes.visible(evidence.changes, by),
            more_changes=len(evidence.changes) >= MAX_CHANGES,
            refusals=refusals,
            since=evidence.since,
            further_pins=further.pins,
        )

    async def of_overview(
        self, overview: Overview, evidence: Evidence, further: FurtherPins, by: Principal
    ) -> list[Finding]:
        """Return the findings that an overview shows: those that last, or ended a short time ago."""
        oldest = overview.at - ENDED_SHOWN_S
        all_findings = await asyncio.to_thread(findings, self.state(overview, evidence, further, by))
        recent = [finding for finding in all_findings if finding.ended_at is None or finding.ended_at >= oldest]
        # A tenant that evicts its own blocks at its limit works as its quota says: only who asks about it is told.
        quiet = (finding for finding in recent if (finding.code, finding.severity) != ("tenant_at_limit", "info"))
        return bounded(visible(quiet, by), further.more)


def _event(row: EventRow) -> LarderEvent:
    return LarderEvent(row.name, row.at, row.id, row.node, row.fields, row.actor)

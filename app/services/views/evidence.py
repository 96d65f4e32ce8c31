"""Reads what `diagnosis` looks at, as far as the caller may see it: events, changes, refusals, pins with a problem."""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from app.errors import StoreUnavailable
from app.ingest.fleet import Fleet, is_empty, keeps_gpu_copies, unlisted_tiers
from app.ingest.refusal_runs import RefusalRuns
from app.observe.events import LarderEvent
from app.schemas.records.pins import PinAnswer
from app.schemas.views.changes import ChangeAnswer
from app.schemas.views.findings import ENDED_SHOWN_S, MAX_OF_TYPE, Finding
from app.schemas.views.overview import Overview
from app.services.base import redaction
from app.services.base.principals import PLANE, Principal
from app.services.records.pins import Pins
from app.services.views import applied_changes
from app.services.views.applied_changes import AppliedChanges
from app.services.views.diagnosis import REFUSAL_EVENTS, STATE_EVENTS, FleetState, bounded, findings, visible
from app.store.base.database import Database
from app.store.records import pins
from app.store.views import events
from app.store.views.events import EventRow
from dataplane.base.labels import matches
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pins import PinStats

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


@dataclass(frozen=True)
class FurtherPins:
    """Pins with a problem that an overview does not list."""

    pins: Sequence[PinAnswer] = ()
    """At most MAX_OF_TYPE for each type of finding."""
    more: Counter[str] = field(default_factory=Counter)
    """Number of the others, by type of finding."""


class EvidenceReader:
    """Reads what happened, and which pins have problems. Overviews share what was read a moment ago."""

    def __init__(
        self, database: Database, fleet: Fleet, changes: AppliedChanges, refusal_runs: RefusalRuns, pin_service: Pins
    ) -> None:
        self._database = database
        self._fleet = fleet
        self._changes = changes
        self._refusal_runs = refusal_runs
        self._pins = pin_service
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

    async def further_pins(self, overview: Overview, salts: Collection[str] | None) -> FurtherPins:
        """Return the pins of these tenants (None: of all) that have a problem and that the overview does not list.
        Raises StoreUnavailable."""
        if len(overview.pins) >= overview.pins_total:
            return FurtherPins()
        listed = {pin.name for pin in overview.pins}
        problems = await asyncio.to_thread(_problems, self._fleet.stats())
        living = self._fleet.living()
        async with self._database.read() as session:
            of_tenants = None if salts is None else await pins.names_of(session, salts)
            selectors = await pins.selectors(session)
            unmatched = [
                stored
                for stored, labels in selectors.items()
                if not any(matches(node.labels, labels) for node in living)
            ]
            if self._fleet.nodes and unmatched:
                problems["pin_not_applied"] = await pins.names_with(session, unmatched, time.time())
            omitted: Counter[str] = Counter()
            further_names: set[str] = set()
            for code, names in problems.items():
                further = sorted((names if of_tenants is None else names & of_tenants) - listed)
                further_names.update(further[:MAX_OF_TYPE])
                omitted[code] = len(further[MAX_OF_TYPE:])
            rows = await pins.named(session, further_names)
        return FurtherPins(self._pins.answers(rows), omitted)

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

    async def of_overview(self, overview: Overview, evidence: Evidence, by: Principal) -> list[Finding]:
        """Return the findings that an overview shows: those that last, or ended a short time ago. Raises
        StoreUnavailable."""
        further = await self.further_pins(overview, by.salts)
        oldest = overview.at - ENDED_SHOWN_S
        all_findings = await asyncio.to_thread(findings, self.state(overview, evidence, further, by))
        recent = [finding for finding in all_findings if finding.ended_at is None or finding.ended_at >= oldest]
        # A tenant that evicts its own blocks at its limit works as its quota says: only a request about it shows that.
        quiet = (finding for finding in recent if (finding.code, finding.severity) != ("tenant_at_limit", "info"))
        return bounded(visible(quiet, by), further.more)


def _event(row: EventRow) -> LarderEvent:
    return LarderEvent(row.name, row.at, row.id, row.node, row.fields, row.actor)


def _problems(stats: Sequence[NodeStats]) -> dict[str, set[str]]:
    """Return the names of the pins with a problem that nodes report, by type of finding."""
    stats_by_pin: dict[str, list[tuple[PinStats, NodeStats]]] = {}
    for node in stats:
        for pin in node.pins:
            stats_by_pin.setdefault(pin.name, []).append((pin, node))
    unlisted = {node.node for node in stats if unlisted_tiers(node)}
    poolless = {node.node for node in stats if not keeps_gpu_copies(node.gpu_copy_pools)}
    problems: dict[str, set[str]] = {}
    for name, on_nodes in stats_by_pin.items():
        if all(pin.expired for pin, _ in on_nodes):
            continue
        if all(is_empty(pin) for pin, _ in on_nodes):
            is_unlisted = any(node.node in unlisted for _, node in on_nodes)
            problems.setdefault("pin_unlisted" if is_unlisted else "pin_holds_nothing", set()).add(name)
        if any(pin.only_in_tiers for pin, _ in on_nodes):
            problems.setdefault("pin_in_tiers", set()).add(name)
        if any(pin.degraded for pin, _ in on_nodes):
            problems.setdefault("pin_degraded", set()).add(name)
        for_gpus = [(pin, node) for pin, node in on_nodes if pin.tier == "gpu"]
        if any(node.node in poolless for _, node in for_gpus) and not any(pin.gpu_copies for pin, _ in for_gpus):
            problems.setdefault("pin_without_gpu_copies", set()).add(name)
    return problems

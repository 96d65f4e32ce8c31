"""Diagnoses the fleet: one pure function of its state, `findings`, says what is wrong.

Each rule reads the state and yields findings of some types of `app/schemas/views/findings.py`, which has the
thresholds. A rule that knows when something began also names the change before it that most likely caused it:

1. For refusals by a limit, the latest change that tightened the tenant's quota; unless the policy was changed after it,
   because within a limit a tenant's own blocks make room as long as the policy evicts.
2. For other refusals, a change of the policy in the minutes before; then many changes of pins by one actor.
3. For processes, connections and tiers, the latest change of the node or of the fleet; records of one tenant do not
   stop a process.

A record that was deleted since explains nothing that lasts.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from app.ingest.refusal_runs import Refusal
from app.observe.events import LarderEvent
from app.schemas.fleet.nodes import NodeAnswer, NodeCondition, NodeNumbers
from app.schemas.records.pins import PinAnswer
from app.schemas.records.tenants import TenantAnswer
from app.schemas.views.alerts import AlertAnswer
from app.schemas.views.changes import ChangeAnswer
from app.schemas.views.findings import (
    AT_LIMIT_SHARE,
    CROWDED_SHARE,
    FINDING_TYPES,
    FULL_SHARE,
    ID_JOURNAL_SHARE,
    MANY_CHANGES,
    MANY_CHANGES_S,
    MAX_OF_TYPE,
    QUARANTINE_SHARE,
    RATIO_FALL,
    UNREAD_EVICTED,
    UNREAD_SHARE,
    Finding,
    FindingSubject,
    Severity,
)
from app.schemas.views.overview import Overview
from app.services.base.expiry import LATEST
from app.services.base.principals import Principal
from dataplane.base.units import format_size
from dataplane.protocol.stats.gateways import GatewayClient
from dataplane.protocol.stats.pool import PoolStats

BEFORE_S = 300.0
"""Longest time from a change of a policy to its effect."""
SLACK_S = 2.0
"""Seconds by which an effect may be recorded before its cause, because two processes have two clocks."""
RATIO_STEP_S = 10
"""Seconds of a point of the hit ratio."""
MAX_HOLDERS = 3
"""Most engines that are named as holders of leases."""
BY_QUOTA = frozenset(("over_limit", "rate_limited"))
"""Reasons of refusals that a quota can cause."""
STOPS = ("node.stopped", "dataplane.stopped")
RUNS = (*STOPS, "node.started", "node.joined")
ENDS = (*STOPS, "node.started", "node.lost", "dataplane.exited")
"""Events that end the refusals of a node when no `refusals.ended` follows."""
STATE_EVENTS = (*RUNS, "node.lost", "dataplane.exited", "tier.lost", "tier.recovered")
"""Events in which states of nodes and tiers begin and end."""
REFUSAL_EVENTS = ("refusals.started", "refusals.ended")
K = TypeVar("K")
V = TypeVar("V")
_SIZES = ("limit_bytes", "store_rate_bytes", "pin_budget_bytes")
_FLEET = FindingSubject("fleet")
_SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
_ORDER = {code: number for number, code in enumerate(FINDING_TYPES)}


@dataclass(frozen=True)
class FleetState:
    """The state of the fleet, as far as the caller may see it."""

    overview: Overview
    """Its own findings are not read."""
    events: Sequence[LarderEvent] = ()
    """Events of `STATE_EVENTS` and `REFUSAL_EVENTS`, newest first."""
    changes: Sequence[ChangeAnswer] = ()
    """Newest first."""
    more_changes: bool = False
    """Whether there are earlier changes after `since` that are not among them."""
    refusals: Sequence[Refusal] = ()
    """Refusals that last."""
    since: float = 0.0
    """Unix seconds. Earlier events say only in which state nodes and tiers were, and earlier changes are not known."""
    alerts: Sequence[AlertAnswer] = ()
    """Alerts that fire."""
    hit_ratio: Sequence[tuple[float, float | None]] = ()
    """Time and hit ratio of the RATIO_STEP_S before it."""
    further_pins: Sequence[PinAnswer] = ()
    """Pins with a problem that the overview does not list."""

    @property
    def pins(self) -> Iterator[PinAnswer]:
        yield from self.overview.pins
        yield from self.further_pins

    @cached_property
    def nodes_by_name(self) -> dict[str, NodeAnswer]:
        return {node.name: node for node in self.overview.nodes}

    @cached_property
    def events_by_node(self) -> dict[str, list[LarderEvent]]:
        """Newest first."""
        return _grouped(self.events, lambda event: event.node)

    @cached_property
    def quota_changes(self) -> dict[str, list[ChangeAnswer]]:
        """Changes of quotas by tenant, newest first."""
        return _grouped((change for change in self.changes if change.kind == "quota"), lambda change: change.tenant)

    @cached_property
    def policy_changes(self) -> list[ChangeAnswer]:
        """Newest first."""
        return [change for change in self.changes if change.kind == "policy"]

    @cached_property
    def pin_burst(self) -> tuple[ChangeAnswer, str] | None:
        """The latest of many changes of pins by one actor, and what they were; None without such."""
        bursts = (burst for burst in _bursts(self) if burst.kind == "pin" and burst.verb != "deleted")
        pool = self.overview.pool
        return next(((burst.changes[0], f"{burst.what}, {burst.detail(pool)}") for burst in bursts), None)

    @cached_property
    def deletions(self) -> dict[tuple[str, str], list[ChangeAnswer]]:
        """Deletions by kind and name of their record, newest first."""
        deleted = (change for change in self.changes if change.action == "delete")
        return _grouped(deleted, lambda change: (change.kind, change.name))


def _grouped(items: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    groups: dict[K, list[V]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def findings(state: FleetState) -> list[Finding]:
    """Return what is wrong: what lasts first, then by severity, then what explains most."""
    return sorted((finding for rule in _RULES for finding in rule(state)), key=_order)


def bounded(findings: Sequence[Finding], more_of: Mapping[str, int]) -> list[Finding]:
    """Return the first findings of each type, and in place of the others how many there are. `more_of`: how many others
    of a type there are besides those that are found."""
    counts = Counter(finding.code for finding in findings)
    counts.update(more_of)
    shown: Counter[str] = Counter()
    listed = []
    for finding in findings:
        shown[finding.code] += 1
        omitted = counts[finding.code] - MAX_OF_TYPE + 1
        if shown[finding.code] < MAX_OF_TYPE or counts[finding.code] == MAX_OF_TYPE:
            listed.append(finding)
        elif shown[finding.code] == MAX_OF_TYPE:
            what, subject = f"{omitted:,} more: {finding.code.replace('_', ' ')}", FindingSubject(finding.subject.kind)
            summary = msgspec.structs.replace(finding, subject=subject, what=what, detail="", likely_change=None)
            listed.append(msgspec.structs.replace(summary, count=omitted))
    return listed


def visible(findings: Iterable[Finding], by: Principal) -> list[Finding]:
    """Return the findings that the caller may see: one that is limited to tenants, only those about its tenants."""
    if by.salts is None:
        return list(findings)
    return [finding for finding in findings if finding.subject.tenant and by.sees_shown(finding.subject.tenant)]


def concerning(findings: Iterable[Finding], tenant: str | None, node: str | None) -> list[Finding]:
    """Return the findings about a tenant, a node or the fleet (None: about any): own ones first, notes and what ended
    last."""

    def concerns(subject: FindingSubject) -> bool:
        if tenant is not None and subject.tenant != tenant and (subject.tenant or subject.kind == "pin"):
            return False
        return node is None or subject.node == node or not (subject.node or subject.tenant)

    def is_foreign(finding: Finding) -> bool:
        subject = finding.subject
        return (tenant is not None and subject.tenant != tenant) or (node is not None and subject.node != node)

    concerned = [finding for finding in findings if concerns(finding.subject)]
    return sorted(
        concerned, key=lambda finding: (finding.ended_at is not None, finding.severity == "info", is_foreign(finding))
    )


def likely_cause(findings: Iterable[Finding]) -> str:
    """Return the first finding that explains trouble, with its change, as sentences; empty if none does."""
    explaining = [
        finding
        for finding in findings
        if FINDING_TYPES[finding.code].explains
        and (finding.severity != "info" or finding.likely_change or finding.code == "many_changes")
    ]
    return next(map(sentence, explaining), "")


def sentence(finding: Finding) -> str:
    """Return a finding as sentences: what, since when, why, and the change before it."""
    since, ended_at, change = finding.since, finding.ended_at, finding.likely_change
    when = ""
    if ended_at is not None:
        when = (
            f" at {clock(ended_at)}" if since in (None, ended_at) else f" from {clock(since or 0)} to {clock(ended_at)}"
        )
    elif since is not None:
        when = f" since {clock(since)}"
    text = f"{finding.what}{when}{': ' if finding.detail else ''}{finding.detail}."
    if change is None:
        return text
    seconds = 0.0 if since is None else max(since - change.at, 0)
    before = "" if since is None else f", {f'{seconds:.0f} s' if seconds >= 1 else 'less than a second'} earlier"
    return f"{text} The latest change before it{before}: {change.summary} {author(change)}."


def author(change: ChangeAnswer) -> str:
    """Return the actor, time and audit entry of a change: `by alice at 12:00:00Z (audit entry 7)`."""
    by = f"by {change.actor} " if change.actor else ""
    entry = "" if change.audit_id is None else f" (audit entry {change.audit_id})"
    return f"{by}at {clock(change.at)}{entry}"


def clock(seconds: float) -> str:
    """Return the time of day."""
    return datetime.fromtimestamp(_showable(seconds), UTC).strftime("%H:%M:%SZ")


def _showable(seconds: float) -> float:
    """Return the nearest time that any client can show: nodes may report any number."""
    return min(max(0.0, seconds), LATEST - 1)


def _order(finding: Finding) -> tuple[bool, int, int]:
    return finding.ended_at is not None, _SEVERITIES.index(finding.severity), _ORDER[finding.code]


def _finding(
    code: str,
    subject: FindingSubject,
    what: str,
    detail: str = "",
    *,
    since: float | None = None,
    ended_at: float | None = None,
    severity: Severity | None = None,
    change: ChangeAnswer | None = None,
) -> Finding:
    declared = FINDING_TYPES[code]
    runbook = f"/docs/operate/runbook.md#{declared.runbook}" if declared.runbook else ""
    began_at = None if since is None else _showable(since)
    over_at = None if ended_at is None else _showable(ended_at)
    shown_severity = severity or ("info" if ended_at is not None else declared.severity)
    return Finding(code, shown_severity, subject, what, detail, began_at, over_at, change, declared.to_do, runbook)


def _of_node(node: NodeAnswer) -> FindingSubject:
    return FindingSubject("node", node.name, node=node.name)


# ---- the fleet and its nodes


def _fleet(state: FleetState) -> Iterator[Finding]:
    overview, nodes = state.overview, state.overview.nodes
    states = {node.state for node in nodes}
    if not nodes:
        severity: Severity = "warning" if overview.ready else "critical"
        yield _finding("no_node", _FLEET, "No node has joined", "nothing is cached until one does", severity=severity)
        return
    if not overview.ready and states == {"joining"}:
        yield _finding("no_node_connected", _FLEET, "No node is connected", "nothing is cached until one is")
    elif not overview.ready and states <= {"joining", "in_sync"}:
        yield _finding("not_ready", _FLEET, "Larder is not ready")
    if not overview.armed and not any(node.stats is not None and not node.stats.armed for node in nodes):
        detail = "no snapshot of the quotas is in force yet: every tenant may use the whole pool"
        if states == {"lost"}:
            detail = "no node is connected; each enforces the quotas that it applied last"
        yield _finding("quotas_not_enforced", _FLEET, "Quotas are not enforced", detail)
    pool = overview.pool
    if pool.capacity_bytes and pool.quarantined_bytes >= QUARANTINE_SHARE * pool.capacity_bytes:
        detail = "they are released when the engines that may still write to them are proven gone"
        yield _finding("quarantine", _FLEET, f"{format_size(pool.quarantined_bytes)} are quarantined", detail)


def _nodes(state: FleetState) -> Iterator[Finding]:
    for node in state.overview.nodes:
        subject = _of_node(node)
        if node.state == "lost":
            yield _lost(state, node)
        elif node.state == "nacked":
            yield _refused_snapshot(node)
        elif node.state == "behind":
            lacking = [
                f"{kind} {'none' if observed is None else observed.generation} of {generation}"
                for kind, generation in sorted(node.desired.items())
                if ((observed := node.observed.get(kind)) is None and generation)
                or (observed and observed.generation != generation)
            ]
            yield _finding("node_behind", subject, f"Node {node.name} is behind", ", ".join(lacking))
        elif node.state == "joining":
            yield _finding("node_joining", subject, f"Node {node.name} is joining")
        if node.draining:
            drain = _change(state, _drains(node.name))
            drained_at = None if drain is None else drain.at
            is_draining = node.stats is not None and node.stats.draining
            detail = "it stores nothing more" if is_draining else "it receives the request to drain when it connects"
            yield _finding("node_draining", subject, f"Node {node.name} drains", detail, since=drained_at, change=drain)
        if offset_s := node.clock_offset_s:
            ahead = f"{abs(offset_s):.0f} s {'ahead' if offset_s > 0 else 'behind'}"
            detail = "pins end by the clock of the node"
            yield _finding("clock_offset", subject, f"The clock of node {node.name} is {ahead}", detail)
        for condition in node.conditions:
            yield _condition(state, node, condition)
        if node.stats is not None:
            yield from _reported(state, node, node.stats)


def _drains(node: str) -> Callable[[ChangeAnswer], bool]:
    return lambda change: (change.node, change.action) == (node, "drain")


def _lost(state: FleetState, node: NodeAnswer) -> Finding:
    events = state.events_by_node.get(node.name, ())
    lost = next((event for event in events if event.name == "node.lost"), None)
    last = next((event for event in events if event.name in RUNS), None)
    detail = "it neither receives snapshots nor reports; its process or the network failed"
    if last is not None and last.name in STOPS:
        detail = f"its data plane was stopped at {clock(last.at)} and has not started again"
    elif not node.seen_at:
        detail = "it has never reported"
    since = lost.at if lost is not None else node.seen_at or None
    what, change = f"Node {node.name} is lost", _before(state, node.name, since)
    return _finding("node_lost", _of_node(node), what, detail, since=since, change=change)


def _refused_snapshot(node: NodeAnswer) -> Finding:
    detail, since = "it keeps its last good state", None
    if node.faults:
        fault, further = node.faults[0], len(node.faults) - 1
        detail = f"{fault.type} generation {fault.generation}, {fault.path}: {fault.message.rstrip('.')}"
        detail += f"; and {further} more" if further else ""
        since = fault.at
    what = f"Node {node.name} refuses the newest snapshot"
    return _finding("snapshot_refused", _of_node(node), what, detail, since=since)


_CONDITIONS = {
    "crash_loop": "in a crash loop",
    "thrashing": "thrashing",
    "tenant_at_limit": "refusing blocks of a tenant at its limit",
}


def _condition(state: FleetState, node: NodeAnswer, condition: NodeCondition) -> Finding:
    what = f"Node {node.name} {'is' if condition.ended_at is None else 'was'} {_CONDITIONS[condition.type]}"
    detail, change = condition.message, None
    if condition.type == "crash_loop":
        change = _before(state, node.name, condition.since)
        if ends := _unexpected_ends(state, node.name):
            detail += f", the last one {ends[-1].how}"
    since, ended_at = condition.since, condition.ended_at
    return _finding(condition.type, _of_node(node), what, detail, since=since, ended_at=ended_at, change=change)


def _reported(state: FleetState, node: NodeAnswer, stats: NodeNumbers) -> Iterator[Finding]:
    """Yield the findings that follow from the statistics of a node."""
    subject, start = _of_node(node), stats.start
    if not stats.armed:
        what, detail = f"Quotas are not enforced on node {node.name}", "it has no snapshot of the quotas yet"
        yield _finding("quotas_not_enforced", subject, what, detail)
    if stats.cold:
        nbytes = f" ({format_size(start.lost_bytes)})" if start.lost_bytes else ""  # 0: only the number is known
        lost = f"{_plural(start.lost_blocks, 'block')}{nbytes} {'was' if start.lost_blocks == 1 else 'were'} lost"
        detail = f"{lost}{f': {start.reason}' if start.reason else ''}"
        if in_tiers := sum(tier.blocks for tier in stats.tiers):
            detail += f"; tiers hold {_plural(in_tiers, 'block')}, which are loaded when engines ask for them"
        yield _finding("cache_cold", subject, f"The cache of node {node.name} is cold", detail, since=start.at)
    for gpu in stats.gpu_copy_pools:
        if gpu.problem:
            what = f"GPU copies on a GPU of node {node.name} have a problem"
            yield _finding("gpu_copies_fail", subject, what, f"{gpu.name} {gpu.device}: {gpu.problem}")
    serving = [tier.name for tier in stats.tiers if tier.serves]
    for tier in stats.tiers:
        if not tier.serves:
            yield _tier_out(state, node.name, tier.name, tier.state, tier.reason, serving)
        elif tier.listing_fault:
            what = f"Tier {tier.name} of node {node.name} cannot be listed"
            tier_subject = FindingSubject("tier", tier.name, node=node.name)
            yield _finding("tier_not_listed", tier_subject, what, f"{tier.listing_fault}; it is tried again")
    if stats.tier_directory_unlisted:
        times = stats.tier_directory_unlisted
        detail = (
            f"it lists {stats.tier_directory_blocks:,} blocks; {times:,} times a block did not fit, and engines do not "
            "find it"
        )
        yield _finding("tier_directory_full", subject, f"The tier directory of node {node.name} is full", detail)
    gateway = stats.gateway
    if gateway is not None and gateway.problem:
        what = f"New workers cannot use the gateway of node {node.name}"
        yield _finding("gateway_unreachable", subject, what, gateway.problem)
    if gateway is not None:
        yield from _refused_clients(node.name, gateway.clients)
    used, capacity = stats.id_journal_bytes, stats.id_journal_capacity_bytes
    if capacity and used >= ID_JOURNAL_SHARE * capacity:
        detail = f"{used / capacity:.0%} full of tenants with blocks; further tenants are refused when it is full"
        yield _finding("id_journal_fills", subject, f"The id journal of node {node.name} is nearly full", detail)
    pool = stats.pool
    is_degraded = any(pin.degraded and not pin.expired for pin in state.pins)  # then that is the finding
    if not is_degraded and pool.pin_budget_bytes and pool.pinned_bytes > FULL_SHARE * pool.pin_budget_bytes:
        largest = sorted(state.pins, key=lambda pin: -pin.bytes)[:3]
        holders = ", ".join(f"{pin.name} of {pin.tenant} ({format_size(pin.bytes)})" for pin in largest)
        detail = f"{format_size(pool.pinned_bytes)} of {format_size(pool.pin_budget_bytes)}"
        detail += f"; the largest: {holders}" if holders else ""
        yield _finding("pin_budget_full", subject, f"Pins fill their budget on node {node.name}", detail)


def _refused_clients(node: str, clients: Iterable[GatewayClient]) -> Iterator[Finding]:
    """Yield clients whose requests are refused as a whole: they store and find nothing, without a report. Connections
    with the same fault are one finding."""
    refused: dict[tuple[int, str, str, str], int] = {}
    for client in clients:
        if client.refused or client.unknown:
            key = (client.pid, client.release, client.unknown, client.reason)
            refused[key] = refused.get(key, 0) + client.refused
    for (pid, release, unknown, reason), count in refused.items():
        parts = [
            f"{f'pid {pid}' if pid else 'a client of an unknown process'}{f' (LMCache {release})' if release else ''}",
            f"sends what no known release sends: {unknown}" if unknown else "",
            f"{_plural(count, 'request')} refused",
            f"the last one: {reason}" if reason and reason != unknown else "",
        ]
        subject, what = FindingSubject("node", node, node=node), f"Node {node} refuses requests of an LMCache client"
        yield _finding("gateway_client_refused", subject, what, ", ".join(filter(None, parts)))


def _tier_out(state: FleetState, node: str, tier: str, phase: str, reason: str, serving: Sequence[str]) -> Finding:
    subject = FindingSubject("tier", tier, node=node)
    if phase == "opening":
        return _finding("tier_opening", subject, f"Tier {tier} of node {node} is opening", reason)
    newest = next(_tier_events(state, node, tier), None)
    since = newest.at if newest is not None and newest.name == "tier.lost" else None
    source = f"memory and from {', '.join(serving)}" if serving else "its memory"
    detail = f"{f'{reason}; ' if reason else ''}the node serves blocks only from {source}"
    what, change = f"Tier {tier} of node {node} is out of service", _before(state, node, since, tier)
    return _finding("tier_out_of_service", subject, what, detail, since=since, change=change)


def _tiers_that_recovered(state: FleetState) -> Iterator[Finding]:
    for node in state.overview.nodes:
        for tier in node.stats.tiers if node.stats is not None else ():
            events = list(_tier_events(state, node.name, tier.name))
            lost = next((event for event in events if event.name == "tier.lost"), None)
            if not tier.serves or lost is None or lost.at < state.since:
                continue
            ended_at = max(events[0].at, lost.at)
            subject = FindingSubject("tier", tier.name, node=node.name)
            what, reason = (
                f"Tier {tier.name} of node {node.name} was out of service",
                str(lost.fields.get("reason", "")),
            )
            change = _before(state, node.name, lost.at, tier.name)
            since = lost.at
            yield _finding("tier_out_of_service", subject, what, reason, since=since, ended_at=ended_at, change=change)


def _tier_events(state: FleetState, node: str, tier: str) -> Iterator[LarderEvent]:
    """Yield the events that a tier of a node is out of service or in service again, newest first."""
    for event in state.events_by_node.get(node, ()):
        if event.name in ("tier.lost", "tier.recovered") and event.fields.get("tier") == tier:
            yield event


@dataclass(frozen=True)
class _End:
    """An unexpected end of a data plane's process."""

    at: float
    how: str


def _unexpected_ends(state: FleetState, node: str) -> list[_End]:
    """Return the unexpected ends of a node's processes, oldest first: exits that a supervisor reported, and processes
    that were replaced although they had not announced their stop."""
    ends: list[_End] = []
    epochs: set[object] = set()
    announced, lost_at = False, None
    for event in reversed(state.events_by_node.get(node, [])):
        if event.name == "dataplane.exited":
            announced, code = True, event.fields.get("code")
            if code != 0:
                ends.append(_End(event.at, _exit(code, event.fields.get("restart_in_s"))))
        elif event.name in STOPS:
            announced = True
        elif event.name == "node.lost":
            lost_at = event.at
        elif event.name == "node.joined":
            epoch = event.fields.get("epoch")
            if epochs and epoch not in epochs and not announced:
                ends.append(_End(lost_at or event.at, "without notice: killed, or the machine failed"))
            if epoch not in epochs:
                announced = False
            epochs.add(epoch)
            lost_at = None
    return [end for end in ends if end.at >= state.since]


def _exit(code: object, restart_in_s: object) -> str:
    how = "exit code unknown"
    if isinstance(code, int):
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    if not isinstance(restart_in_s, int | float):
        return how
    return f"{how}, started again {f'after {restart_in_s:.0f} s' if restart_in_s >= 1 else 'at once'}"


def _exits(state: FleetState) -> Iterator[Finding]:
    for node in state.overview.nodes:
        ends = _unexpected_ends(state, node.name)
        if not ends or any(condition.type == "crash_loop" for condition in node.conditions):
            continue
        times = "once" if len(ends) == 1 else f"{len(ends)} times"
        what, first, last = f"The data plane of node {node.name} exited {times}", ends[0], ends[-1]
        change = _before(state, node.name, first.at)
        yield _finding(
            "dataplane_exited", _of_node(node), what, last.how,
            since=first.at, ended_at=last.at, severity="warning", change=change,
        )  # fmt: skip


# ---- tenants


def _refusals(state: FleetState) -> Iterator[Finding]:
    runs: dict[tuple[str, str], Refusal] = {}
    for run in state.refusals:  # a caller that may not see nodes has several of one tenant
        previous = runs.get((run.node, run.tenant), run._replace(blocks={}))
        blocks = dict(Counter(run.blocks) + Counter(previous.blocks))
        runs[run.node, run.tenant] = run._replace(since=min(run.since, previous.since), blocks=blocks)
    ended: list[tuple[LarderEvent, str, float]] = []
    for event, ended_at in _stored_refusals(state.events):
        tenant = event.fields.get("tenant")
        if not isinstance(tenant, str):
            continue
        current = runs.get((event.node, tenant))
        if ended_at is None and current is not None:  # it began before this manager did
            runs[event.node, tenant] = current._replace(since=min(current.since, event.at))
        elif event.at >= state.since and (current is None or event.at < current.since - SLACK_S):
            ended.append((event, tenant, event.at if ended_at is None else ended_at))
    for run in runs.values():
        yield _refusal(state, run, None)
    for event, tenant, ended_at in ended:
        reasons = {str(event.fields.get("reason", "refused")): 0}
        yield _refusal(state, Refusal(event.node, tenant, event.at, reasons), ended_at)


def _refusal(state: FleetState, run: Refusal, ended_at: float | None) -> Finding:
    reasons = sorted(run.blocks, key=lambda reason: -run.blocks[reason])
    counts = ", ".join(f"{run.blocks[reason]:,} {reason}" for reason in reasons if run.blocks[reason])
    where = f" on node {run.node}" if run.node else ""
    what = f"Blocks of tenant {run.tenant} {'are' if ended_at is None else 'were'} refused ({reasons[0]}){where}"
    change, detail = _cause_of_refusal(state, run, ended_at), counts
    node = state.nodes_by_name.get(run.node)
    if ended_at is None and not BY_QUOTA.intersection(reasons):
        if "pool_full" in reasons and node is not None and (leasing := holders(node)):
            assert node.stats is not None
            blocks = _plural(node.stats.pool.blocks, "block")
            detail += f"{'; ' if detail else ''}of {blocks}, engines lease: {'; '.join(leasing)}"
            detail += "; larder engines expel ends the leases of a process"
        if change is None and state.pin_burst is not None:
            change, text = state.pin_burst
            detail += f"{'; ' if detail else ''}{text}"
    subject = FindingSubject("tenant", run.tenant, run.node, run.tenant)
    return _finding("blocks_refused", subject, what, detail, since=run.since, ended_at=ended_at, change=change)


def _cause_of_refusal(state: FleetState, run: Refusal, ended_at: float | None) -> ChangeAnswer | None:
    """Return the change of a quota or policy that refusals followed."""

    def applies(change: ChangeAnswer) -> bool:
        deleted_at = _deleted_at(state, change)
        is_in_force = deleted_at is None or (ended_at is not None and run.since <= deleted_at + SLACK_S)
        return is_in_force and change.at <= run.since + SLACK_S

    policies = (change for change in state.policy_changes if run.since <= change.at + BEFORE_S and applies(change))
    policy = next(policies, None)
    if BY_QUOTA.intersection(run.blocks):
        changes = state.quota_changes.get(run.tenant, ())
        quota = next((change for change in changes if _tightens(change, run.tenant) and applies(change)), None)
        if quota is not None and (policy is None or policy.at <= quota.at or _rejects(quota)):
            return quota
    return policy


def _stored_refusals(events: Sequence[LarderEvent]) -> Iterator[tuple[LarderEvent, float | None]]:
    """Yield the begin of refusals and the time at which they ended, with their node at the latest; None if no event
    ends them."""
    started_by_node: dict[str, dict[object, LarderEvent]] = {}
    for event in reversed(events):
        tenants, tenant = started_by_node.setdefault(event.node, {}), event.fields.get("tenant")
        if event.name == "refusals.started":
            tenants.setdefault(tenant, event)
        elif event.name == "refusals.ended" and tenant in tenants:
            yield tenants.pop(tenant), event.at
        elif event.name in ENDS:
            yield from ((started, event.at) for started in tenants.values())
            tenants.clear()
    yield from ((started, None) for tenants in started_by_node.values() for started in tenants.values())


def _tightens(change: ChangeAnswer, tenant: str) -> bool:
    """Return whether a change of a tenant's quota allows it less."""
    if (change.kind, change.tenant) != ("quota", tenant):
        return False
    return _rejects(change) or any(
        field.name in _SIZES and isinstance(field.after, int) and (field.before is None or field.after < field.before)
        for field in change.fields
    )


def _rejects(change: ChangeAnswer) -> bool:
    """Return whether, since a change, a tenant's own blocks no longer make room at its limit."""
    fields = {field.name: field.after for field in change.fields}
    return change.action == "update" and fields.get("on_exceed") == "reject"


def holders(node: NodeAnswer) -> list[str]:
    """Return the engines of a node that lease the most blocks, as text, at most MAX_HOLDERS of them."""
    engines = [] if node.stats is None else [engine for engine in node.stats.engines if engine.leased_blocks]
    return [
        f"{engine.engine or 'an engine'} (client {engine.client}, {f'pid {engine.pid}' if engine.pid else 'no pid'}): "
        f"{_plural(engine.leased_blocks, 'block')}"
        for engine in sorted(engines, key=lambda engine: -engine.leased_blocks)[:MAX_HOLDERS]
    ]


def _tenants(state: FleetState) -> Iterator[Finding]:
    overview = state.overview
    is_used = overview.totals.evicted_blocks >= UNREAD_EVICTED
    for tenant in overview.tenants:
        subject = FindingSubject("tenant", tenant.tenant, tenant=tenant.tenant)
        limit, share = tenant.limit_bytes or 0, tenant.limit_share or 0.0
        tightening = _tightening(state, tenant.tenant)
        since = None if tightening is None else tightening.at
        if tenant.over_limit:
            excess_bytes = round((share - 1) * limit)
            excess = f" by {format_size(excess_bytes)} on a node" if excess_bytes > 0 else ""
            what, detail = (
                f"Tenant {tenant.tenant} is over its limit{excess}",
                "its blocks beyond it are leased or pinned",
            )
            yield _finding("tenant_over_limit", subject, what, detail, change=tightening)
        elif tightening is not None and limit and share >= AT_LIMIT_SHARE:
            detail = "stores beyond it are refused" if tenant.on_exceed == "reject" else "its own blocks are evicted"
            what = f"Tenant {tenant.tenant} is at its limit"
            yield _finding(
                "tenant_at_limit", subject, what, detail, since=since, change=tightening,
                severity="warning" if tenant.on_exceed == "reject" else "info",
            )  # fmt: skip
        if is_used and _never_hits(overview, tenant):
            yield _unread(overview, tenant, subject)


def _tightening(state: FleetState, tenant: str) -> ChangeAnswer | None:
    """Return the newest change that tightened the quota of a tenant, if it is in force."""
    changes = state.quota_changes.get(tenant, ())
    return next(
        (change for change in changes if _tightens(change, tenant) and _deleted_at(state, change) is None), None
    )


def _never_hits(overview: Overview, tenant: TenantAnswer) -> bool:
    is_large = tenant.stored_blocks > UNREAD_SHARE * overview.totals.stored_blocks
    return not tenant.hit_blocks and bool(tenant.requested_blocks) and is_large


def _unread(overview: Overview, tenant: TenantAnswer, subject: FindingSubject) -> Finding:
    is_limited = tenant.limit_bytes is not None and tenant.mode == "enforce"
    is_alone = is_limited or tenant.evicted_blocks >= FULL_SHARE * overview.totals.evicted_blocks
    is_full = overview.pool.used_bytes > FULL_SHARE * overview.pool.capacity_bytes
    effect = "its stores evict blocks of others"
    if is_alone:
        effect = "its limit bounds what it takes from others" if is_limited else "it evicts its own blocks"
    detail = (
        f"none of {_plural(tenant.requested_blocks, 'block')} that it requested was cached, and it stored "
        f"{tenant.stored_blocks:,}; {effect}"
    )
    severity: Severity = "info" if is_alone or not is_full else "warning"
    return _finding(
        "tenant_never_hits", subject, f"Tenant {tenant.tenant} stores and never hits", detail, severity=severity
    )


# ---- pins, policies and changes


def _pins(state: FleetState) -> Iterator[Finding]:
    explained = {node.name for node in state.overview.nodes if node.state not in ("in_sync", "lost")}
    for pin in state.pins:
        subject = FindingSubject("pin", pin.name, tenant=pin.tenant)
        if pin.holds_nothing:
            blocks = (
                "its only block is not cached; it is"
                if pin.resolved == 1
                else f"none of its {pin.resolved:,} blocks is cached; they are"
            )
            detail = f"{blocks} kept as soon as an engine stores {'it' if pin.resolved == 1 else 'them'}"
            yield _finding("pin_holds_nothing", subject, f"Pin {pin.name} holds nothing", detail)
        if pin.only_in_tiers:
            yield _finding("pin_in_tiers", subject, f"Pin {pin.name} is not fully in memory", _only_in_tiers(pin))
        if tiers := pin.unlisted_tiers:
            first_listing = f"the listing of tier {tiers[0]} is complete"
            until = first_listing if len(tiers) == 1 else f"the listings of the tiers {', '.join(tiers)} are complete"
            detail = f"none of its blocks is in memory; whether tiers hold them is unknown until {until}"
            yield _finding("pin_unlisted", subject, f"It is not known yet whether pin {pin.name} holds blocks", detail)
        if pin.expired:
            continue
        if pin.degraded:
            detail = "blocks beyond the pin budget may be evicted"
            yield _finding("pin_degraded", subject, f"Pin {pin.name} is degraded", detail)
        reasons = {condition.reason for progress in pin.status.nodes.values() for condition in progress.conditions}
        if pin.tier == "gpu" and not pin.gpu_copies and "NoGpuCopyPool" in reasons:
            detail = "no GPU keeps them yet; blocks are read from the pools of nodes"
            yield _finding("pin_without_gpu_copies", subject, f"Pin {pin.name} has no GPU copies", detail)
        if not pin.status.applied and not explained.intersection(pin.status.nodes):
            messages = [
                condition.message
                for condition in pin.status.conditions
                if condition.type == "Applied" and condition.message
            ]
            detail = messages[0] if messages else "no connected node that its labels select has confirmed it yet"
            yield _finding("pin_not_applied", subject, f"Pin {pin.name} is not applied", detail)
    policy = state.overview.policy
    if policy is not None and state.overview.nodes and not explained and not policy.status.applied:
        subject, detail = FindingSubject("policy", policy.name), "no connected node has confirmed it yet"
        yield _finding("policy_not_applied", subject, "The policy is not applied", detail)


def _only_in_tiers(pin: PinAnswer) -> str:
    """Return how many blocks of a pin are not in memory, and what happens to them."""
    next_steps = {
        "budget": "no room in the pin budget",
        "failed": "the last load failed, and is tried again",
        "detached": "loaded once an engine of the model attaches",
    }
    blocks = f"{pin.only_in_tiers:,} of {_plural(pin.resolved, 'block')} {'is' if pin.only_in_tiers == 1 else 'are'}"
    return f"{blocks} only in tiers, not in memory: {next_steps.get(pin.not_loaded, 'being loaded')}"


def _policies(state: FleetState) -> Iterator[Finding]:
    changed = _change(state, lambda change: change.kind == "policy" and _deleted_at(state, change) is None)
    subject = FindingSubject("policy", "" if changed is None else changed.name)
    nodes = [node.name for node in state.overview.nodes if node.stats and node.stats.policy.algorithm == "noop"]
    if nodes:
        where = f"{len(nodes)} nodes" if len(nodes) > 3 else ", ".join(nodes)
        detail = f"it is in force on {where}: blocks are refused when the pool or a tenant's limit is full"
        severity: Severity = "warning" if state.refusals else "info"
        what, since = "The policy noop evicts nothing", None if changed is None else changed.at
        yield _finding("policy_evicts_nothing", subject, what, detail, since=since, severity=severity, change=changed)
    for change in state.changes:
        if change.kind != "policy" or _deleted_at(state, change) is not None:
            continue
        before = _ratio(state, change.at - BEFORE_S, change.at)
        after = _ratio(state, change.at + RATIO_STEP_S + SLACK_S, float("inf"))
        if before is not None and after is not None and before - after >= RATIO_FALL:
            what = f"The hit ratio fell from {before:.0%} to {after:.0%}"
            yield _finding(
                "hit_ratio_fell", FindingSubject("policy", change.name), what, since=change.at, change=change
            )
            return


def _ratio(state: FleetState, start: float, end: float) -> float | None:
    ratios = [ratio for when, ratio in state.hit_ratio if start <= when <= end and ratio is not None]
    return sum(ratios) / len(ratios) if len(ratios) >= 3 else None


@dataclass(frozen=True)
class _Burst:
    """Many changes of one kind of record by one actor, each a short time after the one before."""

    kind: str
    verb: str
    actor: str
    changes: list[ChangeAnswer]
    """Newest first."""
    is_cut: bool
    """Whether there may have been earlier ones that are not known."""

    @property
    def what(self) -> str:
        tenants = [name for name, _ in Counter(change.tenant for change in self.changes).most_common(3) if name]
        of = f" of {', '.join(tenants)}" if tenants else ""
        records, changes = len({change.name for change in self.changes}), len(self.changes)
        kind = self.kind if records == 1 else _kinds(self.kind)
        at_least = "at least " if self.is_cut else ""
        if records == changes:
            return f"{self.actor} {self.verb} {at_least}{records:,} {kind}{of}"
        return f"{self.actor} {self.verb} {records:,} {kind}{of} {at_least}{changes:,} times"

    def detail(self, pool: PoolStats) -> str:
        """Return where the changes are in the audit log, and what pins keep of the pool."""
        entries = [change.audit_id for change in self.changes if change.audit_id is not None]
        parts = [f"audit entries {min(entries)} to {max(entries)}"] if entries else []
        if self.kind == "pin" and pool.capacity_bytes:
            budget = f", with a budget of {format_size(pool.pin_budget_bytes)}" if pool.pin_budget_bytes else ""
            parts.append(f"pins keep {format_size(pool.pinned_bytes)} of {format_size(pool.capacity_bytes)}{budget}")
        return "; ".join(parts)


def _kinds(kind: str) -> str:
    return f"{kind.removesuffix('y')}ies" if kind.endswith("y") else f"{kind}s"


_VERBS = {"create": "created", "update": "changed", "delete": "deleted"}


def _bursts(state: FleetState) -> Iterator[_Burst]:
    groups: dict[tuple[str, str, str], list[ChangeAnswer]] = {}
    for change in state.changes:
        if not change.actor or change.action not in _VERBS or change.at < state.since:
            continue
        if change.action != "delete" and _deleted_at(state, change) is not None:
            continue
        group = groups.setdefault((change.kind, _VERBS[change.action], change.actor), [])
        if not group or group[-1].at - change.at <= MANY_CHANGES_S:
            group.append(change)
    for (kind, verb, actor), changes in groups.items():
        if len(changes) >= MANY_CHANGES:
            is_cut = state.more_changes and changes[-1].at - state.changes[-1].at <= MANY_CHANGES_S
            yield _Burst(kind, verb, actor, changes, is_cut)


def _many_changes(state: FleetState) -> Iterator[Finding]:
    pool = state.overview.pool
    is_crowded = pool.pinned_bytes >= CROWDED_SHARE * pool.capacity_bytes > 0
    for burst in _bursts(state):
        is_cause = burst.kind == "pin" and burst.verb != "deleted" and is_crowded
        tenants = {change.tenant for change in burst.changes}
        tenant = tenants.pop() if len(tenants) == 1 and not is_cause else ""
        yield _finding(
            "many_changes", FindingSubject("actor", burst.actor, tenant=tenant), burst.what, burst.detail(pool),
            since=burst.changes[-1].at, ended_at=None if is_cause else burst.changes[0].at,
            severity="warning" if is_cause else "info",
        )  # fmt: skip


def _alerts(state: FleetState) -> Iterator[Finding]:
    for alert in state.alerts:
        subject = _of_alert(alert)
        change = next(iter(alert.preceding_changes), None)
        severity: Severity = "info" if alert.severity.lower() in ("info", "none", "low") else "warning"
        what = f"Alert {alert.alertname} fires"
        yield _finding(
            "alert_firing", subject, what, alert.summary, since=alert.starts_at, severity=severity, change=change
        )


def _of_alert(alert: AlertAnswer) -> FindingSubject:
    if alert.tenant:
        return FindingSubject("tenant", alert.tenant, alert.node, alert.tenant)
    return FindingSubject("node", alert.node, alert.node) if alert.node else _FLEET


_RULES: tuple[Callable[[FleetState], Iterator[Finding]], ...] = (
    _fleet,
    _nodes,
    _tiers_that_recovered,
    _exits,
    _refusals,
    _tenants,
    _pins,
    _policies,
    _many_changes,
    _alerts,
)


# ---- changes


def _change(state: FleetState, is_wanted: Callable[[ChangeAnswer], Any]) -> ChangeAnswer | None:
    """Return the newest change that is wanted."""
    return next(filter(is_wanted, state.changes), None)


def _before(state: FleetState, node: str, when: float | None, tier: str = "") -> ChangeAnswer | None:
    """Return the latest change before a time that concerns the node or the whole fleet, not one tenant. `tier`: no
    change of another tier. None if the changes before that time are not known."""
    if when is None or when < state.since:
        return None
    return _change(
        state,
        lambda change: (
            change.at <= when + SLACK_S
            and not change.tenant
            and change.node in ("", node)
            and not (tier and change.kind == "tier" and change.name != tier)
        ),
    )


def _deleted_at(state: FleetState, change: ChangeAnswer) -> float | None:
    """Return when the record of a change was deleted after it; None if it exists."""
    deletions = state.deletions.get((change.kind, change.name), ())
    return min(
        (deletion.at for deletion in deletions if deletion.at >= change.at and deletion is not change), default=None
    )


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else noun + 's'}"

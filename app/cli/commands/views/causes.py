"""Rules that infer the most likely cause of a problem with a tenant or a node from data of the API.

Each rule returns one sentence, or an empty string. The first sentence is the answer; rules that relate an effect to the
time of a change come first.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from app.cli.support.printing import show

Json = Mapping[str, Any]
FLOOD = 10
"""Number of pin changes by one actor that counts as a flood."""
CRASHES = 2
FELL = 0.15
"""Smallest drop of a hit ratio that counts."""
CROWDED = 0.5
"""Smallest share of the pool that pins must keep to leave other tenants too little room."""
BEFORE_S = 300.0
HOLDERS = 3
"""Maximum number of engines that are named as holders of leases."""
STEP_S = 10
"""Seconds of a point of the hit ratio."""
SLACK_S = 2.0
"""Seconds by which an effect may be recorded before its cause, because two processes have two clocks."""
BY_QUOTA = ("over_limit", "rate_limited")
"""Reasons of refusals that a quota can cause."""
_STOPS = ("node.stopped", "dataplane.stopped")
_RUNS = (*_STOPS, "node.started", "node.joined")
_ENDS = (*_STOPS, "node.started", "node.lost", "dataplane.exited")
"""Events that end the refusals of a node when no `refusals.ended` follows."""
_SIZES = ("limit_bytes", "store_rate_bytes", "pin_budget_bytes")


@dataclass(frozen=True)
class Evidence:
    """Data of the API about one tenant or node."""

    kind: str
    """`tenant` or `node`."""
    name: str
    tenant: Json | None = None
    nodes: Sequence[Json] = ()
    """The node, or all nodes for a tenant."""
    alerts: Sequence[Json] = ()
    changes: Sequence[Json] = ()
    """Changes of all tenants and nodes, newest first."""
    events: Sequence[Json] = ()
    """Events of all tenants and nodes in the order of their arrival, newest first; of nodes and their tiers also
    older ones."""
    since: float = 0.0
    """Unix seconds. Earlier events say only in which state nodes and tiers were at that time."""
    series: Json = field(default_factory=dict)
    """Times, and the hit ratio of the STEP_S before each, over the last hour."""


def cause(evidence: Evidence) -> str:
    """Return the most likely cause as a sentence; empty if no rule applies."""
    return next(filter(None, (rule(evidence) for rule in RULES)), "")


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%SZ")


def author(change: Json, *, timed: bool = True) -> str:
    """Return the actor, time and audit entry of a change: `by alice at 12:00:00Z (audit entry 7)`."""
    by = f"by {change['actor']}" if change["actor"] else ""
    when = f"at {at(change['at'])}" if timed else ""
    entry = "" if change["audit_id"] is None else f"(audit entry {change['audit_id']})"
    return " ".join(filter(None, (by, when, entry)))


def _later(seconds: float) -> str:
    return f"{seconds:.0f} s later" if seconds >= 1 else "less than a second later"


def _crash_loop(e: Evidence) -> str:
    """The node is in a crash loop now."""
    loop = next(
        (
            each
            for node in (e.nodes if e.kind == "node" else ())
            for each in node.get("conditions", ())
            if each["type"] == "crash_loop" and each["ended_at"] is None
        ),
        None,
    )
    if loop is None:
        return ""
    return f"Node {e.name} is in a crash loop: {loop['message']}. {_crashed(e)}".rstrip()


def _tightening(e: Evidence, *, lasting: bool) -> str:
    """A quota was tightened, and refusals followed: that last, or that ended with it."""
    for change in e.changes:
        if change["kind"] != "quota" or (e.kind == "tenant" and change["tenant"] != e.name):
            continue
        tightened = _tightened(change)
        deleted_at = _deleted_at(e, change)
        if not tightened or (lasting and deleted_at is not None):
            continue
        runs = [
            event
            for event in e.events
            if event["name"] == "refusals.started"
            and event["fields"].get("tenant") == change["tenant"]
            and event["fields"].get("reason") in BY_QUOTA
            and event["at"] >= change["at"] - SLACK_S
            and (deleted_at is None or event["at"] <= deleted_at + SLACK_S)
            and (e.kind == "tenant" or event["node"] == e.name)
            and not (lasting and _ended_at(e, event))
        ]
        if runs:
            first = min(runs, key=lambda event: event["at"])
            if _policy_between(e, change, first):
                continue
            return (
                f"{tightened} of tenant {change['tenant']} {author(change)}, and its blocks "
                f"{_refusal(e, first, change, lasting=lasting)}."
            )
    return ""


def _refusal(e: Evidence, run: Json, change: Json, *, lasting: bool) -> str:
    """Return how blocks are refused, or were, after a change: `are refused (over_limit) on node a since …`."""
    reason = run["fields"].get("reason", "refused")
    later = _later(run["at"] - change["at"])
    if lasting:
        return f"are refused ({reason}) on node {run['node']} since {at(run['at'])}, {later}"
    ended_at = _ended_at(e, run)
    until = f"from {at(run['at'])} to {at(ended_at)}" if ended_at else f"at {at(run['at'])}"
    return f"were refused ({reason}) on node {run['node']} {until}, {later}"


def _ended_at(e: Evidence, run: Json) -> float | None:
    """Return when refusals ended, with their node at the latest; None if they last."""
    return min(
        (
            each["at"]
            for each in e.events
            if each["node"] == run["node"]
            and each["at"] >= run["at"]
            and (
                each["name"] in _ENDS
                or (each["name"] == "refusals.ended" and each["fields"].get("tenant") == run["fields"].get("tenant"))
            )
        ),
        default=None,
    )


def _deleted_at(e: Evidence, change: Json) -> float | None:
    """Return when the record of a change was deleted after it; None if it exists."""
    return min(
        (
            each["at"]
            for each in e.changes
            if (each["action"], each["kind"], each["name"]) == ("delete", change["kind"], change["name"])
            and each["at"] >= change["at"]
            and each is not change
        ),
        default=None,
    )


def _policy_between(e: Evidence, quota: Json, refused: Json) -> bool:
    """Return whether a policy was changed shortly before the refusals. Within a limit, a tenant's own blocks make room
    as long as the policy evicts; a tenant that rejects at its limit does not depend on it."""
    if any((each["name"], each["after"]) == ("on_exceed", "reject") for each in quota["fields"]):
        return False
    return any(
        each["kind"] == "policy"
        and each["at"] > quota["at"]
        and each["at"] - SLACK_S <= refused["at"] <= each["at"] + BEFORE_S
        for each in e.changes
    )


def _at_limit(e: Evidence) -> str:
    """A quota was tightened, and the tenant is at its limit."""
    tenant = e.tenant
    if tenant is None or not tenant["limit_bytes"] or tenant["bytes"] < 0.9 * tenant["limit_bytes"]:
        return ""
    for change in e.changes:
        tightened = _tightened(change) if change["kind"] == "quota" and change["tenant"] == e.name else ""
        if tightened and _deleted_at(e, change) is None:
            effect = "stores beyond it are refused" if tenant["on_exceed"] == "reject" else "its own blocks are evicted"
            return f"{tightened} of tenant {e.name} {author(change)}, and the tenant is at its limit: {effect}."
    return ""


def _tightened(change: Json) -> str:
    for each in change["fields"]:
        before, after = each["before"], each["after"]
        if each["name"] in _SIZES and isinstance(after, int) and (before is None or after < before):
            if before is None and change["action"] == "create":
                return f"{each['name']} was set to {show.size(after)} for the quota"
            was = "none" if before is None else show.size(before)
            return f"{each['name']} was lowered from {was} to {show.size(after)}{_rejecting(change)} in the quota"
    rejecting = _rejecting(change)
    return f"{rejecting.removeprefix(' and ')} in the quota" if rejecting else ""


def _rejecting(change: Json) -> str:
    """Return that a tenant's own blocks no longer make room at its limit; empty if the change does not say so."""
    for each in change["fields"]:
        if (each["name"], each["after"]) == ("on_exceed", "reject") and change["action"] == "update":
            return f" and on_exceed was changed from {each['before']} to reject"
    return ""


@dataclass(frozen=True)
class _End:
    """An unexpected end of a data plane's process."""

    at: float
    how: str


def _ends(e: Evidence, node: str) -> list[_End]:
    """Return the unexpected ends of a node's processes, oldest first: exits that a supervisor reported, and processes
    that were replaced although they had not announced their stop."""
    ends: list[_End] = []
    epochs: set[object] = set()
    announced, lost_at = False, None
    for event in reversed(e.events):
        if event["node"] != node:
            continue
        if event["name"] == "dataplane.exited":
            announced, code = True, event["fields"].get("code")
            if code != 0:
                ends.append(_End(event["at"], _exit(code)))
        elif event["name"] in _STOPS:
            announced = True
        elif event["name"] == "node.lost":
            lost_at = event["at"]
        elif event["name"] == "node.joined":
            epoch = event["fields"].get("epoch")
            if epochs and epoch not in epochs and not announced:
                ends.append(_End(lost_at or event["at"], "without notice: killed, or the machine failed"))
            if epoch not in epochs:
                announced = False
            epochs.add(epoch)
            lost_at = None
    return [end for end in ends if end.at >= e.since]


def _exit(code: object) -> str:
    if not isinstance(code, int):
        return "exit code unknown"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _crashed(e: Evidence, least: int = CRASHES) -> str:
    """The data plane of a node ended unexpectedly, at least `least` times."""
    name, ends = max(
        ((node["name"], _ends(e, node["name"])) for node in e.nodes), key=lambda each: len(each[1]), default=("", [])
    )
    if len(ends) < least:
        return ""
    first, last = ends[0], ends[-1]
    when = f"once, at {at(first.at)}" if len(ends) == 1 else f"{len(ends)} times from {at(first.at)} to {at(last.at)}"
    return f"The data plane of node {name} exited {when} ({last.how}){_before(e, name, first.at)}."


def _exited(e: Evidence) -> str:
    """The data plane of a node ended unexpectedly, once."""
    return _crashed(e, 1)


def _before(e: Evidence, node: str, when: float, tier: str = "") -> str:
    """Return the latest change before a time that concerns the node or the whole fleet, not one tenant. `tier`: no
    change of another tier. Empty if the changes before that time are not known."""
    if when < e.since:
        return ""
    for change in e.changes:
        if change["at"] > when + SLACK_S or change["tenant"] or change["node"] not in ("", node):
            continue
        if tier and change["kind"] == "tier" and change["name"] != tier:
            continue
        return f"; the latest change before: {change['summary']} {author(change)}"
    return "; no change to the node preceded it"


def _node_lost(e: Evidence) -> str:
    """The node itself is lost: what happened to its tenants before is not the cause."""
    lost = e.kind == "node" and any(node["state"] == "lost" for node in e.nodes)
    return " ".join(filter(None, (_crashed(e), _lost(e)))) if lost else ""


def _lost(e: Evidence) -> str:
    """A node is lost, or refused a snapshot, or was drained."""
    for node in e.nodes:
        name = node["name"]
        if node["state"] == "lost":
            seen = [event for event in e.events if event["name"] == "node.lost" and event["node"] == name]
            since = f" since {at(seen[0]['at'])}" if seen else ""
            before = _before(e, name, seen[0]["at"]) if seen else ""
            last = next((each for each in e.events if each["node"] == name and each["name"] in _RUNS), None)
            if last is not None and last["name"] in _STOPS:
                return (
                    f"Node {name} is lost{since}: its data plane was stopped at {at(last['at'])} and has not started "
                    f"again{before}."
                )
            return (
                f"Node {name} is lost{since}: it neither receives snapshots nor reports. Its process or the network "
                f"failed{before}."
            )
        faults = node.get("faults") or []
        if node["state"] == "nacked" and faults:
            fault = faults[0]
            return f"Node {name} refuses the newest snapshot: {fault.get('path', '')}: {fault.get('message', '')}."
        if node["draining"]:
            drains = [each for each in e.changes if each["node"] == name and each["action"] == "drain"]
            return f"Node {name} was drained {author(drains[0])}: it stores nothing more." if drains else ""
    return ""


def _tier_out(e: Evidence) -> str:
    """A tier is out of service."""
    for node in e.nodes:
        tiers = (node.get("stats") or {}).get("tiers", ())
        serving = [each["name"] for each in tiers if each["serves"]]
        for tier in tiers:
            if not tier["serves"]:
                seen = _tier_events(e, node["name"], tier["name"])
                since = before = ""
                if seen and seen[0]["name"] == "tier.lost":
                    since = f" since {at(seen[0]['at'])}"
                    before = _before(e, node["name"], seen[0]["at"], tier["name"])
                reason = f": {tier['reason']}" if tier["reason"] else ""
                left = f"memory and from {', '.join(serving)}" if serving else "its memory"
                return (
                    f"Tier {tier['name']} of node {node['name']} is out of service{since}{reason}; the node serves "
                    f"blocks only from {left}{before}."
                )
    return ""


def _tier_was_out(e: Evidence) -> str:
    """A tier was out of service for a time."""
    for node in e.nodes:
        lost = next((each for each in _tier_events(e, node["name"]) if each["name"] == "tier.lost"), None)
        if lost is None or lost["at"] < e.since:
            continue
        tier = lost["fields"]["tier"]
        last = _tier_events(e, node["name"], tier)[0]
        until = f"from {at(lost['at'])} to {at(last['at'])}" if last is not lost else f"at {at(lost['at'])}"
        return (
            f"Tier {tier} of node {node['name']} was out of service {until}: {lost['fields'].get('reason')}"
            f"{_before(e, node['name'], lost['at'], tier)}."
        )
    return ""


def _tier_events(e: Evidence, node: str, tier: str = "") -> list[Json]:
    """Return the events that a tier, or any tier, of a node is out of service or in service again, newest first."""
    return [
        each
        for each in e.events
        if each["name"] in ("tier.lost", "tier.recovered")
        and each["node"] == node
        and (not tier or each["fields"].get("tier") == tier)
    ]


def _flooded(e: Evidence) -> str:
    """One actor created or changed many pins that exist."""
    made = [
        each
        for each in e.changes
        if each["kind"] == "pin" and each["action"] in ("create", "update") and _deleted_at(e, each) is None
    ]
    if not made:
        return ""
    actor, count = Counter(each["actor"] for each in made).most_common(1)[0]
    if count < FLOOD:
        return ""
    mine = [each for each in made if each["actor"] == actor]
    tenants = ", ".join(name for name, _ in Counter(each["tenant"] for each in mine).most_common(3))
    pools = [node["stats"]["pool"] for node in e.nodes if node.get("stats")]
    pinned, capacity, budget = (
        sum(pool.get(name, 0) for pool in pools) for name in ("pinned_bytes", "capacity_bytes", "pin_budget_bytes")
    )
    is_concerned = e.kind == "node" or e.name in {each["tenant"] for each in mine}
    if not is_concerned and pinned < CROWDED * capacity and not _refused(e):
        return ""
    pin_note = ""
    if pools:
        pin_note = f"; pins keep {show.size(pinned)} of {show.size(capacity)}"
        if budget:
            pin_note += f", with a budget of {show.size(budget)}"
    entries = [each["audit_id"] for each in mine if each["audit_id"] is not None]
    entries_note = f", audit entries {min(entries)} to {max(entries)}" if entries else ""
    return (
        f"{actor or 'An unknown actor'} created or changed {count} pins for {tenants} from {at(mine[-1]['at'])} to "
        f"{at(mine[0]['at'])}"
        f"{entries_note}{pin_note}."
    )


def holders(node: Json) -> list[str]:
    """Return the engines of a node that lease the most blocks, as text, at most HOLDERS of them."""
    leasing = [each for each in (node.get("stats") or {}).get("engines", ()) if each["leased_blocks"]]
    leasing.sort(key=lambda each: -each["leased_blocks"])
    found: list[str] = []
    for each in leasing[:HOLDERS]:
        process = f"pid {each['pid']}" if each["pid"] else "no pid"
        blocks = show.plural(each["leased_blocks"], "block")
        found.append(f"{each['engine'] or 'an engine'} (client {each['client']}, {process}): {blocks}")
    return found


def _leased(e: Evidence) -> str:
    """Blocks are refused because no block may be evicted, and engines lease blocks."""
    for run in e.events:
        if (
            run["name"] == "refusals.started"
            and run["fields"].get("reason") == "pool_full"
            and run["at"] >= e.since
            and (e.kind == "node" or run["fields"].get("tenant") == e.name)
            and not _ended_at(e, run)
        ):
            node = next((each for each in e.nodes if each["name"] == run["node"]), None)
            leasing = holders(node) if node else []
            if node and leasing:
                blocks, tenant = node["stats"]["pool"]["blocks"], run["fields"].get("tenant")
                return (
                    f"Node {run['node']} can evict no more blocks, so that those of tenant {tenant} are refused "
                    f"(pool_full) since {at(run['at'])}. Of {blocks:,} blocks, engines lease: {'; '.join(leasing)}. "
                    "larder engines expel ends the leases of a process."
                )
    return ""


def _refused(e: Evidence) -> bool:
    """Return whether blocks of the tenant are refused for lack of room."""
    return any(
        event["name"] == "refusals.started"
        and event["fields"].get("tenant") == e.name
        and event["fields"].get("reason") not in BY_QUOTA
        for event in e.events
        if event["at"] >= e.since
    )


def _mischosen(e: Evidence) -> str:
    """A policy that exists was changed, and refusals that last, or a drop of the hit ratio, followed."""
    for change in e.changes:
        if change["kind"] != "policy" or _deleted_at(e, change) is not None:
            continue
        if refusals := _after_policy(e, change, lasting=True):
            return refusals
        before = _ratio(e.series, change["at"] - BEFORE_S, change["at"])
        after = _ratio(e.series, change["at"] + STEP_S + SLACK_S, float("inf"))
        if before is not None and after is not None and before - after >= FELL:
            return f"{_chosen(change)} {author(change)}, and the hit ratio fell from {before:.0%} to {after:.0%} since."
    return ""


def _was_mischosen(e: Evidence) -> str:
    """A policy was changed, and refusals followed that have ended, or the policy was deleted."""
    policies = (change for change in e.changes if change["kind"] == "policy")
    return next(filter(None, (_after_policy(e, change, lasting=False) for change in policies)), "")


def _after_policy(e: Evidence, change: Json, *, lasting: bool) -> str:
    runs = [
        event
        for event in e.events
        if event["name"] == "refusals.started"
        and change["at"] - SLACK_S <= event["at"] <= change["at"] + BEFORE_S
        and (event["fields"].get("tenant") == e.name if e.kind == "tenant" else event["node"] == e.name)
        and not (lasting and _ended_at(e, event))
    ]
    if not runs:
        return ""
    first = min(runs, key=lambda event: event["at"])
    refusal = _refusal(e, first, change, lasting=lasting)
    return f"{_chosen(change)} {author(change)}, and blocks of {_tenants(runs)} {refusal}."


def _chosen(change: Json) -> str:
    """Return what a change of a policy did. A policy that evicts nothing is the usual mistake, and says so."""
    algorithm = next((each for each in change["fields"] if each["name"] == "algorithm"), None)
    if algorithm is None or algorithm["after"] != "noop":
        return str(change["summary"]).capitalize()
    return f"The algorithm of policy {change['name']} was set to noop, which evicts nothing,"


def _tenants(runs: Sequence[Json]) -> str:
    names = sorted({str(event["fields"].get("tenant")) for event in runs})
    if len(names) == 1:
        return f"tenant {names[0]}"
    return f"{len(names)} tenants ({', '.join(names[:5])}{', …' if len(names) > 5 else ''})"


def _ratio(series: Json, start: float, end: float) -> float | None:
    pairs = zip(series.get("at", ()), series.get("hit_ratio", ()), strict=True)
    found = [ratio for when, ratio in pairs if start <= when <= end and ratio is not None]
    return sum(found) / len(found) if len(found) >= 3 else None


def _alerted(e: Evidence) -> str:
    """An alert fires, and a change preceded it."""
    for alert in e.alerts:
        for change in alert["preceding_changes"][:1]:
            return (
                f"{change['summary']} {author(change)}: the latest change before {alert['alertname']} fired, "
                f"{_later(alert['starts_at'] - change['at'])}."
            )
    return ""


RULES: Iterable[Callable[[Evidence], str]] = (
    _node_lost,
    _crash_loop,
    partial(_tightening, lasting=True),
    _crashed,
    _lost,
    _tier_out,
    _flooded,
    _mischosen,
    _leased,
    _at_limit,
    _tier_was_out,
    _exited,
    _alerted,
    partial(_tightening, lasting=False),
    _was_mischosen,
)

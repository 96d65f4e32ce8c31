"""`larder why`: findings, alerts, figures, changes and events of a tenant or node, and the most likely cause; or what
one request got from the cache, and why not more."""

import difflib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from app.cli.support.api.client import call, every, find, segment, unless
from app.cli.support.api.names import TENANTS_AND_NODES
from app.cli.support.exit_codes import NothingFound, check_nodes
from app.cli.support.keys import seconds
from app.cli.support.printing import findings, show
from app.cli.support.printing.findings import at, author
from app.cli.support.printing.terminal import say, table, wrapped
from app.cli.support.resources.events import EVENT_COLUMNS, concerns
from app.cli.support.resources.options import Output, check_combined, request_options

MAX_ALERTS = 200
MAX_CHANGES = 1000
MAX_EVENTS = 1000
MAX_HOLDERS = 3
SHOWN = 8
"""Maximum number of alerts, of changes and of events that are shown."""
ROUTINE = (
    "engine.attached",
    "engine.detached",
    "engine.released",
    "session.",
    "memory.",
    "node.started",
    "node.joined",
    "dataplane.started",
)
"""Beginnings of the names of events that say the least about a problem."""
_PLACES = {"host": "memory", "disk": "a disk tier", "remote": "a remote tier"}
OF_ALL_TENANTS = ("node.lost", "dataplane.exited")
"""Events of a node that every tenant notices."""


@click.command()
@click.argument("name", metavar="[TENANT|NODE]", required=False, shell_complete=TENANTS_AND_NODES)
@click.option("--tenant", "kind", flag_value="tenant", help="NAME is a tenant, even if a node has the same name.")
@click.option("--node", "kind", flag_value="node", help="NAME is a node, even if a tenant has the same name.")
@click.option(
    "--request",
    metavar="ID",
    help="What this request got from the cache: the id in the response of the engine, or the engine's own longer one.",
)
@click.option(
    "--since", metavar="TIME", default="1h", show_default=True, help="How far back to look at changes and events."
)
@request_options
def why(name: str | None, kind: str | None, request: str | None, since: str, url: str | None, output: Output) -> None:
    """Show what is wrong with a tenant or node: alerts, figures, changes, events, and the most likely cause. With
    --request, show where the tokens of one request came from, and why others were computed."""
    if (name is None) == (request is None):
        raise click.UsageError("expected either TENANT|NODE or --request ID")
    if request is not None:
        check_combined("--request", "request")
        _request(request, url, output)
        return
    assert name is not None
    since_at = time.time() - seconds("--since", since)
    nodes: list[dict[str, Any]] = call(url, "GET", "/api/v1/nodes")["items"]
    node = next((item for item in nodes if item["name"] == name), None) if kind != "tenant" else None
    tenant = find(url, f"/api/v1/tenants/{segment(name, 'tenant')}") if kind != "node" else None
    if node is not None and tenant is not None:
        raise click.UsageError(f"{name!r} is a tenant and a node: add --tenant or --node")
    if node is None and tenant is None:
        raise NothingFound(_unknown(url, name, kind, nodes))
    kind = "tenant" if tenant is not None else "node"
    alerts = [
        alert
        for alert in every(url, "/api/v1/alerts", {"state": "firing"}, MAX_ALERTS)["items"]
        if alert[kind] == name or (not alert["tenant"] and (kind == "tenant" or not alert["node"]))
    ]
    changes = _changes(url, since_at)
    concerning = [change for change in changes if _concerns_change(change, kind, name)]
    events = _events(url, since_at)
    answer = call(url, "GET", "/api/v1/findings", None, {kind: name, "since": str(max(since_at, 0))})
    report = {
        "name": name,
        "kind": kind,
        "alerts": alerts,
        "figures": tenant if node is None else node,
        "changes": concerning[:SHOWN],
        "events": _most_relevant(_distinct(event for event in events if _concerns_event(event, kind, name))),
        "findings": answer["items"],
        "cause": answer["cause"],
    }
    if not output.data(report, name):
        _show(report, nodes if node is None else [node], max(0, len(concerning) - SHOWN), output)


def _request(request: str, url: str | None, output: Output) -> None:
    answer = call(url, "GET", "/api/v1/requests", None, {"id": request})
    if not answer["items"]:
        check_nodes(answer["failed_nodes"], f"no node that answered has a record of request {request!r}")
        raise NothingFound(
            f"no node has a record of request {request!r}: nodes remember the last 4,096 requests of vLLM since they "
            "started"
        )
    if not output.data(answer, request):
        for record in answer["items"]:
            for line in _record(record):
                wrapped(line)
            say()
    check_nodes(answer["failed_nodes"])


def _record(record: Mapping[str, Any]) -> list[str]:
    """Return lines that explain one request."""
    loaded = record["loaded_tokens"]
    lines = [
        f"request {record['request']}",
        f"  {at(record['at'])} on node {record['node']}, tenant {record['tenant']}, model {record['model']}, "
        f"{record['engine']}",
        f"  prompt {show.plural(record['prompt_tokens'], 'token')}: {record['engine_tokens']:,} in the engine's own "
        "cache, "
        + "".join(f"{tokens:,} loaded from {_PLACES.get(source, source)}, " for source, tokens in loaded.items())
        + f"{record['missed_tokens']:,} missed",
    ]
    if record["reason"]:
        cause = f" ({record['cause']})" if record["cause"] else ""
        when = "" if record["cause_at"] is None else f" at {at(record['cause_at'])}"
        lines.append(f"  first missing: {record['reason']}{cause}{when}: {record['meaning'] or 'no explanation'}")
    elif record["missed_tokens"]:
        lines.append("  first missing: the reason is not known")
    return lines


def _concerns_event(event: Mapping[str, Any], kind: str, name: str) -> bool:
    return concerns(event, kind, name) or (kind == "tenant" and event["name"] in OF_ALL_TENANTS)


def _distinct(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of events that are alike except in time and counts, return only the newest and the oldest, newest first."""
    groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for event in events:
        about = (event["fields"].get(name) for name in ("tenant", "reason", "pin", "tier", "alertname"))
        groups.setdefault((event["name"], event["node"], event["actor"], *about), []).append(event)
    extremes = [
        event for group in groups.values() for event in (group[:1] if len(group) == 1 else (group[0], group[-1]))
    ]
    return sorted(extremes, key=lambda event: event["id"], reverse=True)


def _most_relevant(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events to show, newest first: those of normal operation only where there is room."""
    ranked = sorted(events, key=lambda event: event["name"].startswith(ROUTINE))
    return sorted(ranked[:SHOWN], key=lambda event: (event["at"], event["id"]), reverse=True)


def _changes(url: str | None, since_at: float) -> list[dict[str, Any]]:
    """Return the changes since a time, newest first."""
    query = {"from": str(int(since_at * 1000)), "limit": str(MAX_CHANGES)}
    notes = call(url, "GET", "/api/v1/annotations", None, query)
    return [note["change"] for note in reversed(notes)]


def _events(url: str | None, since_at: float) -> list[dict[str, Any]]:
    """Return the events since a time in the order of their arrival, newest first; none for callers who may not see
    them."""
    query = {"since": str(max(since_at, 0)), "sort": "-id"}
    page = unless(403, every, url, "/api/v1/events/history", query, MAX_EVENTS)
    return page["items"] if page else []


def _concerns_change(change: Mapping[str, Any], kind: str, name: str) -> bool:
    about = change[kind]
    if about:
        return bool(about == name)
    return kind == "node" or not change["node"]


def _unknown(url: str | None, name: str, kind: str | None, nodes: Iterable[Mapping[str, Any]]) -> str:
    known_names = [] if kind == "tenant" else [str(node["name"]) for node in nodes]
    if kind != "node":
        known_names += [str(tenant["tenant"]) for tenant in every(url, "/api/v1/tenants", None, MAX_ALERTS)["items"]]
    close = difflib.get_close_matches(name, known_names, 3, 0.5)
    named = close or sorted(set(known_names))[:5]
    message = f"there is no {kind or 'tenant or node'} {name!r}"
    names_text = ", ".join(map(repr, named))
    if close:
        return f"{message}; did you mean {names_text}?"
    return f"{message}; there are {names_text}" if named else message


def _show(report: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], omitted: int, output: Output) -> None:
    """`omitted`: number of changes that are not shown."""
    say(f"{report['kind']} {report['name']}")
    say()
    shown = [finding for finding in report["findings"] if finding["code"] != "alert_firing"]  # they follow
    say("Findings" if shown else "Findings: none")
    for line in findings.lines(shown):
        wrapped(f"  {line}")
    say()
    alerts = report["alerts"]
    say(f"Alerts ({len(alerts)})" if alerts else "Alerts: none firing")
    for alert in alerts[:SHOWN]:
        severity = f" ({alert['severity']})" if alert["severity"] else ""
        wrapped(f"  {alert['alertname']}{severity} fired at {at(alert['starts_at'])}: {alert['summary']}")
        if alert["runbook_url"]:
            wrapped(f"  {alert['runbook_url']}")
    say()
    say("Figures")
    for line in _tenant(report["figures"], nodes) if report["kind"] == "tenant" else _node(nodes[0]):
        wrapped(f"  {line}")
    say()
    changes = report["changes"]
    say("Preceding changes, newest first" if changes else "Preceding changes: none")
    for change in changes:
        wrapped(f"  {at(change['at'])}  {change['summary']} {author(change, timed=False)}")
    if omitted:
        say(f"  and {omitted} earlier ones")
    if report["events"]:
        say()
        table("Events", EVENT_COLUMNS, report["events"], wide=output.wide)
    say()
    wrapped(
        f"Most likely: {report['cause']}"
        if report["cause"]
        else "Most likely: no cause was found; --since 1d looks further back."
    )


def _tenant(tenant: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    states = [f"{node['name']} {node['state']}" for node in nodes]
    if nodes and not any(node["stats"] for node in nodes):
        return [
            f"limit {show.size(tenant['limit_bytes'])}; what it uses is not known, because no node reports",
            f"nodes: {', '.join(states[:10])}",
        ]
    refused = ", ".join(f"{code} {count:,}" for code, count in sorted(tenant["refused"].items())) or "none"
    return [
        f"used {show.size(tenant['bytes'])} of limit {show.size(tenant['limit_bytes'])}, floor "
        f"{show.floor(tenant['floor_bytes'], tenant['effective_floor_bytes'])}, pinned "
        f"{show.size(tenant['pinned_bytes'])}{_held_by_lookups(tenant)}",
        f"refused blocks by reason: {refused}; evicted {tenant['evicted_blocks']:,}",
        f"hit ratio since the nodes' start {show.percent(tenant['hit_ratio'])} of {tenant['requested_blocks']:,} "
        "requested blocks",
        f"nodes: {', '.join(states[:10]) or 'none'}",
    ]


def _held_by_lookups(tenant: Mapping[str, Any]) -> str:
    nbytes = tenant.get("lookup_bytes")  # a server of an older release does not report it
    return f", held by look-ups {show.size(nbytes)}" if nbytes else ""


def _node(node: Mapping[str, Any]) -> list[str]:
    lag = [
        f"{kind} {generation - node['observed'].get(kind, {}).get('generation', 0)} behind"
        for kind, generation in sorted(node["desired"].items())
        if generation > node["observed"].get(kind, {}).get("generation", 0)
    ]
    lines = [f"state {node['state']}{', draining' if node['draining'] else ''}; {', '.join(lag) or 'not behind'}"]
    stats = node["stats"]
    if stats is None:
        return [*lines, "no statistics: it is lost" if node["state"] == "lost" else "no statistics yet"]
    pool, totals = stats["pool"], stats["totals"]
    requested = totals["requested_blocks"]
    refused = ", ".join(f"{code} {count:,}" for code, count in sorted(stats["refused"].items())) or "none"
    return [
        *lines,
        f"pool {show.size(pool['used_bytes'])} of {show.size(pool['capacity_bytes'])}, pinned "
        f"{show.size(pool['pinned_bytes'])}; policy {stats['policy']['algorithm']}",
        f"refused blocks by reason: {refused}; evicted {totals['evicted_blocks']:,}",
        f"hit ratio since its start {show.percent(totals['hit_blocks'] / requested if requested else None)} of "
        f"{requested:,} requested blocks",
        *[f"leased by {line}" for line in _holders(node)],
        *([f"cache start: {stats['start']['kind']}"] if stats.get("start") else []),
    ]


def _holders(node: Mapping[str, Any]) -> list[str]:
    """Return the engines of a node that lease the most blocks, as text."""
    leasing = sorted(node["stats"].get("engines", ()), key=lambda engine: -engine["leased_blocks"])
    return [
        f"{engine['engine'] or 'an engine'} (client {engine['client']}, pid {engine['pid'] or 'unknown'}): "
        f"{show.plural(engine['leased_blocks'], 'block')}"
        for engine in leasing[:MAX_HOLDERS]
        if engine["leased_blocks"]
    ]

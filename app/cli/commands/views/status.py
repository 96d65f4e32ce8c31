"""`larder status`: show nodes, pool, tenants and pins."""

from collections.abc import Sequence
from typing import Any

import click

from app.cli.support.api.client import ApiError, call, unless
from app.cli.support.printing import caches, findings, show
from app.cli.support.printing.terminal import Column, say, table, wrapped
from app.cli.support.resources.options import Output, request_options, watch_option

MAX_ROWS = 20
"""Number of tenants, and of pins, that the status lists."""


@click.command()
@request_options
@watch_option
def status(url: str | None, output: Output) -> None:
    """Show nodes, pool, tenants and pins."""
    overview = call(url, "GET", "/api/v1/overview")
    if output.data(overview, [node["name"] for node in overview["nodes"]]):
        return
    managers = unless(403, call, url, "GET", "/api/v1/managers")
    head(overview, _unready(url), is_limited=managers is None)
    if managers is not None:
        _managers(managers["items"])
    if overview["nodes"]:
        _nodes(overview["nodes"], is_limited=managers is None, wide=output.wide)
    if overview["tenants"]:
        _rows("Tenants", _TENANT_COLUMNS, overview["tenants"], overview["tenants_total"], "tenants", wide=output.wide)
    if overview["pins"]:
        _rows("Pins", _PIN_COLUMNS, overview["pins"], overview["pins_total"], "pins", wide=output.wide)


def _unready(url: str | None) -> str:
    """Return why the fleet is not ready, or why the database accepts no changes; empty if neither applies."""
    try:
        return str(call(url, "GET", "/healthz/fleet").get("database", ""))
    except ApiError as refused:
        return refused.message


def head(overview: dict[str, Any], unready: str, *, is_limited: bool) -> None:
    pool, rates = overview["pool"], overview["rates"]
    reason = f" ({unready})" if unready else ""
    ready = f"ready{reason}" if overview["ready"] else f"not ready{reason}"
    reported = overview.get("findings", ())  # a server of an older release does not report them
    trouble = findings.trouble(reported)
    but = f", but {trouble}" if trouble else ""
    wrapped(f"{ready}, quotas {'enforced' if overview['armed'] else 'not enforced'}{but}")
    for line in [*findings.lines(reported), *filter(None, map(caches.began, overview["nodes"]))]:
        wrapped(line)
    reporting = [node for node in overview["nodes"] if node["stats"] is not None]
    for node in reporting:
        policy = node["stats"]["policy"]
        gate = ", admission gate closed" if policy["gate_closed"] else ""
        say(f"policy of {node['name']}: {policy['algorithm']}{gate}")
    if overview["nodes"] and not reporting and not is_limited:
        lost = all(node["state"] == "lost" for node in overview["nodes"])
        say(f"pool: not known, because {'all nodes are lost' if lost else 'no node has reported yet'}")
        return
    scope = "your tenants: " if is_limited else ""
    ratio = "hit ratio (last minute)", rates["hit_ratio"]
    if is_limited:
        ratio = "hit ratio", rates["hit_ratio_total"]
    wrapped(
        f"{scope}pool {show.size(pool['used_bytes'])} of {show.size(pool['capacity_bytes'])}"
        f" ({show.size(pool['pinned_bytes'])} pinned), {pool['blocks']} blocks, {ratio[0]} {show.percent(ratio[1])}"
    )


def _managers(managers: list[dict[str, Any]]) -> None:
    """Print the number of managers and which one pushes. Prints nothing in the usual case of one manager that
    pushes."""
    alive = [manager for manager in managers if manager["alive"]]
    pushing = [manager for manager in alive if manager["pushing"]]
    if len(alive) == 1 and pushing:
        return
    note = "none pushes to nodes now"
    if pushing:
        first = pushing[0]
        leader = "this one" if first["answering"] else f"{first['host']} (pid {first['pid']}, {first['url']})"
        note = f"{leader} pushes to nodes"
    say(f"managers: {len(alive)} alive; {note}")


def _applied(node: dict[str, Any]) -> str:
    applied = ", ".join(f"{kind} {observed['generation']}" for kind, observed in sorted(node["observed"].items()))
    return applied or "-"


_NODE_COLUMNS = (
    Column("name", lambda n: n["name"]),
    Column("state", caches.node_state),
    Column("pid", lambda n: str(n["pid"]), drop=1, right=True),
    Column("engines", show.engines, right=True),
    Column("applied", _applied, text=True),
)
_LIMITED_COLUMNS = (*_NODE_COLUMNS[:2], Column("pool", lambda n: show.size(n["capacity_bytes"]), right=True, text=True))
_TENANT_COLUMNS = (
    Column("tenant", lambda t: t["tenant"]),
    Column("used", lambda t: show.size(t["bytes"]), right=True),
    Column("limit", lambda t: show.size(t["limit_bytes"]), right=True),
    Column("blocks", lambda t: str(t["blocks"]), drop=3, right=True),
    Column("floor", lambda t: show.floor(t["floor_bytes"], t["effective_floor_bytes"]), right=True),
    Column("refused", show.refused, drop=1, right=True),
    Column("", lambda t: "over" if t["over_limit"] else ""),
    Column("note", lambda t: t["note"], drop=2, text=True),
)
_PIN_COLUMNS = (
    Column("name", lambda p: p["name"]),
    Column("tenant", lambda p: p["tenant"]),
    Column("model", lambda p: p["model"], drop=1),
    Column("strength", lambda p: p["strength"] + (f" ({p['degraded']} degraded)" if p["degraded"] else ""), drop=2),
    Column("resident", lambda p: f"{p['resident']}/{p['resolved']}", right=True),
    Column("tier", show.tier),
    Column("bytes", lambda p: show.size(p["bytes"]), drop=4, right=True),
    Column("ends", lambda p: show.ends(p["expires_at"]), drop=3),
)


def _nodes(nodes: list[dict[str, Any]], *, is_limited: bool, wide: bool) -> None:
    say()
    if is_limited:
        table("Nodes", _LIMITED_COLUMNS, nodes)
        return
    table("Nodes", _NODE_COLUMNS, nodes, wide=wide)
    show.faults(nodes)


def _rows(
    title: str, columns: Sequence[Column], items: list[dict[str, Any]], total: int, command: str, *, wide: bool
) -> None:
    """Print the first items, and how many there are besides."""
    say()
    shown = items[:MAX_ROWS]
    table(f"{title} ({total:,})", columns, shown, wide=wide)
    if omitted := total - len(shown):
        say(f"{omitted:,} more: larder {command}")

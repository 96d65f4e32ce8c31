"""`larder status`."""

from typing import Any

import click

from app.cli.support import caches, show
from app.cli.support.client import ApiError, call, json_option, print_json, url_option
from app.cli.support.terminal import say


@click.command()
@url_option
@json_option
def status(url: str | None, as_json: bool) -> None:
    """Show nodes, pool, tenants and pins."""
    overview = call(url, "GET", "/api/v1/overview")
    if as_json:
        print_json(overview)
        return
    managers = _unless_for_all(url, "/api/v1/managers")
    head(overview, _unready(url), is_limited=managers is None)
    if managers is not None:
        _managers(managers["items"])
    if overview["nodes"]:
        _nodes(overview["nodes"], is_limited=managers is None)
    if overview["tenants"]:
        _tenants(overview["tenants"], overview["tenants_total"])
    if overview["pins"]:
        _pins(overview["pins"], overview["pins_total"])


def _unless_for_all(url: str | None, path: str) -> Any:
    """Return the answer; None if the path is refused to callers that are limited to tenants."""
    try:
        return call(url, "GET", path)
    except ApiError as refused:
        if refused.status == 403:
            return None
        raise


def _unready(url: str | None) -> str:
    """Return why Larder is not ready or its database accepts no changes; empty if neither applies."""
    try:
        return str(call(url, "GET", "/readyz").get("database", ""))
    except ApiError as refused:
        return refused.message


def head(overview: dict[str, Any], unready: str, *, is_limited: bool) -> None:
    pool, rates = overview["pool"], overview["rates"]
    why = f" ({unready})" if unready else ""
    ready = f"ready{why}" if overview["ready"] else f"not ready{why}"
    trouble = caches.trouble(overview)
    but = f", but {trouble}" if trouble else ""
    say(f"{ready}, quotas {'enforced' if overview['armed'] else 'not enforced'}{but}")
    for line in caches.lines(overview):
        say(line)
    told = [node for node in overview["nodes"] if node["stats"] is not None]
    for node in told:
        policy = node["stats"]["policy"]
        gate = ", admission gate closed" if policy["gate_closed"] else ""
        say(f"policy of {node['name']}: {policy['algorithm']}{gate}")
    if overview["nodes"] and not told and not is_limited:
        say("pool: no node has reported its numbers yet")
        return
    whose = "your tenants: " if is_limited else ""
    ratio = "hit ratio (last minute)", rates["hit_ratio"]
    if is_limited:
        ratio = "hit ratio", rates["hit_ratio_total"]
    say(
        f"{whose}pool {show.size(pool['used_bytes'])} of {show.size(pool['capacity_bytes'])}"
        f" ({show.size(pool['pinned_bytes'])} pinned), {pool['blocks']} blocks, {ratio[0]} {show.percent(ratio[1])}"
    )


def _managers(managers: list[dict[str, Any]]) -> None:
    """Print the number of managers and which one pushes. Prints nothing in the usual case of one manager that
    pushes."""
    alive = [manager for manager in managers if manager["alive"]]
    pushing = [manager for manager in alive if manager["pushing"]]
    if len(alive) == 1 and pushing:
        return
    who = "none pushes to nodes now"
    if pushing:
        first = pushing[0]
        here = "this one" if first["answering"] else f"{first['host']} (pid {first['pid']}, {first['url']})"
        who = f"{here} pushes to nodes"
    say(f"managers: {len(alive)} alive; {who}")


def _nodes(nodes: list[dict[str, Any]], *, is_limited: bool) -> None:
    say()
    if is_limited:
        rows = [[node["name"], node["state"], show.size(node["capacity_bytes"])] for node in nodes]
        show.table("Nodes", ["name", "state", "pool "], rows)
        return
    rows = []
    for node in nodes:
        engines = "-" if node["stats"] is None else str(sum(e["connected"] for e in node["stats"]["engines"]))
        applied = ", ".join(f"{kind} {seen['generation']}" for kind, seen in sorted(node["observed"].items()))
        rows.append([node["name"], node["state"], str(node["pid"]), engines, applied or "-"])
    show.table("Nodes", ["name", "state", "pid ", "engines ", "applied"], rows)
    show.faults(nodes)


def _tenants(tenants: list[dict[str, Any]], total: int) -> None:
    rows = [
        [
            tenant["tenant"],
            show.size(tenant["bytes"]),
            show.size(tenant["limit_bytes"]),
            str(tenant["blocks"]),
            show.floor(tenant["floor_bytes"], tenant["effective_floor_bytes"]),
            "over" if tenant["over_limit"] else "",
            tenant["note"],
        ]
        for tenant in tenants[:20]
    ]
    say()
    show.table(f"Tenants ({total})", ["tenant", "used ", "limit ", "blocks ", "floor ", "", "note"], rows)


def _pins(pins: list[dict[str, Any]], total: int) -> None:
    rows = [
        [
            pin["name"],
            pin["tenant"],
            pin["model"],
            pin["strength"] + (f" ({pin['degraded']} degraded)" if pin["degraded"] else ""),
            f"{pin['resident']}/{pin['resolved']}",
            show.tier(pin),
            show.size(pin["bytes"]),
            show.ends(pin["expires_at"]),
        ]
        for pin in pins[:20]
    ]
    say()
    show.table(
        f"Pins ({total})",
        ["name", "tenant", "model", "strength", "resident ", "tier", "bytes ", "ends"],
        rows,
    )

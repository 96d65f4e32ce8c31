"""`larder status`."""

from typing import Any

import click

from app.cli import show
from app.cli.client import call, json_option, print_json, url_option


@click.command()
@url_option
@json_option
def status(url: str | None, as_json: bool) -> None:
    """Show nodes, pool, tenants and pins."""
    overview = call(url, "GET", "/api/v1/overview")
    if as_json:
        print_json(overview)
        return
    _head(overview)
    _replicas(call(url, "GET", "/api/v1/replicas")["items"])
    if overview["nodes"]:
        _nodes(overview["nodes"])
    if overview["tenants"]:
        _tenants(overview["tenants"], overview["tenants_total"])
    if overview["pins"]:
        _pins(overview["pins"], overview["pins_total"])


def _head(overview: dict[str, Any]) -> None:
    pool, rates = overview["pool"], overview["rates"]
    click.echo(
        f"{'ready' if overview['ready'] else 'not ready'}, quotas {'enforced' if overview['armed'] else 'not enforced'}"
    )
    for node in overview["nodes"]:
        if node["stats"] is not None:
            policy = node["stats"]["policy"]
            gate = ", admission gate closed" if policy["gate_closed"] else ""
            click.echo(f"policy of {node['name']}: {policy['algorithm']}{gate}")
    click.echo(
        f"pool {show.size(pool['used_bytes'])} of {show.size(pool['capacity_bytes'])}"
        f" ({show.size(pool['pinned_bytes'])} pinned), {pool['blocks']} blocks,"
        f" hit ratio {show.percent(rates['hit_ratio'])} (last minute)"
    )


def _replicas(replicas: list[dict[str, Any]]) -> None:
    """Nothing when there is but one, and it pushes: that is what everybody expects."""
    alive = [replica for replica in replicas if replica["alive"]]
    pushing = [replica for replica in alive if replica["pushing"]]
    if len(alive) == 1 and pushing:
        return
    who = "none pushes to nodes now"
    if pushing:
        first = pushing[0]
        here = "this one" if first["answering"] else f"{first['host']} (pid {first['pid']}, {first['url']})"
        who = f"{here} pushes to nodes"
    click.echo(f"replicas: {len(alive)} alive; {who}")


def _nodes(nodes: list[dict[str, Any]]) -> None:
    rows = []
    for node in nodes:
        engines = "-" if node["stats"] is None else str(sum(e["connected"] for e in node["stats"]["engines"]))
        applied = ", ".join(f"{kind} {seen['generation']}" for kind, seen in sorted(node["observed"].items()))
        rows.append([node["name"], node["state"], str(node["pid"]), engines, applied or "-"])
    click.echo()
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
    click.echo()
    show.table(f"Tenants ({total})", ["tenant", "used ", "limit ", "blocks ", "floor ", "", "note"], rows)


def _pins(pins: list[dict[str, Any]], total: int) -> None:
    rows = [
        [
            pin["name"],
            pin["tenant"],
            pin["model"],
            pin["strength"] + (f" ({pin['degraded']} degraded)" if pin["degraded"] else ""),
            f"{pin['resident']}/{pin['resolved']}",
            show.size(pin["bytes"]),
            show.ends(pin["expires_at"]),
        ]
        for pin in pins[:20]
    ]
    click.echo()
    show.table(
        f"Pins ({total})", ["name", "tenant", "model", "strength", "resident ", "bytes ", "ends"], rows
    )

"""`larder nodes …`: show nodes and what they need, drain, resize and forget them."""

import time
from typing import Any

import click

from app.cli.support.api.client import ApiError, call, url_option
from app.cli.support.api.names import NODES
from app.cli.support.exit_codes import worded
from app.cli.support.keys import seconds
from app.cli.support.printing import caches, show
from app.cli.support.printing.terminal import Column, say, table
from app.cli.support.resources.options import Noun, Output, request_options, unasked_option, watch_option
from app.cli.support.resources.verbs import Resource, add_describe, add_get, add_list

SMALL_BLOCK_BYTES = 4096
"""Block size from which a node derives its largest number of blocks when `max_blocks` is not set."""
ACKNOWLEDGED_WITHIN = "2s"
DRAINED_WITHIN = "10m"
DRAIN_POLL_S = 0.5


def _pool(node: dict[str, Any], field: str) -> int | None:
    """Return a number of the node's pool; its capacity also if the node has not reported."""
    if node["stats"] is None:
        return int(node["capacity_bytes"]) if field == "capacity_bytes" else None
    return int(node["stats"]["pool"][field])


def _policy(node: dict[str, Any]) -> str:
    if node["stats"] is None:
        return "-"
    policy = node["stats"]["policy"]
    return f"{policy['algorithm']} (gate closed)" if policy["gate_closed"] else str(policy["algorithm"])


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _reasons(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items())) or "-"


def _load_rate(tier: dict[str, Any]) -> str:
    """Return the measured bandwidth of loads; none was measured before the first load."""
    return f"{show.size(int(tier['load_bytes_per_s']))}/s" if tier["loaded_blocks"] else "-"


_COLUMNS = (
    Column("name", lambda n: n["name"]),
    Column("state", caches.node_state),
    Column("pid", lambda n: str(n["pid"] or "-"), drop=3, right=True),
    Column("used", lambda n: show.size(_pool(n, "used_bytes")), right=True),
    Column("pool", lambda n: show.size(_pool(n, "capacity_bytes")), right=True),
    Column("engines", show.engines, drop=2, right=True),
    Column("policy", _policy, drop=1),
    Column("labels", lambda n: _labels(n["labels"]), drop=4, text=True),
    Column("release", lambda n: n["release"], wide=True),
    Column("engine socket", lambda n: n["engine_socket"], wide=True),
)
_GPU_COLUMNS = (
    Column("node", lambda g: g["node"]),
    Column("gpu", lambda g: g["name"]),
    Column("uuid", lambda g: g["device"], drop=4),
    Column("used", lambda g: show.size(g["used_bytes"]), right=True),
    Column("pool", lambda g: show.size(g["capacity_bytes"]), right=True),
    Column("GPU copies", lambda g: f"{g['gpu_copies']}/{g['wanted']}", right=True),
    Column("copying", lambda g: str(g["copying"] or "-"), drop=1, right=True),
    Column("leaving", lambda g: show.size(g["leaving_bytes"]) if g["leaving_bytes"] else "-", drop=2, right=True),
    Column("engines", lambda g: str(g["readers"]), drop=3, right=True),
    Column("state", show.pool_state),
)
_TIER_COLUMNS = (
    Column("node", lambda t: t["node"]),
    Column("tier", lambda t: t["name"]),
    Column("type", lambda t: t["type"], wide=True),
    Column("stored", lambda t: show.size(t["stored_bytes"]), right=True),
    Column("budget", lambda t: show.size(t["budget_bytes"]), right=True),
    Column("blocks", lambda t: f"{t['blocks']:,}", right=True, drop=2),
    Column("waiting", lambda t: f"{t['waiting_blocks']:,}" if t["waiting_blocks"] else "-", right=True, drop=3),
    Column("unspilled", show.unspilled, right=True, wide=True),
    Column("spilled", lambda t: show.size(t["spilled_bytes"]), right=True, drop=4),
    Column("cascaded", lambda t: f"{t.get('cascaded_blocks', 0):,}", right=True, wide=True),
    Column("loaded", lambda t: show.size(t["loaded_bytes"]), right=True, drop=1),
    Column("evicted", lambda t: f"{t['evicted_blocks']:,}", right=True, wide=True),
    Column("refused", lambda t: _reasons(t["refused"]), wide=True),
    Column("not loaded", lambda t: _reasons(t["lost"]), wide=True),
    Column("load rate", _load_rate, right=True, wide=True),
    Column("ratio", show.ratio, right=True, wide=True),
    Column("encodings", lambda t: show.encodings(t) or "-", wide=True),
    Column("not compressed", lambda t: _reasons(t.get("not_compressed", {})), wide=True),
    Column("state", show.tier_state, text=True),
)
_TOKEN_COLUMNS = (
    Column("id", lambda t: t["id"]),
    Column("name", lambda t: t["name"]),
    Column("uses left", lambda t: "any" if t["uses_left"] is None else str(t["uses_left"]), right=True),
    Column("ends", lambda t: show.ends(t["expires_at"])),
    Column("labels", lambda t: _labels(t["labels"]), drop=2, text=True),
    Column("nodes", lambda t: ", ".join(t["nodes"]), drop=1, text=True),
)
NODE_RESOURCE = Resource("/api/v1/nodes", "node", _COLUMNS, metavar="NODE")
nodes = Noun("nodes", help="Manage nodes: data planes, one on each machine.")
add_list(nodes, NODE_RESOURCE, "List all nodes.", add_details=lambda answer, _: show.faults(answer["items"]))
add_get(nodes, NODE_RESOURCE, "Show one node.")
add_describe(nodes, NODE_RESOURCE, "Show a node in full. Includes its statistics, and events that concern it.")


@nodes.command("gpus")
@click.argument("node", required=False, shell_complete=NODES)
@request_options
@watch_option
def gpus(url: str | None, node: str | None, output: Output) -> None:
    """Show the GPU copies of pins of the tier gpu, on one node or on all."""
    answer = NODE_RESOURCE.one_or_all(url, node)
    rows = [{"node": item["name"], **pool} for item in answer for pool in show.gpu_copy_pools(item)]
    if output.data(rows, [row["device"] for row in rows]):
        return
    table(f"GPU copies ({len(rows)})", _GPU_COLUMNS, rows, wide=output.wide)
    if not rows and all(item["stats"] is None for item in answer):
        say("no node has reported GPU copies, or this token may not see them")
    elif not rows:
        is_enabled = any((item["stats"] or {}).get("gpu_copy_pool_bytes") for item in answer)
        reason = "no engine on a GPU has requested any" if is_enabled else "gpu_pool_bytes is 0"
        say(f"no GPU keeps GPU copies: {reason}")


@nodes.command("tiers")
@click.argument("node", required=False, shell_complete=NODES)
@request_options
@watch_option
def tiers(url: str | None, node: str | None, output: Output) -> None:
    """Show the tiers behind memory, on one node or on all."""
    answer = NODE_RESOURCE.one_or_all(url, node)
    rows = [{"node": item["name"], **tier} for item in answer for tier in show.tiers(item)]
    if output.data(rows, [f"{row['node']}/{row['name']}" for row in rows]):
        return
    table(f"Tiers ({len(rows)})", _TIER_COLUMNS, rows, wide=output.wide)
    if not output.wide:  # the table shortens reasons
        for row in rows:
            if not row["serves"] and row["reason"]:
                say(f"  {row['node']} {row['name']}: {show.tier_state(row)}")
    if not rows and all(item["stats"] is None for item in answer):
        say("no node has reported tiers, or this token may not see them")
    elif not rows:
        say("no node has a tier behind memory: create one with larder tiers set, or set disk_tier_directories")


@nodes.command("resize")
@click.argument("node", shell_complete=NODES)
@click.argument("size", required=False)
@click.option("--forget", is_flag=True, help="Use the size from the settings at the next start of the node.")
@request_options
def resize(url: str | None, node: str, size: str | None, forget: bool, output: Output) -> None:
    """Grow a node's pool to SIZE, such as 4GiB. The size also applies after restarts, until --forget."""
    if forget == (size is not None):
        raise click.UsageError("expected either SIZE or --forget")
    path = f"{NODE_RESOURCE.of(node)}/resize"
    if forget:
        call(url, "DELETE", path)
        if not output.for_programs:
            say(f"{node}: the requested size is forgotten; the pool keeps its size until the node stops")
        return
    answer = call(url, "POST", path, {"pool_bytes": size})
    if output.data(answer, node):
        return
    say(f"{answer['node']}: the pool holds {show.size(answer['capacity_bytes'])}")
    max_blocks = answer["max_blocks"]
    if max_blocks is not None and answer["capacity_bytes"] // SMALL_BLOCK_BYTES > max_blocks:
        say(f"in at most {max_blocks} blocks, a number that is fixed when the node starts: [dataplane] max_blocks")


@nodes.command("drain")
@click.argument("node", shell_complete=NODES)
@click.option("--off", is_flag=True, help="End draining: the node accepts engines and stores again.")
@click.option(
    "--wait",
    metavar="[TIME]",
    is_flag=False,
    flag_value=DRAINED_WITHIN,
    help=f"Wait until no engine is left, at most this long, such as 5m; {DRAINED_WITHIN} without a TIME. The exit code "
    "is 1 if engines are left then.",
)
@url_option
def drain(url: str | None, node: str, off: bool, wait: str | None) -> None:
    """Drain a node: it accepts no new engines and no stores; reads continue."""
    if off and wait is not None:
        raise click.UsageError("--wait waits for engines to leave and cannot be combined with --off")
    within_s = None if wait is None else seconds("--wait", wait)
    path = NODE_RESOURCE.of(node)
    answer = call(url, "POST", f"{path}/drain", {"on": not off}, {"wait": ACKNOWLEDGED_WITHIN})
    stats = answer["stats"]
    pending = "" if stats is not None and stats["draining"] != off else "; it gets the request when it connects"
    say(f"{node} {'accepts engines and stores again' if off else 'drains'}{pending}")
    if within_s is not None:
        _until_drained(url, node, path, within_s)


def _until_drained(url: str | None, node: str, path: str, within_s: float) -> None:
    """Wait until no engine uses a node, and print their number when it changes. Raises ClickException."""
    deadline = time.monotonic() + within_s
    shown = None
    while True:
        answer = call(url, "GET", path)
        if answer["state"] == "lost" or answer["stats"] is None:
            reason = "it is lost" if answer["state"] == "lost" else "it has not reported them to this token"
            raise click.ClickException(f"the engines of {node} are not known: {reason}")
        engine_count = sum(engine["connected"] for engine in answer["stats"]["engines"])
        if engine_count != shown:
            shown = engine_count
            say(f"{show.plural(engine_count, 'engine')} left")
        if not answer["draining"]:
            raise click.ClickException(f"{node} no longer drains")
        if not engine_count and answer["stats"]["draining"]:
            return
        if time.monotonic() >= deadline:
            raise click.ClickException(
                f"{show.plural(engine_count, 'engine')} of {node} left after {within_s:g} s; it still drains: stop "
                "them, or wait again"
            )
        time.sleep(DRAIN_POLL_S)


@nodes.command("label")
@click.argument("node", shell_complete=NODES)
@click.argument("labels", nargs=-1, required=True)
@url_option
def label(url: str | None, node: str, labels: tuple[str, ...]) -> None:
    """Override labels that a node reports: KEY=VALUE sets one, KEY- removes the override."""
    patch: dict[str, str | None] = {}
    for text in labels:
        key, equals, value = text.partition("=")
        if equals:
            patch[key] = value
        elif key.endswith("-"):
            patch[key[:-1]] = None
        else:
            raise click.UsageError(f"expected KEY=VALUE or KEY-, got {text!r}")
    answer = call(url, "PATCH", NODE_RESOURCE.of(node), {"labels": patch})
    shown = ", ".join(f"{key}={value}" for key, value in sorted(answer["labels"].items()))
    say(f"{node}: {shown or 'no labels'}")


@nodes.command("delete")
@click.argument("node", shell_complete=NODES)
@click.option("--force", is_flag=True, help="Delete the node even if it is connected and not drained.")
@unasked_option
@url_option
def delete(url: str | None, node: str, force: bool) -> None:
    """Remove a node. It must join again with a token."""
    try:
        call(url, "DELETE", NODE_RESOURCE.of(node), query={"force": "true" if force else None})
    except ApiError as refused:
        raise worded(refused, refused.message.replace("force=true", "--force")) from None
    say(f"{node}: node deleted")


_TOKENS = Resource("/api/v1/join-tokens", "join token", _TOKEN_COLUMNS, "id")
token = Noun("token", help="Manage join tokens, with which data planes on other machines join.")
nodes.add_command(token)
add_list(token, _TOKENS, "List join tokens, without their secrets.", title="Join tokens")


@token.command("create")
@click.option("--name", default="", help="Name of the token.")
@click.option(
    "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of nodes that join with the token; repeatable."
)
@click.option("--uses", type=int, default=1, show_default=True, help="Nodes that may join; 0 for any number.")
@click.option(
    "--ttl", metavar="TIME", default="24h", show_default=True, help="Time until the token expires; 0 for never."
)
@click.option(
    "--address", "addresses", multiple=True, metavar="URL", help="Where nodes reach this management plane; repeatable."
)
@request_options
def create_token(
    url: str | None, name: str, labels: tuple[str, ...], uses: int, ttl: str, addresses: tuple[str, ...], output: Output
) -> None:
    """Create a join token and print it. It is shown only once."""
    pairs = [text.partition("=") for text in labels]
    for text, (_, equals, _) in zip(labels, pairs, strict=True):
        if not equals:
            raise click.UsageError(f"--label: expected KEY=VALUE, got {text!r}")
    body = {
        "name": name,
        "labels": {key: value for key, _, value in pairs},
        "uses": uses or None,
        "ttl_s": None if ttl == "0" else seconds("--ttl", ttl),
        "addresses": list(addresses),
    }
    answer = call(url, "POST", _TOKENS.path, body)
    if output.data(answer, answer["token"]):
        return
    say(answer["token"])
    say("Keep it in a file of mode 0600 on the new machine, and start there:", err=True)
    say("  larder dataplane --join-token-file FILE", err=True)


@token.command("revoke")
@click.argument("ident", metavar="ID")
@unasked_option
@url_option
def revoke_token(url: str | None, ident: str) -> None:
    """Revoke a join token. Nodes that joined with it stay."""
    call(url, "DELETE", _TOKENS.of(ident))
    say(f"join token {ident} is revoked")

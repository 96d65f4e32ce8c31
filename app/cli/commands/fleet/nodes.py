"""`larder nodes …`."""

from typing import Any

import click

from app.cli.support import caches, show
from app.cli.support.client import ApiError, call, json_option, print_json, segment, url_option, wait_option
from app.cli.support.keys import seconds
from app.cli.support.lists import unasked_option
from app.cli.support.terminal import say

SMALL_BLOCK_BYTES = 4096
"""Block size from which a node derives its largest number of blocks when `max_blocks` is not set."""


@click.group()
def nodes() -> None:
    """Manage nodes: data planes, one on each machine."""


@nodes.command("list")
@url_option
@json_option
def list_nodes(url: str | None, as_json: bool) -> None:
    """Show all nodes."""
    answer = call(url, "GET", "/api/v1/nodes")
    if as_json:
        print_json(answer)
        return
    rows = []
    for node in answer["items"]:
        stats = node["stats"]
        pool = stats["pool"] if stats else {"used_bytes": None, "capacity_bytes": node["capacity_bytes"]}
        engines = "-" if stats is None else str(sum(e["connected"] for e in stats["engines"]))
        gate = "-" if stats is None else stats["policy"]["algorithm"]
        if stats is not None and stats["policy"]["gate_closed"]:
            gate += " (gate closed)"
        rows.append(
            [
                node["name"],
                _state(node),
                str(node["pid"] or "-"),
                show.size(pool["used_bytes"]),
                show.size(pool["capacity_bytes"]),
                engines,
                gate,
                ",".join(f"{key}={value}" for key, value in sorted(node["labels"].items())),
            ]
        )
    columns = ["name", "state", "pid ", "used ", "pool ", "engines ", "policy", "labels"]
    show.table(f"Nodes ({answer['total']})", columns, rows)
    show.faults(answer["items"])


def _state(node: dict[str, Any]) -> str:
    """Return the state of a node for a table cell, with everything unusual."""
    notes = ["draining"] if node["draining"] else []
    if offset_s := node["clock_offset_s"]:
        notes.append(f"clock {abs(offset_s):.0f} s {'ahead' if offset_s > 0 else 'behind'}")
    if caches.cold([node]):
        notes.append("cache cold")
    if any(pool["problem"] for pool in show.gpu_copy_pools(node)):
        notes.append("GPU copies: a problem")
    return str(node["state"]) + (f" ({', '.join(notes)})" if notes else "")


@nodes.command("get")
@click.argument("node")
@url_option
def get_node(url: str | None, node: str) -> None:
    """Show one node as JSON."""
    print_json(call(url, "GET", f"/api/v1/nodes/{segment(node, 'node')}"))


@nodes.command("gpus")
@click.argument("node", required=False)
@url_option
@json_option
def gpus(url: str | None, node: str | None, as_json: bool) -> None:
    """Show the GPU copies of pins of the tier gpu, on one node or on all."""
    if node is None:
        answer = call(url, "GET", "/api/v1/nodes")["items"]
    else:
        answer = [call(url, "GET", f"/api/v1/nodes/{segment(node, 'node')}")]
    told = [(each["name"], pool) for each in answer for pool in show.gpu_copy_pools(each)]
    if as_json:
        print_json([{"node": name, **pool} for name, pool in told])
        return
    rows = [
        [
            name,
            pool["name"],
            pool["device"],
            show.size(pool["used_bytes"]),
            show.size(pool["capacity_bytes"]),
            f"{pool['gpu_copies']}/{pool['wanted']}",
            str(pool["copying"] or "-"),
            show.size(pool["leaving_bytes"]) if pool["leaving_bytes"] else "-",
            str(pool["readers"]),
            show.pool_state(pool),
        ]
        for name, pool in told
    ]
    columns = ["node", "gpu", "uuid", "used ", "pool ", "GPU copies ", "copying ", "leaving ", "engines "]
    show.table(f"GPU copies ({len(rows)})", [*columns, "state"], rows)
    if not rows and all(each["stats"] is None for each in answer):
        say("no node has told, or its numbers are not for this token")
    elif not rows:
        given = any((each["stats"] or {}).get("gpu_copy_pool_bytes") for each in answer)
        say(
            f"no GPU keeps GPU copies: {'no engine of a GPU has asked yet' if given else 'gpu_pool_bytes is 0'}"
        )


@nodes.command("resize")
@click.argument("node")
@click.argument("size", required=False)
@click.option("--forget", is_flag=True, help="Ask for no size any more when the node comes back.")
@url_option
@json_option
def resize(url: str | None, node: str, size: str | None, forget: bool, as_json: bool) -> None:
    """Grow a node's pool to SIZE, such as 4GiB. The size also applies after restarts, until --forget."""
    if forget == (size is not None):
        raise click.UsageError("expected either a SIZE or --forget")
    path = f"/api/v1/nodes/{segment(node, 'node')}/resize"
    if forget:
        call(url, "DELETE", path)
        if not as_json:
            say(f"{node}: no size is asked for any more; the pool stays as it is until the node stops")
        return
    answer = call(url, "POST", path, {"pool_bytes": size})
    if as_json:
        print_json(answer)
        return
    say(f"{answer['node']}: the pool holds {show.size(answer['capacity_bytes'])}")
    most = answer["max_blocks"]
    if most is not None and answer["capacity_bytes"] // SMALL_BLOCK_BYTES > most:
        say(f"in at most {most} blocks, a number that is fixed when the node starts: [dataplane] max_blocks")


@nodes.command("drain")
@click.argument("node")
@click.option("--off", is_flag=True, help="Let it take new engines and store again.")
@wait_option
@url_option
def drain(url: str | None, node: str, off: bool, wait: str) -> None:
    """Drain a node: it accepts no new engines and no stores; reads continue."""
    answer = call(
        url, "POST", f"/api/v1/nodes/{segment(node, 'node')}/drain", {"on": not off}, {"wait": wait}
    )
    stats = answer["stats"]
    told = "" if stats is not None and stats["draining"] != off else "; it is told once it is connected"
    say(f"{node} {'takes engines and stores again' if off else 'drains'}{told}")


@nodes.command("label")
@click.argument("node")
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
    answer = call(url, "PATCH", f"/api/v1/nodes/{segment(node, 'node')}", {"labels": patch})
    shown = ", ".join(f"{key}={value}" for key, value in sorted(answer["labels"].items()))
    say(f"{node}: {shown or 'no labels'}")


@nodes.command("forget")
@click.argument("node")
@click.option("--force", is_flag=True, help="Also while it is connected and not drained.")
@unasked_option
@url_option
def forget(url: str | None, node: str, force: bool) -> None:
    """Remove a node. It must join again with a token."""
    try:
        call(
            url,
            "DELETE",
            f"/api/v1/nodes/{segment(node, 'node')}",
            query={"force": "true" if force else None},
        )
    except ApiError as refused:
        raise click.ClickException(refused.message.replace("force=true", "--force")) from None
    say(f"{node} is forgotten")


@nodes.group("token")
def token() -> None:
    """Manage join tokens, with which data planes on other machines join."""


@token.command("create")
@click.option("--name", default="", help="What it is for.")
@click.option(
    "--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label that nodes get; repeatable."
)
@click.option("--uses", type=int, default=1, show_default=True, help="Nodes that may join; 0 for any number.")
@click.option(
    "--ttl", metavar="TIME", default="24h", show_default=True, help="Ends after this time; 0 for never."
)
@click.option(
    "--address", "addresses", multiple=True, metavar="URL", help="Where nodes reach us; repeatable."
)
@url_option
@json_option
def create_token(
    url: str | None,
    name: str,
    labels: tuple[str, ...],
    uses: int,
    ttl: str,
    addresses: tuple[str, ...],
    as_json: bool,
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
    answer = call(url, "POST", "/api/v1/join-tokens", body)
    if as_json:
        print_json(answer)
        return
    say(answer["token"])
    say("Keep it in a file of mode 0600 on the new machine, and start there:", err=True)
    say("  larder dataplane --join-token-file FILE", err=True)


@token.command("list")
@url_option
@json_option
def list_tokens(url: str | None, as_json: bool) -> None:
    """Show join tokens, without their secrets."""
    answer = call(url, "GET", "/api/v1/join-tokens")
    if as_json:
        print_json(answer)
        return
    rows = [
        [
            each["id"],
            each["name"],
            "any" if each["uses_left"] is None else str(each["uses_left"]),
            show.ends(each["expires_at"]),
            ",".join(f"{key}={value}" for key, value in sorted(each["labels"].items())),
            ", ".join(each["nodes"]),
        ]
        for each in answer["items"]
    ]
    show.table(
        f"Join tokens ({answer['total']})", ["id", "name", "uses left ", "ends", "labels", "nodes"], rows
    )


@token.command("revoke")
@click.argument("ident", metavar="ID")
@unasked_option
@url_option
def revoke_token(url: str | None, ident: str) -> None:
    """Revoke a join token. Nodes that joined with it stay."""
    call(url, "DELETE", f"/api/v1/join-tokens/{segment(ident)}")
    say(f"join token {ident} is revoked")

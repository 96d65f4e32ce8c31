"""`larder nodes …`."""

import click

from app.cli import show
from app.cli.client import call, json_option, print_json, segment, url_option

SMALL_BLOCK_BYTES = 4096
"""What a node that is told no number expects of its blocks: as many as fit of this size."""


@click.group()
def nodes() -> None:
    """Data planes, one on each machine."""


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
                node["state"],
                str(node["pid"]),
                show.size(pool["used_bytes"]),
                show.size(pool["capacity_bytes"]),
                engines,
                gate,
            ]
        )
    columns = ["name", "state", "pid ", "used ", "pool ", "engines ", "policy"]
    show.table(f"Nodes ({answer['total']})", columns, rows)


@nodes.command("get")
@click.argument("node")
@url_option
def get_node(url: str | None, node: str) -> None:
    """Show one node as JSON."""
    print_json(call(url, "GET", f"/api/v1/nodes/{segment(node)}"))


@nodes.command("resize")
@click.argument("node")
@click.argument("size", required=False)
@click.option("--forget", is_flag=True, help="Ask for no size any more when the node comes back.")
@url_option
@json_option
def resize(url: str | None, node: str, size: str | None, forget: bool, as_json: bool) -> None:
    """Let a node's pool grow to SIZE, such as 4GiB; also after it restarts, until --forget."""
    if forget == (size is not None):
        raise click.UsageError("expected either a SIZE or --forget")
    path = f"/api/v1/nodes/{segment(node)}/resize"
    if forget:
        call(url, "DELETE", path)
        if not as_json:
            click.echo(f"{node}: no size is asked for any more; the pool stays as it is until the node stops")
        return
    answer = call(url, "POST", path, {"pool_bytes": size})
    if as_json:
        print_json(answer)
        return
    click.echo(f"{answer['node']}: the pool holds {show.size(answer['capacity_bytes'])}")
    most = answer["max_blocks"]
    if most is not None and answer["capacity_bytes"] // SMALL_BLOCK_BYTES > most:
        click.echo(
            f"in at most {most} blocks, a number that is fixed when the node starts: [dataplane] max_blocks"
        )

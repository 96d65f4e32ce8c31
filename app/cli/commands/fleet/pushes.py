"""`larder pushes …`: show the pushes of records to nodes, and their answers."""

import click

from app.cli.support.api.client import call, url_option
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column
from app.cli.support.resources.options import Noun, Output, output_option, watch_option

_COLUMNS = (
    Column("sent", lambda p: show.ago(p["sent_at"])),
    Column("node", lambda p: p["node"]),
    Column("generation", lambda p: f"{p['type']} {p['generation']}"),
    Column("reason", lambda p: p["reason"], drop=2),
    Column("answer", lambda p: p["state"]),
    Column("size", lambda p: show.size(p["size_bytes"]), drop=3, right=True),
    Column(
        "faults",
        lambda p: "; ".join(f"{fault['path']}: {fault['message']}" for fault in p["faults"]),
        drop=1,
        text=True,
    ),
)


@click.group(cls=Noun)
def pushes() -> None:
    """Show the pushes of records to nodes, and their answers."""


@pushes.command("list")
@click.option("--type", "kind", type=click.Choice(["quotas", "pins", "policies", "tiers"]), help="Only this type.")
@click.option("--node", metavar="NAME", help="Only this node.")
@click.option(
    "--state", type=click.Choice(["acked", "nacked", "timed_out", "refused"]), help="Only pushes with this answer."
)
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of items.")
@url_option
@output_option
@watch_option
def list_pushes(
    kind: str | None, node: str | None, state: str | None, limit: int, url: str | None, output: Output
) -> None:
    """List the pushes to nodes and their answers, newest first."""
    query = {"type": kind, "node": node, "state": state, "limit": str(limit)}
    answer = call(url, "GET", "/api/v1/pushes", None, query)
    output.listing("Pushes", answer, _COLUMNS, "id")

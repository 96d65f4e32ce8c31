"""`larder pushes …`: show the pushes of records to nodes, and their answers."""

import click

from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column
from app.cli.support.resources.options import Noun, limit_of
from app.cli.support.resources.verbs import Resource, add_list

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

pushes = Noun("pushes", help="Show the pushes of records to nodes, and their answers.")
add_list(
    pushes,
    Resource("/api/v1/pushes", "push", _COLUMNS, "id"),
    "List the pushes to nodes and their answers, newest first.",
    click.option("--type", type=click.Choice(["quotas", "pins", "policies", "tiers"]), help="Only this type."),
    click.option("--node", metavar="NAME", help="Only this node."),
    click.option(
        "--state", type=click.Choice(["acked", "nacked", "timed_out", "refused"]), help="Only pushes with this answer."
    ),
    limit_of(50, 1000),
)

"""`larder prefixes …`: show the prefixes that were served most."""

import click

from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column
from app.cli.support.resources.options import Noun, limit_of
from app.cli.support.resources.verbs import Resource, add_list

_COLUMNS = (
    Column("label", lambda p: p["label"]),
    Column("tenant", lambda p: p["tenant"]),
    Column("model", lambda p: p["model"], drop=1),
    Column("chunks", lambda p: str(p["depth"]), drop=2, right=True),
    Column("hits", lambda p: f"{p['hits']}" + (f" (-{p['error']})" if p["error"] else ""), right=True),
    Column("served", lambda p: show.size(p["bytes_served"]), right=True),
    Column("resident", lambda p: str(p["resident"]), drop=3, right=True),
    Column("last used", lambda p: show.ago(p["last_used"]), drop=4),
)


prefixes = Noun(
    "prefixes",
    help="Show the prefixes that were served most in the last hour; `larder pins set NAME --prefix LABEL` pins one.",
)
add_list(
    prefixes,
    Resource("/api/v1/prefixes", "prefix", _COLUMNS, "label"),
    "List the most served prefixes, the most served first.",
    click.option(
        "--by", type=click.Choice(["bytes", "hits"]), default="bytes", show_default=True, help="Order of the list."
    ),
    click.option("--tenant", help="Only this tenant; `_default` for the empty salt."),
    limit_of(20, 1000),
    title="Hot prefixes",
)

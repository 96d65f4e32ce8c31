"""`larder prefixes …`: show the prefixes that were served most."""

import click

from app.cli.support.api.client import call, url_option
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say
from app.cli.support.resources.options import Noun, Output, output_option, watch_option

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


@click.group(cls=Noun)
def prefixes() -> None:
    """Show the prefixes that were served most in the last hour; `larder pins set NAME --prefix LABEL` pins one."""


@prefixes.command("list")
@click.option(
    "--by", type=click.Choice(["bytes", "hits"]), default="bytes", show_default=True, help="Order of the list."
)
@click.option("--tenant", help="Only this tenant; `_default` for the empty salt.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Maximum number of items.")
@url_option
@output_option
@watch_option
def list_prefixes(by: str, tenant: str | None, limit: int, url: str | None, output: Output) -> None:
    """List the most served prefixes, the most served first."""
    answer = call(url, "GET", "/api/v1/prefixes", None, {"by": by, "tenant": tenant, "limit": str(limit)})
    if output.listing("Hot prefixes", answer, _COLUMNS, "label"):
        for failed in answer["failed_nodes"]:
            say(f"  missing: {failed['error']}")

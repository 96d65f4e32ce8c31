"""`larder prefixes`."""

import click

from app.cli.support import show
from app.cli.support.client import call, json_option, print_json, url_option
from app.cli.support.terminal import say


@click.command()
@click.option(
    "--by",
    type=click.Choice(["bytes", "hits"]),
    default="bytes",
    show_default=True,
    help="What makes it hot.",
)
@click.option("--tenant", help="Only this tenant, as shown.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Maximum number of items."
)
@url_option
@json_option
def prefixes(by: str, tenant: str | None, limit: int, url: str | None, as_json: bool) -> None:
    """Show the prefixes that were served most in the last hour; `larder pins set NAME --prefix LABEL` pins one."""
    answer = call(url, "GET", "/api/v1/prefixes", None, {"by": by, "tenant": tenant, "limit": str(limit)})
    if as_json:
        print_json(answer)
        return
    rows = [
        [
            p["label"],
            p["tenant"],
            p["model"],
            str(p["depth"]),
            f"{p['hits']}" + (f" (-{p['error']})" if p["error"] else ""),
            show.size(p["bytes_served"]),
            str(p["resident"]),
            show.ago(p["last_used"]),
        ]
        for p in answer["items"]
    ]
    columns = ["label", "tenant", "model", "chunks ", "hits ", "served ", "resident ", "last used"]
    show.table(f"Hot prefixes ({answer['total']})", columns, rows)
    for silent in answer["silent"]:
        say(f"  missing: {silent['error']}")

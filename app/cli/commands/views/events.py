"""`larder events`."""

import time
from datetime import UTC, datetime

import click

from app.cli.support import show
from app.cli.support.client import every, json_option, print_json, url_option
from app.cli.support.keys import seconds
from app.cli.support.lists import title


@click.command()
@click.option("--name", help="Only of this name, such as node.lost.")
@click.option("--node", help="Only of this node.")
@click.option("--since", metavar="TIME", help="Only of the last 90s, 30m, 12h or 7d.")
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of items."
)
@url_option
@json_option
def events(
    name: str | None, node: str | None, since: str | None, limit: int, url: str | None, as_json: bool
) -> None:
    """Show events, newest first."""
    first = None if since is None else str(max(time.time() - seconds("--since", since), 0))
    answer = every(url, "/api/v1/events/history", {"name": name, "node": node, "since": first}, limit)
    if as_json:
        print_json(answer)
        return
    rows = [
        [
            datetime.fromtimestamp(each["at"], UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
            each["name"],
            each["node"] or "-",
            ", ".join(f"{field}={value}" for field, value in each["fields"].items()),
        ]
        for each in answer["items"]
    ]
    show.table(title("Events", answer), ["at", "name", "node", "fields"], rows)

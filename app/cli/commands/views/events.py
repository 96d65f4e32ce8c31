"""`larder events …`."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import click

from app.cli.support.client import every, url_option
from app.cli.support.events import EVENT_COLUMNS
from app.cli.support.keys import seconds
from app.cli.support.nouns import Noun
from app.cli.support.output import Output, output_option
from app.cli.support.table import table
from app.cli.support.terminal import say
from app.cli.support.watch import watch_option

POLL_S = 1.0
MAX_AT_ONCE = 1000


@click.group(cls=Noun)
def events() -> None:
    """Show events: what happened on nodes and in the management plane."""


@events.command("list")
@click.option("--name", help="Show only events of this name, such as node.lost, or push.* for a prefix.")
@click.option("--node", help="Show only this node.")
@click.option("--actor", help="Show only this actor.")
@click.option("--since", metavar="TIME", help="Show only the last 90s, 30m, 12h or 7d.")
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of items."
)
@click.option("--follow", "-f", is_flag=True, help="Print the list with the newest last, then new events.")
@url_option
@output_option
@watch_option
def list_events(
    name: str | None,
    node: str | None,
    actor: str | None,
    since: str | None,
    limit: int,
    follow: bool,
    url: str | None,
    output: Output,
) -> None:
    """List events, newest first."""
    first = None if since is None else str(max(time.time() - seconds("--since", since), 0))
    filters = {"name": name, "node": node, "actor": actor}
    answer = every(url, "/api/v1/events/history", {**filters, "since": first}, limit)
    if follow:
        with suppress(KeyboardInterrupt):
            _follow(url, filters, answer["items"], output)
    else:
        output.listing("Events", answer, EVENT_COLUMNS, lambda event: str(event["id"]))
        if output.format in ("table", "wide"):
            for line in _not_kept(answer["not_kept"]):
                say(line)


def _follow(
    url: str | None, filters: dict[str, str | None], newest: list[dict[str, object]], output: Output
) -> None:
    """Print the events, oldest first, and those that happen from now on. Does not return."""
    last = max((event["id"] for event in newest), default=0)  # type: ignore[type-var]
    _print(list(reversed(newest)), output, header=True)
    while True:
        time.sleep(POLL_S)
        page = every(url, "/api/v1/events/history", {**filters, "sort": "-id"}, MAX_AT_ONCE)["items"]
        new = [event for event in page if event["id"] > last]
        if new:
            last = new[0]["id"]
            _print(list(reversed(new)), output, header=False)


def _print(items: list[dict[str, object]], output: Output, *, header: bool) -> None:
    if output.format in ("json", "yaml", "name"):
        for event in items:
            output.data(event, str(event["id"]))
    else:
        table("", EVENT_COLUMNS, items, wide=output.wide, header=header)


def _not_kept(missing: dict[str, Any]) -> list[str]:
    """Return lines about events that are missing from the history."""
    before = datetime.fromtimestamp(missing["before"], UTC).strftime("%Y-%m-%d %H:%MZ")
    return [
        f"Not stored: events before {before}, and {len(missing['names'])} kinds of events of normal operation.",
        f"Since this manager started: {missing['dropped']} dropped, {missing['lost']} lost. Names: -o json",
    ]

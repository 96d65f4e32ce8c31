"""`larder events …`: show and follow events of nodes and of the management plane."""

import errno
import select
import sys
import time
from collections.abc import Iterable, Mapping, Set
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any

import click

from app.cli.support.api.client import every
from app.cli.support.api.event_stream import SUMMED, Event, FollowedEvents
from app.cli.support.api.event_stream import key as event_key
from app.cli.support.keys import seconds
from app.cli.support.printing.terminal import say, table
from app.cli.support.resources.events import EVENT_COLUMNS
from app.cli.support.resources.options import Noun, Output, limit_of, request_options, watch_option


@click.group(cls=Noun)
def events() -> None:
    """Show events: what happened on nodes and in the management plane."""


@events.command("list")
@click.option("--name", help="Only events of this name, such as node.lost, or push.* for a prefix.")
@click.option("--node", metavar="NAME", help="Only this node.")
@click.option("--actor", help="Only this actor.")
@click.option("--since", metavar="TIME", help="Only the last 90s, 30m, 12h or 7d.")
@limit_of(50)
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Print the list with the newest last, then events as they happen. Those of normal operation and block traffic "
    "need --name.",
)
@request_options
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
    first = None if since is None else max(time.time() - seconds("--since", since), 0)
    filters = {"name": name, "node": node, "actor": actor}
    query = {**filters, "since": None if first is None else str(first)}
    if follow:
        with suppress(KeyboardInterrupt):
            _follow(url, query, limit, output)
        return
    answer = every(url, "/api/v1/events/history", query, limit)
    output.listing("Events", answer, EVENT_COLUMNS, lambda event: str(event["id"]))
    if output.format in ("table", "wide"):
        for line in _not_stored(answer["not_kept"]):
            say(line)
        if name in answer["not_kept"]["names"]:
            say(f"Events of this name are never stored: larder events --follow --name {name}")


def _follow(url: str | None, query: dict[str, str | None], limit: int, output: Output) -> None:
    """Print the newest events, oldest first, and those that happen from now on. Does not return."""
    events = FollowedEvents(url, lambda text: say(f"larder: {text}", err=True))
    with closing(events.batches()) as batches:
        streamed = next(batches)
        # What happens between the two requests is on the stream, which is open already.
        answer = every(url, "/api/v1/events/history", query, limit)
        unlisted = frozenset() if query["name"] else frozenset((*answer["not_kept"]["names"], SUMMED))
        listed = {event_key(event): event for event in reversed(answer["items"])}
        for event in _matching(streamed, query, unlisted):
            listed.setdefault(event_key(event), event)
        events.remember(answer["items"])
        _print(sorted(listed.values(), key=lambda event: event["at"])[-limit:], output, header=True)
        for batch in batches:
            if _output_is_closed():
                raise BrokenPipeError(errno.EPIPE, "the reader of the output ended")
            _print(_matching(batch, query, unlisted), output, header=False)


def _matching(events: Iterable[Event], query: Mapping[str, str | None], unlisted: Set[str]) -> list[Event]:
    """Return the events that the history would select with the query, without those of some names."""
    name = query["name"]
    return [
        event
        for event in events
        if event["name"] not in unlisted
        and (name is None or event["name"] == name or (name.endswith("*") and event["name"].startswith(name[:-1])))
        and all(query[field] in (None, event[field]) for field in ("node", "actor"))
        and event["at"] >= float(query["since"] or 0)
    ]


def _output_is_closed() -> bool:
    """Return whether the process that read the output through a pipe has ended."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(happened & select.POLLERR for _, happened in poll.poll(0))


def _print(items: list[Event], output: Output, *, header: bool) -> None:
    if output.format in ("json", "yaml", "name"):
        for event in items:
            output.data(event, str(event["id"]))
    elif items or header:
        table("", EVENT_COLUMNS, items, wide=output.wide, header=header)


def _not_stored(missing: dict[str, Any]) -> list[str]:
    """Return lines about events that are missing from the history."""
    before = datetime.fromtimestamp(missing["before"], UTC).strftime("%Y-%m-%d %H:%MZ")
    return [
        f"Not stored: events before {before}, and {len(missing['names'])} kinds of events of normal operation.",
        f"Since this manager started: {missing['dropped']} dropped, {missing['lost']} lost. Names: -o json",
    ]

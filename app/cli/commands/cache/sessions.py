"""`larder sessions …`: conversations that requests name, and what becomes of their blocks."""

import time
from typing import Any

import click

from app.cli.commands.cache.actions import aimed, node_option
from app.cli.support.api.client import call, segment
from app.cli.support.exit_codes import check_nodes
from app.cli.support.keys import seconds, together
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, table
from app.cli.support.resources.describe import describe
from app.cli.support.resources.options import Noun, Output, limit_of, request_options
from app.cli.support.resources.verbs import Resource, add_list

_PATH = "/api/v1/sessions"
_IDLE_S = 300.0
"""A session that no request has named for so long is idle."""
_COLUMNS = (
    Column("session", lambda item: item["session"]),
    Column("tenant", lambda item: item["tenant"]),
    Column("node", lambda item: item["node"], drop=2),
    Column("model", lambda item: item["model"] or "-", drop=4),
    Column("state", lambda item: _state(item)),
    Column("chunks", lambda item: str(item["chunks"]), drop=5, right=True),
    Column("private", lambda item: show.size(item["private_bytes"]), drop=1, right=True),
    Column("bytes", lambda item: _places(item)),
    Column("started", lambda item: show.ago(item["started_at"]), drop=3),
    Column("used", lambda item: show.ago(item["used_at"])),
)
_ACTED = (
    Column("node", lambda item: item["node"]),
    Column("blocks", lambda item: str(item["blocks"]), right=True),
    Column("bytes", lambda item: show.size(item["bytes"]), right=True),
    Column("refused", lambda item: str(item["refused_blocks"] or "-"), right=True),
)
_tenant_option = click.option(
    "--tenant", help="Tenant of the session; default the only one of the token, or `_default` for the empty salt."
)
_action_options = together(_tenant_option, node_option, request_options)


@click.group(cls=Noun)
def sessions() -> None:
    """Manage the sessions that requests name (`larder.session`). Data planes know them until they restart."""


add_list(
    sessions,
    Resource(_PATH, "session", _COLUMNS, "session"),
    "List the sessions of each node: released ones first, then the least recently used.",
    click.option("--tenant", help="Only this tenant; `_default` for the empty salt."),
    click.option("--node", metavar="NAME", help="Only this node."),
    limit_of(50),
    pages=True,
)


@sessions.command("describe")
@click.argument("session")
@_tenant_option
@request_options
def describe_session(session: str, tenant: str | None, url: str | None, output: Output) -> None:
    """Show a session on every node that knows it, and the events that concern it."""
    answer = call(url, "GET", f"{_PATH}/{segment(session, 'session')}", None, {"tenant": tenant})
    nodes = {item["node"]: item for item in answer["items"]}
    if not output.data(answer, [*nodes]):
        owner = answer["items"][0]["tenant"] if nodes else ""
        describe(url, "session", session, {"nodes": nodes}, tenant=owner)
    check_nodes(answer["failed_nodes"])


@sessions.command("release")
@click.argument("session")
@_action_options
def release(session: str, **options: Any) -> None:
    """Make the blocks that belong to the session alone the first victims. Shared prefixes stay."""
    _act("release", session, None, **options)


@sessions.command("retain")
@click.argument("session")
@click.option("--for", "duration", metavar="TIME", default="5m", show_default=True, help="Time; nodes shorten it.")
@_action_options
def retain(session: str, duration: str, **options: Any) -> None:
    """Evict the blocks of the session after the tenant's other blocks, such as during a tool call."""
    _act("retain", session, seconds("--for", duration), **options)


@sessions.command("prefetch")
@click.argument("session")
@click.option("--within", metavar="TIME", default="60s", show_default=True, help="Load nothing after this time.")
@_action_options
def prefetch(session: str, within: str, **options: Any) -> None:
    """Load the blocks of the session that only tiers hold, before its next turn. Does not wait for the loads."""
    _act("prefetch", session, seconds("--within", within), **options)


def _act(
    action: str,
    session: str,
    duration_s: float | None,
    *,
    tenant: str | None,
    nodes: tuple[str, ...],
    url: str | None,
    output: Output,
) -> None:
    body = {"tenant": tenant, "seconds": duration_s}
    given = {name: value for name, value in body.items() if value is not None}
    answer = call(url, "POST", f"{_PATH}/{segment(session, 'session')}:{action}", {**given, **aimed(nodes)})
    if not output.data(answer, [item["node"] for item in answer["items"]]):
        items = [item for item in answer["items"] if not item["error"]]
        table(f"Session {session}: {action}", _ACTED, items, wide=output.wide)
    check_nodes(answer["items"])


def _state(item: dict[str, Any]) -> str:
    now = time.time()
    if item["released"]:
        return "released"
    if (item["retained_until"] or 0.0) > now:
        return f"retained, ends {show.ends(item['retained_until'])}"
    return "active" if now - item["used_at"] < _IDLE_S else "idle"


def _places(item: dict[str, Any]) -> str:
    return ", ".join(f"{show.size(nbytes)} {place}" for place, nbytes in item["bytes"].items()) or "-"

"""`larder alerts …`: show alerts that Alertmanager or Grafana sent, each with the change before it."""

from collections.abc import Mapping
from typing import Any

import click

from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column
from app.cli.support.resources.options import Noun, limit_of
from app.cli.support.resources.verbs import Resource, add_list


def _change(alert: Mapping[str, Any]) -> str:
    """Return the latest change before the alert."""
    for change in alert["preceding_changes"][:1]:
        by = f" by {change['actor']}" if change["actor"] else ""
        return f"{change['summary']}{by}, {show.ago(change['at'])}"
    return "-"


_COLUMNS = (
    Column("alert", lambda a: a["alertname"]),
    Column("severity", lambda a: a["severity"] or "-", drop=3),
    Column("state", lambda a: a["state"], drop=4),
    Column("since", lambda a: show.ago(a["starts_at"])),
    Column("tenant", lambda a: a["tenant"] or "-", drop=2),
    Column("node", lambda a: a["node"] or "-", drop=1),
    Column("summary", lambda a: a["summary"], text=True, wraps=True),
    Column("change before", _change, text=True, wide=True),
    Column("runbook", lambda a: a["runbook_url"] or "-", wide=True),
)


def _query(options: dict[str, Any]) -> dict[str, Any]:
    return options if options["state"] != "any" else {**options, "state": None}


alerts = Noun("alerts", help="Show the alerts that Alertmanager or Grafana sent.")
add_list(
    alerts,
    Resource("/api/v1/alerts", "alert", _COLUMNS, "fingerprint"),
    "List alerts, newest first. `larder why` shows one tenant or node with the most likely cause.",
    click.option(
        "--state",
        type=click.Choice(["firing", "resolved", "expired", "any"]),
        default="firing",
        show_default=True,
        help="Only alerts in this state.",
    ),
    click.option("--tenant", help="Only this tenant; `_default` for the empty salt."),
    click.option("--node", metavar="NAME", help="Only this node."),
    limit_of(50),
    pages=True,
    query=_query,
)

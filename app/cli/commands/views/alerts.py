"""`larder alerts …`: show alerts that Alertmanager or Grafana sent, each with the change before it."""

from collections.abc import Mapping
from typing import Any

import click

from app.cli.support.api.client import every, url_option
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column
from app.cli.support.resources.options import Noun, Output, output_option, watch_option


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


@click.group(cls=Noun)
def alerts() -> None:
    """Show the alerts that Alertmanager or Grafana sent."""


@alerts.command("list")
@click.option(
    "--state",
    type=click.Choice(["firing", "resolved", "expired", "any"]),
    default="firing",
    show_default=True,
    help="Only alerts in this state.",
)
@click.option("--tenant", help="Only this tenant; `_default` for the empty salt.")
@click.option("--node", metavar="NAME", help="Only this node.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of items.")
@url_option
@output_option
@watch_option
def list_alerts(state: str, tenant: str | None, node: str | None, limit: int, url: str | None, output: Output) -> None:
    """List alerts, newest first. `larder why` shows one tenant or node with the most likely cause."""
    query = {"state": None if state == "any" else state, "tenant": tenant, "node": node}
    output.listing("Alerts", every(url, "/api/v1/alerts", query, limit), _COLUMNS, "fingerprint")

"""`larder pushes`."""

import click

from app.cli.support import show
from app.cli.support.client import call, json_option, print_json, url_option
from app.cli.support.lists import title


@click.command()
@click.option("--type", "kind", type=click.Choice(["quotas", "pins", "policies"]), help="Only this type.")
@click.option("--node", help="Only of this node.")
@click.option(
    "--state", type=click.Choice(["acked", "nacked", "timed_out", "refused"]), help="Only with this answer."
)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of items."
)
@url_option
@json_option
def pushes(
    kind: str | None, node: str | None, state: str | None, limit: int, url: str | None, as_json: bool
) -> None:
    """Show the pushes to nodes and their answers, newest first."""
    asked = {"type": kind, "node": node, "state": state, "limit": str(limit)}
    answer = call(url, "GET", "/api/v1/pushes", None, asked)
    if as_json:
        print_json(answer)
        return
    rows = [
        [
            show.ago(push["sent_at"]),
            push["node"],
            f"{push['type']} {push['generation']}",
            push["reason"],
            push["state"],
            show.size(push["size_bytes"]),
            "; ".join(f"{fault['path']}: {fault['message']}" for fault in push["faults"]),
        ]
        for push in answer["items"]
    ]
    show.table(
        title("Pushes", answer), ["sent", "node", "generation", "reason", "answer", "size ", "faults"], rows
    )

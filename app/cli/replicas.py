"""`larder replicas`."""

import click

from app.cli import show
from app.cli.client import call, json_option, print_json, url_option
from app.cli.lists import title


@click.command()
@url_option
@json_option
def replicas(url: str | None, as_json: bool) -> None:
    """Show the management planes that share the database, and which of them pushes to nodes."""
    answer = call(url, "GET", "/api/v1/replicas")
    if as_json:
        print_json(answer)
        return
    rows = [
        [
            each["id"],
            each["host"],
            str(each["pid"]),
            each["url"],
            "yes" if each["pushing"] else "no",
            "yes" if each["alive"] else "no",
            "this one" if each["answering"] else "",
            show.ago(each["seen_at"]),
        ]
        for each in answer["items"]
    ]
    show.table(title("Replicas", answer), ["id", "host", "pid ", "url", "pushes", "alive", "", "seen"], rows)

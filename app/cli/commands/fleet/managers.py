"""`larder managers`."""

import click

from app.cli.support import show
from app.cli.support.client import call, json_option, print_json, url_option
from app.cli.support.lists import title


@click.command()
@url_option
@json_option
def managers(url: str | None, as_json: bool) -> None:
    """Show the managers that share the database, and which of them pushes to nodes."""
    answer = call(url, "GET", "/api/v1/managers")
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
    show.table(title("Managers", answer), ["id", "host", "pid ", "url", "pushes", "alive", "", "seen"], rows)

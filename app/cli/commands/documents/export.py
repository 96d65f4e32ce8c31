"""`larder export`: print records as a document for `larder apply`."""

from datetime import UTC, datetime

import click

from app import __version__
from app.cli.support.api.client import base_url, call, print_json, url_option
from app.cli.support.printing.terminal import exact
from app.services.documents.document_text import write


@click.command()
@click.option("--managed-by", metavar="NAME", help="Print only records of this owner.")
@click.option(
    "--type", "types", multiple=True, type=click.Choice(["quotas", "pins", "policies", "tiers"]),
    help="Print only this type; may be repeated.",
)  # fmt: skip
@click.option(
    "-o",
    "--output",
    "--format",
    "form",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="Output format.",
)
@url_option
def export(managed_by: str | None, types: tuple[str, ...], form: str, url: str | None) -> None:
    """Print records as a document for `larder apply`. It contains no secrets."""
    answer = call(url, "GET", "/api/v1/export", None, {"managed_by": managed_by, "type": types or None})
    if form == "json":
        print_json(answer["document"])
        return
    now = datetime.now(UTC).isoformat(timespec="seconds")
    at = ", ".join(f"{kind} {number}" for kind, number in answer["generations"].items())
    comments = [
        f"Exported by larder {__version__} from {base_url(url)} at {now}.",
        *([f"Generations: {at}."] if at else []),
        "'larder diff -f FILE' shows what is different, 'larder apply -f FILE' makes it so.",
    ]
    if answer["ended"]:
        comments.append(f"{answer['ended']} pins that have ended are not in it.")
    exact([write(answer["document"], comments).encode()])

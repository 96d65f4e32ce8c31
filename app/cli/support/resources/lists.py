"""Options of lists and deletions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from app.cli.support.api.client import every

F = TypeVar("F", bound=Callable[..., Any])

limit_option = click.option("--limit", type=click.IntRange(1), help="Maximum number of items; default all.")
cursor_option = click.option(
    "--cursor", metavar="TEXT", help="Position to continue from: `next_cursor` of the JSON of a list with --limit."
)
sort_option = click.option(
    "--sort", metavar="FIELD", help="Field of the JSON to sort by; with - in front for descending."
)
owner_option = click.option("--managed-by", metavar="NAME", help="Only records of this owner.")

unasked_option = click.option("--yes", is_flag=True, expose_value=False, help="Do not ask for confirmation.")


def paged(command: F) -> F:
    """Add `--sort`, `--limit` and `--cursor`."""
    for option in (cursor_option, limit_option, sort_option):
        command = option(command)
    return command


def listed(
    url: str | None,
    path: str,
    query: Mapping[str, str | Sequence[str] | None] | None = None,
    *,
    sort: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Any:
    """Return every item from the cursor on, at most `limit`. Raises ClickException."""
    return every(url, path, {**(query or {}), "sort": sort}, limit, cursor)

"""Resolve keys and spaces that are abbreviated to their first digits, as tables show them."""

import re
from typing import Any

import click

from app.cli.support.api.client import call
from app.cli.support.exit_codes import NothingFound

MIN = 8
"""Smallest number of digits of an abbreviation."""
MAX_LISTED = 5
PAGE = 1000
DIGITS = {"key": 64, "space": 32}
_HEX = re.compile(r"[0-9a-f]+", re.ASCII)


def whole(url: str | None, field: str, given: str) -> str:
    """Return the full `key` or `space` of the cached block that begins with the given digits. Text that is not an
    abbreviation is returned unchanged. All blocks are searched. Raises ClickException if no key or space matches, or
    several do."""
    short = given.lower()
    if not MIN <= len(short) < DIGITS[field] or _HEX.fullmatch(short) is None:
        return given
    found = sorted(_beginning(url, field, short))
    if not found:
        raise NothingFound(f"no cached block has a {field} that begins with {short}")
    if len(found) > 1:
        more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        raise click.ClickException(
            f"{len(found)} {field}s begin with {short}: {', '.join(found[:MAX_LISTED])}{more}; give more digits"
        )
    return found[0]


def _beginning(url: str | None, field: str, short: str) -> set[str]:
    found: set[str] = set()
    query: dict[str, str | None] = {"limit": str(PAGE), "cursor": None}
    while True:
        page: dict[str, Any] = call(url, "GET", "/api/v1/blocks", None, query)
        found |= {block[field] for block in page["items"] if block[field].startswith(short)}
        query["cursor"] = page["next_cursor"]
        if not page["next_cursor"]:
            return found

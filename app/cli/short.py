"""Keys and spaces as tables show them, cut short: enough of their first digits stand for the whole."""

import re
from typing import Any

import click

from app.cli.client import call

LEAST = 8
"""Digits that a short form has at least."""
MOST_TOLD = 5
PAGE = 1000
DIGITS = {"key": 64, "space": 32}
_HEX = re.compile(r"[0-9a-f]+", re.ASCII)


def whole(url: str | None, field: str, given: str) -> str:
    """The `key` or `space` of a cached block that begins like this; what is whole, or no short form, as it is. All
    blocks are looked through. Raises ClickException when none or several do."""
    short = given.lower()
    if not LEAST <= len(short) < DIGITS[field] or _HEX.fullmatch(short) is None:
        return given
    found = sorted(_beginning(url, field, short))
    if not found:
        raise click.ClickException(f"no cached block has a {field} that begins with {short}")
    if len(found) > 1:
        more = f" and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
        raise click.ClickException(
            f"{len(found)} {field}s begin with {short}: {', '.join(found[:MOST_TOLD])}{more}; give more digits"
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

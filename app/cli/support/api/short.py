"""Resolve keys and spaces that are abbreviated to their first digits, as tables show them."""

import re

import click

from app.cli.support.api.client import pages
from app.cli.support.exit_codes import NothingFound, check_nodes

MIN = 8
"""Smallest number of digits of an abbreviation."""
MAX_LISTED = 5
DIGITS = {"key": 64, "space": 32}
_HEX = re.compile(r"[0-9a-f]+", re.ASCII)


def whole(url: str | None, field: str, digits: str) -> str:
    """Return the full `key` or `space` of the cached block that begins with the given digits. Text that is not an
    abbreviation is returned unchanged. All blocks are searched. Raises ClickException if no key or space matches, or
    several do."""
    short = digits.lower()
    if not MIN <= len(short) < DIGITS[field] or _HEX.fullmatch(short) is None:
        return digits
    found: set[str] = set()
    failed_nodes: list[dict[str, str]] = []
    for page in pages(url, "/api/v1/blocks", {}):
        found.update(block[field] for block in page["items"] if block[field].startswith(short))
        failed_nodes += page["failed_nodes"]
    matches = sorted(found)
    if not matches:
        check_nodes(failed_nodes, f"no node that answered has a {field} that begins with {short}")
        raise NothingFound(f"no cached block has a {field} that begins with {short}")
    if len(matches) > 1:
        further = f" and {len(matches) - MAX_LISTED} more" if len(matches) > MAX_LISTED else ""
        raise click.ClickException(
            f"{len(matches)} {field}s begin with {short}: {', '.join(matches[:MAX_LISTED])}{further}; give more digits"
        )
    return matches[0]

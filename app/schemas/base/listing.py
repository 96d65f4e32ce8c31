"""Paged lists."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PageRequest:
    """Page to return. `sort` is a field name, prefixed with `-` for descending order; empty sorts by key."""

    limit: int
    cursor: str = ""
    sort: str = ""

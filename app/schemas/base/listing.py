"""Paged lists."""

from dataclasses import dataclass

import msgspec


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every list besides its `items`."""

    total: int
    """Items on all pages."""
    next_cursor: str
    """`cursor` of the next page; empty on the last."""


@dataclass(frozen=True)
class PageRequest:
    """Page to return. `sort` is a field name, prefixed with `-` for descending order; empty sorts by key."""

    limit: int
    cursor: str = ""
    sort: str = ""

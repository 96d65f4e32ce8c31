"""Stored events, which can be queried long after they happened."""

from dataclasses import dataclass
from typing import Any

import msgspec


class EventAnswer(msgspec.Struct, frozen=True):
    """An event as it was published."""

    id: int
    at: float
    """Unix seconds."""
    name: str
    """e.g. `node.lost`, `push.nacked`, `quota.changed`."""
    node: str
    """Node it happened on; empty for the management plane."""
    fields: dict[str, Any]


class EventList(msgspec.Struct, frozen=True):
    items: list[EventAnswer]
    total: int
    """Items on all pages."""
    next_cursor: str
    """`cursor` of the next page; empty on the last."""


@dataclass(frozen=True)
class EventFilters:
    """Filters; None matches everything."""

    name: str | None = None
    """One name, or a prefix such as `push.*` for all names that begin with `push.`."""
    node: str | None = None
    since: float | None = None
    """Earliest time in Unix seconds."""

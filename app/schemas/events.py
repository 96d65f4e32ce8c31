"""Events that are kept: facts that somebody may ask for long after they happened."""

from typing import Any

import msgspec


class EventAnswer(msgspec.Struct, frozen=True):
    """A fact as it was told when it happened."""

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
    """Of all pages."""
    next_cursor: str
    """For the next page; empty on the last."""

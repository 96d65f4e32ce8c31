"""Stored events, which can be queried long after they happened."""

from dataclasses import dataclass
from typing import Any

import msgspec

from app.schemas.base.listing import Page


class EventAnswer(msgspec.Struct, frozen=True):
    """An event as it was published."""

    id: int
    at: float
    """Unix seconds."""
    name: str
    """e.g. `node.lost`, `push.nacked`, `quota.created`."""
    node: str
    """Node that it happened on, or that was changed; empty for the management plane."""
    actor: str
    """Who caused it, as in the audit log; empty if no request did."""
    fields: dict[str, Any]


class EventsNotKept(msgspec.Struct, frozen=True):
    """Events that are missing from the history. Counts are since the answering manager started."""

    before: float
    """Events before this time, in Unix seconds, are deleted (`events_retention_days`)."""
    names: list[str]
    """Names of events of normal operation, which are never kept; the event stream has them."""
    dropped: int
    """Events that were dropped because the database was too slow or unavailable."""
    lost: int
    """Events that nodes sent but that did not arrive."""


class EventList(Page, frozen=True):
    items: list[EventAnswer]
    not_kept: EventsNotKept


@dataclass(frozen=True)
class EventFilters:
    """Filters; None matches everything."""

    name: str | None = None
    """One name, or a prefix such as `push.*` for all names that begin with `push.`."""
    node: str | None = None
    actor: str | None = None
    since: float | None = None
    """Earliest time in Unix seconds."""

"""Columns of events in tables."""

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from app.cli.support.api.client import ApiError, every
from app.cli.support.printing.terminal import Column

MAX_SEARCHED = 1000
"""Number of the newest events among which those of a record are looked for."""


def _at(event: Mapping[str, Any]) -> str:
    return datetime.fromtimestamp(event["at"], UTC).strftime("%m-%d %H:%M:%SZ")


def _fields(event: Mapping[str, Any]) -> str:
    return ", ".join(f"{field}={value}" for field, value in event["fields"].items())


EVENT_COLUMNS = (
    Column("at", _at),
    Column("name", lambda event: event["name"], least=14),
    Column("actor", lambda event: event["actor"] or "-", drop=2, least=6),
    Column("node", lambda event: event["node"] or "-", drop=1, least=8),
    Column("fields", _fields, text=True, wraps=True),
)


def concerning(url: str | None, noun: str, name: str, limit: int, *, tenant: str = "") -> list[dict[str, Any]] | None:
    """Return the newest events about a record, a tenant or a node; None if the caller may not read events. `tenant`:
    only events of this one, unless it is empty."""
    try:
        newest = every(url, "/api/v1/events/history", None, MAX_SEARCHED)["items"]
    except ApiError:
        return None
    found = (event for event in newest if tenant in ("", event["fields"].get("tenant")) and concerns(event, noun, name))
    return list(islice(found, limit))


def concerns(event: Mapping[str, Any], noun: str, name: str) -> bool:
    fields = event["fields"]
    if noun == "node":
        return name == event["node"] or name in (fields.get("nodes") or ())
    return bool(fields.get("tenant" if noun in ("quota", "ceiling") else noun) == name)

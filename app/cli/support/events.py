"""How commands show events."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from app.cli.support.client import ApiError, every
from app.cli.support.table import Column

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
    Column("fields", _fields, text=True),
)


def concerning(url: str | None, noun: str, name: str, limit: int) -> list[dict[str, Any]] | None:
    """Return the newest events about a record, a tenant or a node; None if the caller may not read events."""
    try:
        newest = every(url, "/api/v1/events/history", None, MAX_SEARCHED)["items"]
    except ApiError:
        return None
    return [event for event in newest if _concerns(event, noun, name)][:limit]


def _concerns(event: Mapping[str, Any], noun: str, name: str) -> bool:
    fields, kind = event["fields"], event["name"].partition(".")[0]
    if noun == "node":
        return name in (event["node"], fields.get("node"))
    if noun in ("quota", "tenant") and fields.get("tenant") == name:
        return True
    kinds = ("quota", "ceiling", noun) if noun == "tenant" else (noun,)
    return kind in kinds and fields.get("name") == name

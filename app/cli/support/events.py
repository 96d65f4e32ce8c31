"""Events with the actors of the changes that they report."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from app.cli.support.client import ApiError, call, every
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
    Column("actor", lambda event: event.get("actor") or "-", drop=2, least=6),
    Column("node", lambda event: event["node"] or "-", drop=1, least=8),
    Column("fields", _fields, text=True),
)


def with_actors(url: str | None, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the events with `actor`: who made the change that an event reports, according to the audit log. It is
    empty for other events, and for all of them if the caller may not read the audit log."""
    made = [event for event in events if "name" in event["fields"]]
    known: dict[tuple[str, str, float], str] = {}
    if made:
        query = {"since": str(min(event["at"] for event in made)), "limit": str(MAX_SEARCHED)}
        try:
            entries = call(url, "GET", "/api/v1/audit", None, query)["items"]
        except ApiError:
            entries = []
        known = {(entry["kind"], entry["name"], entry["at"]): entry["actor"] for entry in entries}
    return [{**event, "actor": known.get(_change(event), "")} for event in events]


def _change(event: Mapping[str, Any]) -> tuple[str, str, float]:
    """Return the kind, the name and the time of the change that an event reports, as the audit log has them."""
    return event["name"].partition(".")[0], str(event["fields"].get("name")), event["at"]


def concerning(url: str | None, noun: str, name: str, limit: int) -> list[dict[str, Any]] | None:
    """Return the newest events about a record, a tenant or a node; None if the caller may not read events."""
    try:
        newest = every(url, "/api/v1/events/history", None, MAX_SEARCHED)["items"]
    except ApiError:
        return None
    found = [event for event in newest if _concerns(event, noun, name)][:limit]
    return with_actors(url, found)


def _concerns(event: Mapping[str, Any], noun: str, name: str) -> bool:
    fields, kind = event["fields"], event["name"].partition(".")[0]
    if noun == "node":
        return name in (event["node"], fields.get("node"))
    if noun in ("quota", "tenant") and fields.get("tenant") == name:
        return True
    return bool(kind == noun and fields.get("name") == name)

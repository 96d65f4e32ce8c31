"""`describe`: a record in full, with its conditions, its usage, and the events that concern it."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from app.cli.support.api.client import ApiError, call
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say, table
from app.cli.support.resources.events import EVENT_COLUMNS, concerning

USAGE_DAYS = 7
MAX_EVENTS = 10
_APART = ("status", "etag", "conditions")
"""Fields that are not printed as they are."""
_CONDITIONS = (
    Column("type", lambda condition: condition["type"]),
    Column("status", lambda condition: condition["status"]),
    Column("reason", lambda condition: condition["reason"]),
    Column("since", lambda condition: show.ago(condition["since"])),
    Column("message", lambda condition: condition["message"], text=True, wraps=True),
)
_CONDITIONS_OF_A_NODE = (
    Column("type", lambda condition: condition["type"]),
    Column("since", lambda condition: show.ago(condition["since"])),
    Column("ended", lambda condition: "-" if condition["ended_at"] is None else show.ago(condition["ended_at"])),
    Column("message", lambda condition: condition["message"], text=True, wraps=True),
)


def describe(url: str | None, noun: str, name: str, record: Mapping[str, Any], *, tenant: str = "") -> None:
    """Print a record. `tenant`: that of the record, if records of other tenants may have the same name."""
    conditions = (record if noun == "node" else record.get("status") or {}).get("conditions", [])
    if isinstance(conditions, list) and conditions:
        table("Conditions", _CONDITIONS_OF_A_NODE if noun == "node" else _CONDITIONS, conditions)
        say()
    lines = list(_fields({key: value for key, value in record.items() if key not in _APART}))
    width = max(len(key) for key, _ in lines)
    for key, value in lines:
        say(f"{key + ':':<{width + 1}} {value}")
    if noun in ("quota", "tenant"):
        _usage(url, str(record["tenant"]))
    events = concerning(url, noun, name, MAX_EVENTS, tenant=tenant)
    if events is not None:
        say()
        if events:
            table("Events", EVENT_COLUMNS, events)
        else:
            say("Events: none")


def _fields(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields of a record as text; nested fields as `outer.inner`."""
    for key, value in record.items():
        if key == "bytes" and isinstance(value, dict) and value:
            yield from ((f"{prefix}{key}.{place}", show.size(size)) for place, size in value.items())
        elif isinstance(value, dict) and value:
            yield from _fields(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for at, item in enumerate(value):
                yield from _fields(item, f"{prefix}{key}[{at}].")
        else:
            yield f"{prefix}{key}", _text(key, value)


def _text(key: str, value: Any) -> str:
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if (key == "bytes" or key.endswith("_bytes") or "_bytes_" in key) and isinstance(value, int):
        return show.size(value)
    if (key in ("at", "since") or key.endswith(("_at", "_until"))) and isinstance(value, float):
        return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _usage(url: str | None, tenant: str) -> None:
    """Print the tenant's usage of the last days, if the caller may see it."""
    start = f"{time.time() - USAGE_DAYS * 86_400:.0f}"
    try:
        total = call(url, "GET", "/api/v1/usage", None, {"tenant": tenant, "from": start, "step": "1d"})["totals"]
    except ApiError:
        return
    say()
    say(f"Usage of {USAGE_DAYS} days", bold=True)
    say(f"  held:     {total['byte_hours'] / (1 << 30):,.3f} GiB hours")
    say(f"  tokens:   {total['requested_tokens']:,} requested, {total['served_tokens']:,} served")
    say(f"  stored:   {show.size(total['stored_bytes'])}, {show.size(total['evicted_bytes'])} evicted")
    say(f"  refused:  {show.plural(total['refused_blocks'], 'block')}")

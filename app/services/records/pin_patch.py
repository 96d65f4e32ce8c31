"""Patches of a pin that keep its keys: strength, tier, selector, end and notes."""

from typing import Any

from msgspec import UNSET, UnsetType

from app.schemas.records.pins import SETTINGS, STORED, PinPut
from app.services.base import checks
from app.services.base.merge import check_names, converted
from app.services.records.pin_intent import future, ttl
from app.services.records.record_types import Values, checked, columns
from app.store.records.pins import PinRow


def patched_values(row: PinRow, patch: dict[str, Any], now: float) -> Values:
    """Return the columns of a pin that a patch sets; null resets a field to its default. Raises Invalid with every
    fault found."""
    check_names(patch, SETTINGS)
    request = converted(PinPut, {name: value for name, value in patch.items() if value is not None})
    faults = checks.Faults()
    given = columns(request, [name for name in STORED if name in patch])
    values = checked({**columns(row, STORED), **given}, faults)
    expires_at, refresh_s = _end(row, request, patch, now, faults)
    if values["strength"] == "permanent" and (expires_at is not None or refresh_s is not None):
        faults.add("strength", "a permanent pin has no end: set expires_at to null with it, or use 'guaranteed'")
    faults.stop()
    return {**values, "expires_at": expires_at, "refresh_s": refresh_s}


def _end(
    row: PinRow, request: PinPut, patch: dict[str, Any], now: float, faults: checks.Faults
) -> tuple[float | None, float | None]:
    """Return the end of the pin in Unix seconds, and the seconds from a hit to the new end."""
    end, refresh_s = row.expires_at, row.refresh_s
    refreshes = request.refresh_on_hit if "refresh_on_hit" in patch else refresh_s is not None
    seconds: float | UnsetType | None = request.ttl_s if "ttl_s" in patch else UNSET
    moment: float | str | UnsetType | None = request.expires_at if "expires_at" in patch else UNSET
    if seconds is None or moment is None:
        end = refresh_s = None
        refreshes = refreshes and "refresh_on_hit" in patch
    if isinstance(seconds, (int, float)) and moment is not UNSET and moment is not None:
        faults.add("expires_at", "expected at most one of 'ttl_s' and 'expires_at'")
    elif isinstance(seconds, (int, float)):
        checked_s = faults.check("ttl_s", lambda: ttl(seconds))
        if checked_s is not None:
            end, refresh_s = now + checked_s, checked_s
    elif isinstance(moment, (int, float, str)):
        end = faults.check("expires_at", lambda: future(moment, now))
        if "refresh_on_hit" not in patch:
            refreshes = False
    if refreshes and (refresh_s is None or end is None) and not faults.errors:
        faults.add("refresh_on_hit", "expected a ttl_s, to which every hit extends the pin")
    return end, refresh_s if refreshes else None

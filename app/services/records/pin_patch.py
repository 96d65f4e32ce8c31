"""Patches of a pin that keep its keys: strength, tier, selector, end and notes."""

from msgspec import UNSET

from app.schemas.records.pins import PinPatch
from app.services.base import checks
from app.services.records.pin_intent import future, ttl
from app.store.records.pins import PinRow


def patch_row(row: PinRow, patch: PinPatch, now: float) -> None:
    """Apply a patch to a record. Raises Invalid with every fault found; then nothing has changed."""
    faults = checks.Faults()
    strength = row.strength if patch.strength is UNSET else patch.strength or "guaranteed"
    tier = row.tier if patch.tier is UNSET else patch.tier or "host"
    note = row.note if patch.note is UNSET else patch.note or ""
    managed_by = row.managed_by if patch.managed_by is UNSET else patch.managed_by or ""
    selector = row.selector if patch.selector is UNSET else patch.selector
    faults.check("note", lambda: checks.note(note))
    faults.check("managed_by", lambda: checks.managed_by(managed_by))
    selector = faults.check("selector", lambda: checks.labels(selector))
    expires_at, refresh_s = _end(row, patch, now, faults)
    if strength == "permanent" and (expires_at is not None or refresh_s is not None):
        faults.add("strength", "a permanent pin has no end: set ttl_s to null with it, or use 'guaranteed'")
    faults.stop()
    row.strength, row.tier, row.note = strength, tier, note
    row.managed_by, row.selector = managed_by, selector
    row.expires_at, row.refresh_s = expires_at, refresh_s


def _end(
    row: PinRow, patch: PinPatch, now: float, faults: checks.Faults
) -> tuple[float | None, float | None]:
    """Return the end of the pin in Unix seconds, and the seconds from a hit to the new end."""
    end, refresh_s = row.expires_at, row.refresh_s
    refreshes = refresh_s is not None if patch.refresh_on_hit is UNSET else bool(patch.refresh_on_hit)
    seconds, moment = patch.ttl_s, patch.expires_at
    if seconds is None or moment is None:
        end = refresh_s = None
        refreshes = refreshes and patch.refresh_on_hit is not UNSET
    if isinstance(seconds, (int, float)) and moment is not UNSET and moment is not None:
        faults.add("expires_at", "expected at most one of 'ttl_s' and 'expires_at'")
    elif isinstance(seconds, (int, float)):
        checked = faults.check("ttl_s", lambda: ttl(seconds))
        if checked is not None:
            end, refresh_s = now + checked, checked
    elif isinstance(moment, (int, float, str)):
        end = faults.check("expires_at", lambda: future(moment, now))
        if patch.refresh_on_hit is UNSET:
            refreshes = False
    if refreshes and (refresh_s is None or end is None) and not faults.errors:
        faults.add("refresh_on_hit", "expected a ttl_s: every hit moves the end to that long from then")
    return end, refresh_s if refreshes else None

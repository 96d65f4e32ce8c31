"""When a record expires: after a duration, or at a point in time."""

from datetime import datetime

from app.schemas.base.fields import MAX_TTL_S
from app.services.base.checks import Faults
from app.services.base.durations import span

LATEST = 253_402_300_800
"""Unix seconds of the year 10000, the end of what can be shown."""


def expiry(ttl_s: float | None, expires_at: float | str | None, now: float, faults: Faults) -> float | None:
    """Return Unix seconds, or None for never. Adds errors to `faults`."""
    if ttl_s is not None and expires_at is not None:
        faults.add("expires_at", "expected at most one of 'ttl_s' and 'expires_at'")
        return None
    if ttl_s is not None:
        checked_s = faults.check("ttl_s", lambda: ttl(ttl_s))
        return None if checked_s is None else now + checked_s
    return None if expires_at is None else faults.check("expires_at", lambda: future(expires_at, now))


def ttl(seconds: float) -> float:
    """Check a duration in seconds. Raises ValueError."""
    if not 0 < seconds <= MAX_TTL_S:  # also true for NaN
        raise ValueError(f"expected more than 0 and at most {span(MAX_TTL_S)}, got {span(seconds)}")
    return seconds


def future(value: float | str, now: float) -> float:
    """Return a point in time in the future, as Unix seconds. Raises ValueError."""
    at = moment(value)
    if not now < at <= now + MAX_TTL_S:
        raise ValueError("expected a moment in the future, within ten years")
    return at


def moment(value: float | str) -> float:
    """Return Unix seconds of a number or an RFC 3339 text. Raises ValueError."""
    if not isinstance(value, str):
        return float(value)
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"expected RFC 3339 such as '2030-01-31T12:00:00Z', got {value[:40]!r}") from None
    if parsed.tzinfo is None:
        raise ValueError("expected a moment with an offset, such as '2030-01-31T12:00:00Z'")
    return parsed.timestamp()

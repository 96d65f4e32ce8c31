"""Durations in error messages: exact, and in a unit that is easy to read."""

_UNITS = ((365.25 * 86_400, "years"), (86_400, "d"), (3_600, "h"), (60, "min"))
MAX_S = 1e11
"""Seconds from which no larger unit is shown."""


def span(seconds: float) -> str:
    """Return the duration as text: `90 s`, `7200 s (2 h)`, `100000 s (28 h)`."""
    if abs(seconds) >= MAX_S or not float(seconds).is_integer():
        return f"{seconds:g} s"
    for length, unit in _UNITS:
        if abs(seconds) >= 2 * length:
            count = seconds / length
            return f"{seconds:.0f} s ({f'{count:.0f}' if count >= 10 else f'{count:.2g}'} {unit})"
    return f"{seconds:.0f} s"

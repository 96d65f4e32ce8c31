"""Lengths of time as refusals say them: exact, and so that people know how long that is."""

_UNITS = ((365.25 * 86_400, "years"), (86_400, "d"), (3_600, "h"), (60, "min"))
MOST_S = 1e11
"""Longer times mean nothing to anybody."""


def span(seconds: float) -> str:
    """`90 s`, `7200 s (2 h)`, `100000 s (28 h)`."""
    if abs(seconds) >= MOST_S or not float(seconds).is_integer():
        return f"{seconds:g} s"
    for length, unit in _UNITS:
        if abs(seconds) >= 2 * length:
            many = seconds / length
            return f"{seconds:.0f} s ({f'{many:.0f}' if many >= 10 else f'{many:.2g}'} {unit})"
    return f"{seconds:.0f} s"

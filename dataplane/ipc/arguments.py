"""Checks of arguments, with errors that name the argument, and the deadlines of waits."""

from __future__ import annotations

import threading
import time
from operator import index

_LONGEST_S = threading.TIMEOUT_MAX / 2
"""Longest wait, in seconds: 146 years."""


def seconds(name: str, value: float) -> float:
    """Return a number of seconds, which may be infinite, as one that every wait accepts. Raises TypeError if it is no
    number, and ValueError if it is negative or NaN."""
    try:
        if 0 <= value <= _LONGEST_S:
            return value
        if value > 0:
            return _LONGEST_S
    except TypeError:
        raise TypeError(f"{name}: expected a number of seconds, not {value!r}") from None
    raise ValueError(f"{name}: expected 0 or more seconds, not {value!r}")


def deadline_of(timeout: float | None) -> float | None:
    """Return the end of a wait of at most `timeout` seconds, in monotonic seconds; None for a wait without a limit.
    Raises what `seconds` raises."""
    return None if timeout is None else time.monotonic() + seconds("timeout", timeout)


def whole_number(name: str, value: int, least: int, most: int) -> int:
    """Return a whole number. Raises TypeError for another type, and ValueError if it is not from `least` to `most`."""
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, not {value!r}") from None
    if not least <= number <= most:
        raise ValueError(f"{name}: expected {least} to {most}, got {number}")
    return number


def instance(name: str, value: object, expected: type) -> None:
    """Raise TypeError unless a value is of the expected type."""
    if not isinstance(value, expected):
        raise TypeError(f"{name}: expected {expected.__name__}, not {value!r:.100}")

"""Sizes as people write them: `"4GiB"` to bytes and back."""

import re

_FACTORS = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "m": 1000**2,
    "mb": 1000**2,
    "g": 1000**3,
    "gb": 1000**3,
    "t": 1000**4,
    "tb": 1000**4,
    "ki": 1 << 10,
    "kib": 1 << 10,
    "mi": 1 << 20,
    "mib": 1 << 20,
    "gi": 1 << 30,
    "gib": 1 << 30,
    "ti": 1 << 40,
    "tib": 1 << 40,
}
_PATTERN = re.compile(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*([A-Za-z]*)\s*", re.ASCII)

MAX_SIZE_BYTES = 1 << 60
"""Sizes above this (1 EiB) are taken for a mistake, not for a machine."""


def parse_size(value: int | str) -> int:
    """Bytes from an integer or from text such as `"4GiB"`, `"1.5 MiB"` or `"500MB"`.

    Raises ValueError, with what was expected, for anything else, for negative sizes and for sizes above 1 EiB.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"expected a size in bytes or text such as '4GiB', got {type(value).__name__}")
    if isinstance(value, int):
        size = value
    else:
        match = _PATTERN.fullmatch(value)
        if match is None or match[2].lower() not in _FACTORS:
            raise ValueError(f"expected a size such as '4GiB', '512MiB' or '1073741824', got {value[:40]!r}")
        factor = _FACTORS[match[2].lower()]
        size = int(match[1]) * factor if "." not in match[1] else int(float(match[1]) * factor)
    if not 0 <= size <= MAX_SIZE_BYTES:
        raise ValueError(f"expected a size between 0 and 1 EiB, got {size}")
    return size


def format_size(size_bytes: float) -> str:
    """`1610612736` as `"1.5 GiB"`; binary units, at most three significant digits."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    raise AssertionError("unreachable")

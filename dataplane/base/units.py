"""Human-readable sizes: `"4GiB"` to bytes and back."""

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
    "p": 1000**5,
    "pb": 1000**5,
    "pi": 1 << 50,
    "pib": 1 << 50,
    "e": 1000**6,
    "eb": 1000**6,
    "ei": 1 << 60,
    "eib": 1 << 60,
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
SIZE = r" *((?:[0-9]{1,3}(?:,[0-9]{3}){1,12}|[0-9]{1,40})(?:\.[0-9]{1,40})?) *((?:[kKmMgGtTpPeE][iI]?)?[bB]?) *"
"""Pattern of a size as text."""
_PATTERN = re.compile(SIZE)

MAX_SIZE_BYTES = 1 << 60
"""Sizes above this (1 EiB) are treated as mistakes."""


def parse_size(value: int | str) -> int:
    """Return the bytes of an integer or of text such as `"4GiB"`, `"1.5 MiB"` or `"500MB"`.

    Raises ValueError, with the expected form, for any other value, negative sizes and sizes above 1 EiB.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"expected a size in bytes or text such as '4GiB', got {type(value).__name__}")
    if isinstance(value, int):
        size = value
    else:
        match = _PATTERN.fullmatch(value)
        if match is None:
            raise ValueError(f"expected a size such as '4GiB', '512MiB' or '1073741824', got {value[:40]!r}")
        factor = _FACTORS[match[2].lower()]
        number = match[1].replace(",", "")
        size = int(number) * factor if "." not in number else int(float(number) * factor)
    if not 0 <= size <= MAX_SIZE_BYTES:
        raise ValueError(f"expected a size between 0 and 1 EiB, got {size}")
    return size


def format_size(size_bytes: float) -> str:
    """Format `1610612736` as `"1.5 GiB"`: binary units, rounded to three significant digits or to a whole number."""
    size = float(size_bytes)
    for unit in _UNITS[:-1]:
        if round(abs(size)) < 1024:
            return f"{_rounded(size) if unit != 'B' else f'{round(size):,}'} {unit}"
        size /= 1024
    return f"{_rounded(size)} {_UNITS[-1]}"


def format_exact_size(size_bytes: int) -> str:
    """Format a size of 0 or more exactly: like `format_size` with up to two decimals, or else as `"1073741825
    bytes"`."""
    power = min(max(size_bytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    hundredths, remainder = divmod(size_bytes * 100, 1 << 10 * power)
    if remainder:
        return f"{size_bytes} bytes"
    whole, decimals = divmod(hundredths, 100)
    return f"{f'{whole}.{decimals:02}'.rstrip('0').rstrip('.')} {_UNITS[power]}"


def _rounded(size: float) -> str:
    """Format a number with three significant digits or as a whole number with separators, never in scientific
    notation."""
    return f"{size:,.0f}" if abs(size) >= 100 else f"{size:.3g}"

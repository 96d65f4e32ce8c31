"""Packed points: columns of integers as compact bytes.

A column is a type (one byte), a base (8 bytes) and a number for each point, in the narrowest integers that hold them:
first the lowest bytes of all numbers, then the second bytes and so on, because zlib finds more in such bytes. Numbers
of gauges are differences to the point before, the first one to the base; those of counters are increases already. Null
is the smallest integer of the type.
"""

import struct
import zlib
from array import array
from collections.abc import Collection, Mapping, Sequence

import msgspec

from app.observe.series import COUNTERS

Column = list[int | None]
Columns = Mapping[str, Sequence[int | None]]
"""Columns of equal length by name."""
MEASURED_S = "measured_s"
"""Column of merged points: seconds in which their counters were measured."""
_TYPES = "bhiq"
_LARGEST = 2**62
_BASE = struct.Struct("<Bq")
_LEVEL = 6


class _Points(msgspec.Struct, array_like=True):
    """Points of all scopes between two times."""

    start: int
    step_s: int
    scopes: dict[str, msgspec.Raw]


_columns = msgspec.msgpack.Decoder(dict[str, bytes])
_points = msgspec.msgpack.Decoder(_Points)
_encode = msgspec.msgpack.Encoder().encode


def pack(columns: Columns) -> bytes:
    """Return the columns of one scope as bytes."""
    return zlib.compress(_encode(_packed(columns)), _LEVEL)


def unpack(packed: bytes, names: Collection[str] | None = None) -> dict[str, Column]:
    """Return the columns with these names, or all; columns that were not packed are missing."""
    return _unpacked(zlib.decompress(packed), names)


def pack_scopes(start: int, step_s: int, scopes: Mapping[str, Columns]) -> bytes:
    """Return the columns of several scopes as bytes, with the time at which the first step starts."""
    raw = {scope: msgspec.Raw(_encode(_packed(columns))) for scope, columns in scopes.items()}
    return zlib.compress(_encode(_Points(start, step_s, raw)), _LEVEL)


class PackedScopes:
    """Packed columns of several scopes, unpacked one by one."""

    def __init__(self, packed: bytes) -> None:
        points = _points.decode(zlib.decompress(packed))
        self.start = points.start
        self.step_s = points.step_s
        self._scopes = points.scopes

    @property
    def scopes(self) -> Collection[str]:
        return self._scopes.keys()

    def columns(self, scope: str, names: Collection[str] | None = None) -> dict[str, Column]:
        """Return the columns of a scope; none if it has no points."""
        raw = self._scopes.get(scope)
        return {} if raw is None else _unpacked(raw, names)


def roll_up(columns: Columns, step_s: int, factor: int) -> dict[str, Column]:
    """Merge `factor` consecutive points into one: the sum of counters, the rounded mean of gauges, null where no point
    has a value."""
    found: dict[str, Column] = {}
    counted: list[int] = []
    for name, values in columns.items():
        merged: Column = []
        for at in range(0, len(values), factor):
            known = [value for value in values[at : at + factor] if value is not None]
            if name in COUNTERS:
                merged.append(sum(known) if known else None)
                most = len(known) * step_s
                index = at // factor
                if index == len(counted):
                    counted.append(most)
                else:
                    counted[index] = max(counted[index], most)
            else:
                merged.append(round(sum(known) / len(known)) if known else None)
        found[name] = merged
    found[MEASURED_S] = list(counted)
    return found


def _packed(columns: Columns) -> dict[str, bytes]:
    return {name: _pack_column(values, name in COUNTERS) for name, values in columns.items()}


def _pack_column(values: Sequence[int | None], is_counter: bool) -> bytes:
    base, numbers = 0, values
    if not is_counter:
        base = last = min(next((value for value in values if value is not None), 0), _LARGEST)
        differences: Column = []
        for value in values:
            if value is None:
                differences.append(None)
            else:
                value = min(value, _LARGEST)
                differences.append(value - last)
                last = value
        numbers = differences
    known = [number for number in numbers if number is not None]
    low, high = min(known, default=0), min(max(known, default=0), _LARGEST)
    kind = next(kind for kind in range(len(_TYPES)) if -_half(kind) < low and high < _half(kind))
    null = -_half(kind)
    raw = array(_TYPES[kind], [null if number is None else min(number, _LARGEST) for number in numbers]).tobytes()
    width = 1 << kind
    return _BASE.pack(kind, base) + b"".join(raw[index::width] for index in range(width))


def _half(kind: int) -> int:
    return 1 << ((8 << kind) - 1)


def _unpacked(data: bytes | msgspec.Raw, names: Collection[str] | None) -> dict[str, Column]:
    columns = _columns.decode(data)
    return {
        name: _unpack_column(packed, name in COUNTERS)
        for name, packed in columns.items()
        if names is None or name in names
    }


def _unpack_column(packed: bytes, is_counter: bool) -> Column:
    kind, base = _BASE.unpack_from(packed)
    width = 1 << kind
    count = (len(packed) - _BASE.size) // width
    raw = bytearray(count * width)
    for index in range(width):
        begin = _BASE.size + index * count
        raw[index::width] = packed[begin : begin + count]
    numbers = array(_TYPES[kind])
    numbers.frombytes(raw)
    null = -_half(kind)
    if is_counter:
        return [None if number == null else number for number in numbers]
    found: Column = []
    for number in numbers:
        if number == null:
            found.append(None)
        else:
            base += number
            found.append(base)
    return found

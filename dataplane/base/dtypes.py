"""Bytes per element of a tensor, by torch's type name. Does not need torch."""

from collections.abc import Mapping
from types import MappingProxyType

ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "bool": 1,
        "uint8": 1,
        "int8": 1,
        "float8_e4m3fn": 1,
        "float8_e4m3fnuz": 1,
        "float8_e5m2": 1,
        "float8_e5m2fnuz": 1,
        "float8_e8m0fnu": 1,
        "float4_e2m1fn_x2": 1,
        "uint16": 2,
        "int16": 2,
        "float16": 2,
        "bfloat16": 2,
        "uint32": 4,
        "int32": 4,
        "float32": 4,
        "uint64": 8,
        "int64": 8,
        "float64": 8,
    }
)
_OTHER_NAMES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
}


def canonical(name: str) -> str | None:
    """Return the canonical name of a type, or None if torch has no such type with whole bytes."""
    name = _OTHER_NAMES.get(name, name)
    return name if name in ITEM_BYTES else None

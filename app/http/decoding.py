"""Decode request bodies as structs, and refuse what JSON parsers understand differently."""

import json
import re
from functools import partial
from typing import Any

import msgspec

from app.errors import Malformed
from dataplane.base.field_errors import MAX_SHOWN

_NUMBERS = re.compile(rb"\[[\d,\s]+\]")


def decoded(body: bytes, kind: Any, *, check: bool = True) -> Any:
    """Return a body as a struct. Raises msgspec.DecodeError, UnicodeDecodeError, RecursionError; Malformed for a
    duplicate key in an object if `check`."""
    value = msgspec.json.decode(body, type=kind)
    if check:
        check_keys(body)
    return value


def check_keys(body: bytes) -> None:
    """Raise Malformed for an object with a duplicate key: JSON allows it, and parsers differ in the value that they
    keep. `body` is valid JSON. Raises RecursionError."""
    # Keep numbers as text: they are decoded already, and this parser would reject some of them.
    read = partial(json.loads, object_pairs_hook=_once, parse_int=str, parse_float=str)
    try:
        read(_NUMBERS.sub(b"0", body))  # token lists have no keys and are most of a large body
    except Malformed:
        read(body)  # the substitution may have made two keys equal


def _once(pairs: list[tuple[str, Any]]) -> None:
    """Raise Malformed if a key occurs twice in the pairs of an object."""
    if len(dict(pairs)) == len(pairs):
        return
    keys = [key for key, _ in pairs]
    twice = next(key for key in keys if keys.count(key) > 1)
    raise Malformed(
        f"expected each key once in an object, got {twice[:MAX_SHOWN]!r} {keys.count(twice)} times"
    )

"""Decode request bodies as structs. A thread decodes large bodies and pauses regularly, so that the event loop can
serve other requests.

Most of a large body is a list of token ids. As a Python object, each id takes 36 bytes, and the decoder decodes the
whole list without a pause. This module leaves the list as text and decodes it piece by piece into an array with four
bytes per id."""

import json
import re
from array import array
from collections.abc import Iterator, Sequence
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import msgspec

from app.errors import Malformed
from app.services.base.yielding import with_pauses
from dataplane.base.field_errors import MAX_SHOWN

PIECE_BYTES = 32 * 1024
"""Bytes of a piece of a list of numbers, which is decoded in less than a millisecond."""
PIECES = 2
"""Number of pieces that are decoded between two pauses."""
_NUMBERS = re.compile(rb"\[[\d,\s]+\]")
_NEEDLE_BYTES = 256
_piece = msgspec.json.Decoder(list[int])


def decoded(body: bytes, kind: Any, *, check: bool = True) -> Any:
    """Return a small body as a struct, decoded in one step. Raises msgspec.DecodeError, UnicodeDecodeError,
    RecursionError; Malformed for a duplicate key in an object."""
    value = msgspec.json.decode(body, type=kind)
    if check:
        check_keys(body)
    return value


def decoded_in_pieces(body: bytes, kind: Any, *, check: bool = True) -> Any:
    """Return a body as a struct; call this function in a thread. It raises the same exceptions as `decoded`. A field
    with a sequence of integers becomes an array of unsigned 32-bit integers, unless one of its numbers is out of that
    range."""
    value, lists = _taken_apart(body, kind)
    if check:
        rest = body
        for text in lists:
            rest = _without(rest, text)
        try:
            check_keys(rest)
        except Malformed:
            check_keys(body)  # removing the text may have made two keys equal
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


def _taken_apart(body: bytes, kind: Any) -> tuple[Any, list[bytes]]:
    """Return the struct and the texts of the lists that were decoded in pieces."""
    thin = _thin(kind)
    if thin is None:
        return msgspec.json.decode(body, type=kind), []
    held = msgspec.json.decode(body, type=thin)
    fields: dict[str, Any] = {}
    lists = []
    for name in held.__struct_fields__:
        value = getattr(held, name)
        if isinstance(value, msgspec.Raw):
            text = bytes(value)
            value = _numbers(text)
            if value is None:  # null, or a value that `kind` rejects with its own message
                return msgspec.json.decode(body, type=kind), []
            lists.append(text)
        if value is not msgspec.UNSET:
            fields[name] = value
    return kind(**fields), lists


@cache
def _thin(kind: Any) -> type[msgspec.Struct] | None:
    """Return a struct type like `kind` that keeps fields with sequences of integers as text; None if `kind` has no such
    field."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return None
    fields: list[tuple[str, Any, Any]] = []
    found = False
    for each in msgspec.structs.fields(kind):
        has_default = each.default is not msgspec.NODEFAULT or each.default_factory is not msgspec.NODEFAULT
        is_list = _is_list_of_integers(each.type)
        found = found or is_list
        of = msgspec.Raw if is_list else each.type
        default = msgspec.UNSET if has_default else msgspec.NODEFAULT
        fields.append((each.name, of if is_list or not has_default else of | msgspec.UnsetType, default))
    if not found or any(each.name != each.encode_name for each in msgspec.structs.fields(kind)):
        return None
    strict = kind.__struct_config__.forbid_unknown_fields
    return msgspec.defstruct(kind.__name__, fields, kw_only=True, forbid_unknown_fields=strict)


def _is_list_of_integers(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        of, *metadata = get_args(kind)
        free = all(each == msgspec.Meta(description=each.description) for each in metadata)
        return free and _is_list_of_integers(of)
    choices = (
        [each for each in get_args(kind) if each is not type(None)]
        if get_origin(kind) is UnionType
        else [kind]
    )
    return choices in ([list[int]], [Sequence[int]])


def _numbers(text: bytes) -> "array[int] | None":
    """Return the numbers of a JSON list, or None if an item is not an unsigned 32-bit integer."""
    if text[:1] != b"[":
        return None
    found = array("I")
    try:
        for piece in with_pauses(_pieces(text[1:-1]), PIECES):
            found.extend(_piece.decode(b"[%b]" % piece))
    except (msgspec.DecodeError, OverflowError, RecursionError):
        return None
    return found


def _pieces(text: bytes) -> Iterator[bytes]:
    """Yield parts of about PIECE_BYTES that end before a comma."""
    at = 0
    while at <= len(text):
        end = text.find(b",", at + PIECE_BYTES)
        end = len(text) if end < 0 else end
        yield text[at:end]
        at = end + 1


def _without(body: bytes, text: bytes) -> bytes:
    """Return the body with an empty list in place of the first occurrence of `text`, the text of a list. The occurrence
    may be inside a string."""
    at = body.find(text[:_NEEDLE_BYTES])
    while at >= 0 and not body.startswith(text, at):
        at = body.find(text[:_NEEDLE_BYTES], at + 1)
    return body if at < 0 else b"%b[]%b" % (body[:at], body[at + len(text) :])

"""Cursors: the start of a list's next page, as text that callers send back. The text is validated on return."""

import base64
import binascii
from typing import TypeVar

import msgspec

MAX_CHARACTERS = 2048
T = TypeVar("T", bound=msgspec.Struct)


class CursorError(ValueError):
    """The text is not a cursor for this type."""


def write(position: msgspec.Struct) -> str:
    packed = msgspec.msgpack.encode(position)
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def read(text: str, kind: type[T]) -> T:
    """Return the place that `write` encoded. Raise CursorError for any other text."""
    if len(text) > MAX_CHARACTERS:
        raise CursorError(f"expected at most {MAX_CHARACTERS} characters, got {len(text)}")
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        position = msgspec.msgpack.decode(packed, type=kind)
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError) as error:
        raise CursorError(str(error)) from None
    if write(position) != text:
        raise CursorError("expected the shortest encoding")
    return position

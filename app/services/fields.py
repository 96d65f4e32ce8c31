"""What a body's fields may be, for messages: the decoder says what was wrong, not what would have been right."""

import re
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from app.errors import FieldError

MOST_SHOWN = 40
"""Characters of a wrong value that are said back."""
_PATH = re.compile(r"^(?P<message>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_NAMED = re.compile(r"(?P<what>unknown|required) field `(?P<name>[^`]*)`")
_WRONG_CHOICE = re.compile(r"^Invalid enum value '?(?P<value>.*?)'?$", re.DOTALL)
_WRONG_TYPE = re.compile(r"got `(?P<type>[^`]*)`$")


def field_error(message: str, kind: Any) -> FieldError:
    """The decoder's message about a body of type `kind` as path and sentence; the body itself is at `body`."""
    match = _PATH.match(message)
    assert match is not None
    path = (match["path"] or "$").removeprefix("$").removeprefix(".")
    text = match["message"]
    named = _NAMED.search(text)
    if named is not None:
        if named["what"] == "unknown":
            text = f"unknown; expected one of {', '.join(_fields(kind))}"
        return FieldError(f"{path}.{named['name']}" if path else named["name"], text)
    choices = _choices(kind, path)
    if choices:
        text = f"expected one of {', '.join(choices)}, got {_got(text)}"
    return FieldError(path or "body", text)


def _got(text: str) -> str:
    wrong = _WRONG_CHOICE.match(text)
    if wrong is not None:
        return repr(wrong["value"][:MOST_SHOWN])
    other = _WRONG_TYPE.search(text)
    return other["type"] if other is not None else "something else"


def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))


def _choices(kind: Any, path: str) -> tuple[str, ...]:
    """Values of a field that has few; empty for any other."""
    hint = get_type_hints(kind).get(path) if isinstance(kind, type) else None
    return tuple(
        str(value)
        for part in (hint, *get_args(hint))
        if get_origin(part) is Literal
        for value in get_args(part)
    )

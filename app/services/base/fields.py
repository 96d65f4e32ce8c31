"""Fields of request bodies, for error messages, and of answers."""

from typing import Any, TypeVar

import msgspec

from app.errors import FieldError
from dataplane.base import field_errors

S = TypeVar("S", bound=msgspec.Struct)


def field_error(message: str, kind: Any) -> FieldError:
    """Return the decoder's message about a body of type `kind` as a path and a sentence; the path of the body is
    `body`."""
    path, text = field_errors.described(message, kind)
    return FieldError(path, text) if path else FieldError("body", text.replace("a map", "a JSON object"))


def answer(kind: type[S], source: object, **overrides: Any) -> S:
    """Return an answer of this kind: the fields `overrides`, and all other fields as the source has them."""
    return kind(
        **{name: getattr(source, name) for name in kind.__struct_fields__ if name not in overrides}, **overrides
    )

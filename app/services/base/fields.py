"""Error messages for the fields of a request body."""

from typing import Any

from app.errors import FieldError
from dataplane.base import field_errors


def field_error(message: str, kind: Any) -> FieldError:
    """Return the decoder's message about a body of type `kind` as a path and a sentence; the path of the body is
    `body`."""
    path, text = field_errors.described(message, kind)
    return FieldError(path, text) if path else FieldError("body", text.replace("a map", "a JSON object"))

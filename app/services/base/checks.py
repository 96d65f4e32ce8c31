"""Rules for single fields, collected so that one response reports all faults of a request."""

import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from msgspec import UnsetType

from app.errors import FieldError, Forbidden, Invalid, NotFound
from app.schemas.base.fields import EXPECTED_NAME, IN_WORDS, MAX_MODEL_CHARACTERS, MAX_NOTE_CHARACTERS, NAME, OWNER
from dataplane.base import labels as label_rules
from dataplane.base.units import parse_size
from dataplane.base.visible import is_printable, is_seen
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.salts import salt_of

T = TypeVar("T")
_LINE_BREAKS = str.maketrans("\n\t", "  ")


class Faults:
    """Collects faults; `check` runs a rule and keeps its error."""

    def __init__(self) -> None:
        self.errors: list[FieldError] = []

    def add(self, path: str, message: str) -> None:
        self.errors.append(FieldError(path, message))

    def check(self, path: str, rule: Callable[[], T]) -> T | None:
        """Return the rule's result, or None if it raised ValueError or ProtocolError."""
        try:
            return valid(path, rule)
        except Invalid as error:
            self.errors += error.errors
        return None

    def stop(self) -> None:
        """Raise Invalid if there are faults."""
        if self.errors:
            raise Invalid.about(self.errors)


def valid(path: str, rule: Callable[[], T]) -> T:
    """Return the rule's result. Raises Invalid if the rule raised ValueError or ProtocolError."""
    try:
        return rule()
    except ProtocolError as error:
        raise Invalid.at(error.field or path, error.message) from None
    except ValueError as error:
        raise Invalid.at(path, str(error)) from None


def tenant(name: str) -> str:
    """Return the salt of a tenant's shown name. Raises ProtocolError, ValueError."""
    if not name:
        raise ValueError("expected a tenant; the empty salt is shown as '_default'")
    return salt_of(name)


def new_tenant(name: str) -> str:
    """Return the salt of a name for a new record. Engines may send any salt and are served; but a name with invisible
    characters, or with characters that change the direction of a line, is not stored. Raises ProtocolError,
    ValueError."""
    salt = tenant(name)
    if name.isspace():
        raise ValueError(f"expected a name that can be seen, got {name!r}: it is only whitespace")
    invisible = next((character for character in name if not is_seen(character)), None)
    if invisible is not None:
        called = unicodedata.name(invisible, "a character without a name")
        raise ValueError(f"expected characters that can be seen, found {invisible!a} ({called})")
    if name != name.strip():
        raise ValueError(f"expected no leading or trailing blank, got {name!r}")
    if not unicodedata.is_normalized("NFC", name):
        composed = unicodedata.normalize("NFC", name)
        raise ValueError(f"expected composed characters (NFC), as {composed!a}, got {name!a}")
    if name in (".", ".."):
        raise ValueError(f"expected another name: {name!r} cannot be used in a URL")
    return salt


def tenant_in_path(name: str) -> str:
    """Return the salt of a tenant named in the path. Raises Invalid."""
    return valid("tenant", lambda: tenant(name))


def pin_name(name: str) -> str:
    """Check the name of a record or a token. Raises Invalid."""
    if re.fullmatch(NAME, name) is None:
        hint = f": {name!r} cannot be used in a URL" if name in (".", "..") else ""
        raise Invalid.at("name", f"{EXPECTED_NAME}{hint}")
    return name


def size(value: int | str | None) -> int | None:
    """Return the size in bytes; None stays None. Raises ValueError."""
    return None if value is None else parse_size(value)


def note(text: str) -> str:
    """Check a note. Raises ValueError."""
    if len(text) > MAX_NOTE_CHARACTERS:
        raise ValueError(f"expected at most {MAX_NOTE_CHARACTERS} characters, got {len(text)}")
    if not is_printable(text.translate(_LINE_BREAKS)):
        raise ValueError("expected printable characters")
    return text


def managed_by(name: str) -> str:
    """Check the name of an owner. Raises ValueError."""
    if re.fullmatch(OWNER, name) is None:
        raise ValueError(f"expected {IN_WORDS[OWNER]}")
    return name


def labels(values: dict[str, str] | None) -> dict[str, str] | None:
    """Return the labels, sorted; None if empty, which means no condition. Raises ValueError."""
    if fault := label_rules.fault(values or {}):
        raise ValueError(fault)
    return dict(sorted(values.items())) if values else None


def given(value: T | UnsetType, expected: str) -> T:
    """Return the value of a required field. Raises ValueError if it is missing."""
    if isinstance(value, UnsetType):
        raise ValueError(f"expected {expected}, got nothing")
    return value


def model(name: str) -> str:
    """Check the name of a model. Raises ValueError."""
    if not 1 <= len(name) <= MAX_MODEL_CHARACTERS or not is_printable(name):
        raise ValueError(f"expected 1 to {MAX_MODEL_CHARACTERS} printable characters")
    return name


def hex_digits(text: str, digits: int) -> str:
    """Return this number of hex digits in lower case. Raises ValueError."""
    if re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", text) is None:
        raise ValueError(f"expected {digits} hex digits, got {text[:80]!r}")
    return text.lower()


_SCOPE: Mapping[str, Callable[[str], str]] = {
    "tenant": tenant,
    "model": model,
    "space": lambda text: hex_digits(text, 32),
}


def scope(request: object, faults: Faults) -> dict[str, Any]:
    """Return the salt, the model and the space that a request names, by field; None for those that it does not."""
    return {
        name: None if (value := getattr(request, name)) is None else faults.check(name, partial(rule, value))
        for name, rule in _SCOPE.items()
    }


def taken(kind: str, name: str, path: str = "name") -> Forbidden:
    """Return the error for a name that belongs to a tenant the caller does not see. It says only that the name is
    taken."""
    return Forbidden.at(path, f"{name!r} is taken: names of {kind}s are unique in the whole fleet; choose another one")


def missing(kind: str, name: str, hint: str = "") -> NotFound:
    return NotFound(f"there is no {kind} {name!r}{hint}")

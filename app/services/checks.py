"""Rules for single fields, gathered so that a request is told all its faults at once."""

import re
import unicodedata
from collections.abc import Callable
from typing import TypeVar

from app.errors import FieldError, Forbidden, Invalid, NotFound
from app.observe.visible import is_seen
from dataplane.protocol import labels as label_rules
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.salts import salt_of
from dataplane.protocol.units import parse_size

T = TypeVar("T")

MAX_NOTE_CHARACTERS = 1024
MAX_MODEL_CHARACTERS = 256
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)


class Faults:
    """Collects faults; `check` runs a rule and keeps what it has to say."""

    def __init__(self) -> None:
        self.errors: list[FieldError] = []

    def add(self, path: str, message: str) -> None:
        self.errors.append(FieldError(path, message))

    def check(self, path: str, rule: Callable[[], T]) -> T | None:
        """The rule's result, or None after it raised ValueError or ProtocolError."""
        try:
            return rule()
        except ProtocolError as error:
            self.add(error.field or path, error.message)
        except ValueError as error:
            self.add(path, str(error))
        return None

    def stop(self) -> None:
        """Raise Invalid when there are any."""
        if self.errors:
            first = self.errors[0]
            more = f" (and {len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
            raise Invalid(f"{first.path}: {first.message}{more}", self.errors)


def tenant(name: str) -> str:
    """The salt behind a tenant's shown name. Raises ProtocolError, ValueError."""
    if not name:
        raise ValueError("expected a tenant; the empty salt is shown as '_default'")
    return salt_of(name)


def new_tenant(name: str) -> str:
    """The salt behind a name that people give to a record. Engines may send any salt, and are served; a name that
    cannot be seen, or that turns the line it stands in, is not written down. Raises ProtocolError, ValueError."""
    salt = tenant(name)
    if name.isspace():
        raise ValueError(f"expected a name that can be seen, got {name!r}: blanks alone")
    unseen = next((character for character in name if not is_seen(character)), None)
    if unseen is not None:
        called = unicodedata.name(unseen, "a character without a name")
        raise ValueError(f"expected characters that can be seen, found {unseen!a} ({called})")
    if name != name.strip():
        raise ValueError(f"expected no blank at an end, got {name!r}")
    if not unicodedata.is_normalized("NFC", name):
        composed = unicodedata.normalize("NFC", name)
        raise ValueError(f"expected composed characters (NFC), as {composed!a}, got {name!a}")
    if name in (".", ".."):
        raise ValueError(f"expected another name: {name!r} is no part of a URL")
    return salt


def tenant_in_path(name: str) -> str:
    """The same for a name in the path, raising Invalid."""
    faults = Faults()
    salt = faults.check("tenant", lambda: tenant(name))
    faults.stop()
    assert salt is not None
    return salt


def pin_name(name: str) -> str:
    """Raises Invalid."""
    if _NAME.fullmatch(name) is None:
        faults = Faults()
        faults.add("name", "expected 1 to 128 of the characters A-Z a-z 0-9 . _ -")
        faults.stop()
    return name


def size(value: int | str | None) -> int | None:
    """Bytes; None stays None. Raises ValueError."""
    return None if value is None else parse_size(value)


def note(text: str) -> str:
    """Raises ValueError."""
    if len(text) > MAX_NOTE_CHARACTERS:
        raise ValueError(f"expected at most {MAX_NOTE_CHARACTERS} characters, got {len(text)}")
    if not all(character.isprintable() or character in "\n\t" for character in text):
        raise ValueError("expected printable characters")
    return text


def managed_by(name: str) -> str:
    """Raises ValueError."""
    if name and _NAME.fullmatch(name) is None:
        raise ValueError("expected at most 128 of the characters A-Z a-z 0-9 . _ -")
    return name


def labels(given: dict[str, str] | None) -> dict[str, str] | None:
    """Label to value, sorted; empty is None: no condition. Raises ValueError."""
    if fault := label_rules.fault(given or {}):
        raise ValueError(fault)
    return dict(sorted(given.items())) if given else None


def model(name: str) -> str:
    """Raises ValueError."""
    if not 1 <= len(name) <= MAX_MODEL_CHARACTERS or not name.isprintable():
        raise ValueError(f"expected 1 to {MAX_MODEL_CHARACTERS} printable characters")
    return name


def taken(kind: str, name: str, path: str = "name") -> Forbidden:
    """For a caller who does not see whose the name is: nothing of it but that it cannot be had."""
    message = f"{name!r} is taken: names of {kind}s are those of the whole fleet; choose another one"
    return Forbidden(f"{path}: {message}", [FieldError(path, message)])


def missing(kind: str, name: str, more: str = "") -> NotFound:
    return NotFound(f"there is no {kind} {name!r}{more}")

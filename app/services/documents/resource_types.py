"""Types of records that documents can contain, and how a record of a document is checked. Apply and export are
generic."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from app.errors import FieldError, Invalid
from app.schemas.records.pins import PinPut
from app.services.base import checks
from app.services.base.expiry import moment
from app.services.records import pins, policies, quotas, tiers
from app.services.records.record_types import PushedType, Values
from app.services.records.tokenizers import EncodedText
from dataplane.protocol.control.snapshots import SnapshotType

Encode = Callable[[PinPut], EncodedText | None]
"""Returns the tokens of a pin's text or messages; None for a pin with neither. Raises Invalid, TooManyRequests."""
Resolve = Callable[[str, Any, float, Encode], "DeclaredRecord"]
"""Checks a record, given its name, PUT body, the time and the encoder. Raises Invalid with every fault found."""
T = TypeVar("T")


@dataclass(frozen=True)
class DeclaredRecord:
    """A checked record of a document."""

    values: Values
    """Columns that clients write, including the key."""
    body: bytes = b""
    """Packed keys of a pin."""
    ttl_s: float | None = None
    """Time to live of a pin, in seconds from when it is written."""
    ended: bool = False
    """Whether the end of the pin has passed."""
    path: str = ""
    """Path of the record in the document."""


def _named(name: str, resolve: Callable[[], T]) -> T:
    """Return the result of `resolve`; faults of the name are reported together with those of the other fields."""
    faults: list[FieldError] = []
    try:
        checks.pin_name(name)
    except Invalid as error:
        faults += error.errors
    try:
        result = resolve()
    except Invalid as error:
        raise Invalid(error.message, faults + error.errors) from None
    if faults:
        raise Invalid.about(faults)
    return result


def _moment(value: float | str | None) -> float | None:
    """Return Unix seconds; None also for an invalid value, which the pin's own check reports."""
    try:
        return None if value is None else moment(value)
    except (ValueError, OverflowError):
        return None


def _pin(name: str, intent: PinPut, now: float, encode: Encode) -> DeclaredRecord:
    if intent.prefix is not None:
        raise Invalid(
            "prefix", [FieldError("prefix", "labels of prefixes are not stable; use 'keys' or 'tokens' in a document")]
        )
    at = _moment(intent.expires_at)
    ended = at is not None and at <= now
    at_least = at - 1 if at is not None and ended else now
    values, body = _named(name, lambda: pins.resolve(intent, None, at_least, encode(intent)))
    return DeclaredRecord({"name": name, **values}, body, intent.ttl_s, ended)


KINDS: dict[SnapshotType, PushedType[Any]] = {
    kind.name: kind for kind in (quotas.QUOTAS, pins.PINS, policies.POLICIES, tiers.TIERS)
}
"""Types in the order of their sections in a document."""
RESOLVE: dict[SnapshotType, Resolve] = {
    "quotas": lambda name, intent, *_: DeclaredRecord(quotas.resolve(name, intent)),
    "pins": _pin,
    "policies": lambda name, intent, *_: DeclaredRecord(_named(name, lambda: policies.resolve(name, intent))),
    "tiers": lambda name, intent, *_: DeclaredRecord(_named(name, lambda: tiers.resolve(name, intent))),
}
KEPT_FIELDS = {"pins": ("origin",)}
"""Columns of a pin that stay unchanged while its keys do."""

"""Types of records that documents can contain: how a document names a record, how it is checked, and its columns.

Apply and export are generic; everything that they need to know about a type is here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from app.errors import FieldError, Invalid
from app.schemas.records.pins import PinPut
from app.schemas.records.policies import PolicyPut
from app.schemas.records.quotas import QuotaPut
from app.services.base import checks
from app.services.records import pin_intent, policy_intent, quota_intent
from app.services.records.tokenizers import EncodedText
from app.store.base.declarative import Base
from app.store.records.pins import PinRow
from app.store.records.policies import PolicyRow
from app.store.records.quotas import QuotaRow
from dataplane.protocol.control import SnapshotType
from dataplane.protocol.salts import shown

Encode = Callable[[PinPut], EncodedText | None]
"""Returns the tokens of a pin's text or messages; None for a pin with neither. Raises Invalid, TooManyRequests."""
T = TypeVar("T")
Values = dict[str, Any]
"""Columns of a record that clients write, including its key."""


@dataclass(frozen=True)
class CheckedRecord:
    """A checked record of a document."""

    values: Values
    body: bytes = b""
    """Packed keys of a pin."""
    ttl_s: float | None = None
    """Time to live of a pin, in seconds from when it is written."""
    ended: bool = False
    """Whether the end of the pin has passed."""


@dataclass(frozen=True)
class ResourceType:
    """One type of record."""

    name: SnapshotType
    noun: str
    named_by: str
    """Field that names a record in a list of a document."""
    put: type[msgspec.Struct]
    """Body of its PUT: the fields that a document may contain."""
    row: type[Base]
    key: str
    """Column of the primary key."""
    written: tuple[str, ...]
    """Columns that clients write, besides the key."""
    resolve: Callable[[str, Any, float, "Encode"], CheckedRecord]
    """Checks a record, given its name, PUT body, the time and the encoder. Raises Invalid with every fault found."""
    kept: tuple[str, ...]
    """Columns of a pin that stay unchanged while its keys do; changes of them are not shown."""
    salt: Callable[[Mapping[str, Any]], str | None]
    """Returns the salt of a record's tenant; None if the record concerns all tenants."""

    def shown(self, key: str) -> str:
        """Return the record's shown name."""
        return shown(key) if self.key == "tenant" else key

    def audited(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that an audit entry and a diff show."""
        return {name: shown(values[name]) if name == "tenant" else values[name] for name in self.written}


def _quota(name: str, intent: QuotaPut, _now: float, _encode: Encode) -> CheckedRecord:
    asked = quota_intent.resolve(name, intent)
    spec = {name: getattr(asked.spec, name) for name in quota_intent.SHARE}
    extra = {"note": asked.note, "managed_by": asked.managed_by, "selector": asked.selector}
    return CheckedRecord({"tenant": asked.spec.tenant, **spec, **extra})


def _named(name: str, resolve: Callable[[], T]) -> T:
    """Return the result of `resolve`; faults of the name are reported together with those of the other fields."""
    faults: list[FieldError] = []
    try:
        checks.pin_name(name)
    except Invalid as error:
        faults += error.errors
    try:
        found = resolve()
    except Invalid as error:
        raise Invalid(error.message, faults + error.errors) from None
    if faults:
        raise Invalid(f"{faults[0].path}: {faults[0].message}", faults)
    return found


def _policy(name: str, intent: PolicyPut, _now: float, _encode: Encode) -> CheckedRecord:
    asked = _named(name, lambda: policy_intent.resolve(name, intent))
    spec = {name: getattr(asked.spec, name) for name in policy_intent.RULES}
    extra = {name: getattr(asked, name) for name in ("note", "managed_by", "selector", "priority")}
    return CheckedRecord({"name": asked.spec.name, **spec, **extra})


def _moment(value: float | str | None) -> float | None:
    """Return Unix seconds; None also for an invalid value, which the pin's own check reports."""
    try:
        return None if value is None else pin_intent.moment(value)
    except (ValueError, OverflowError):
        return None


def _pin(name: str, intent: PinPut, now: float, encode: Encode) -> CheckedRecord:
    if intent.prefix is not None:
        raise Invalid(
            "prefix",
            [FieldError("prefix", "labels of prefixes are not stable; use 'keys' or 'tokens' in a document")],
        )
    at = _moment(intent.expires_at)
    ended = at is not None and at <= now
    at_least = at - 1 if at is not None and ended else now
    asked = _named(name, lambda: pin_intent.resolve(intent, None, at_least, encode(intent)))
    values: Values = {
        "name": name,
        "model": asked.model,
        "tenant": asked.salt,
        "strength": asked.strength,
        "tier": asked.tier,
        "key_count": asked.key_count,
        "keys_digest": asked.digest,
        "expires_at": asked.expires_at,
        "refresh_s": asked.refresh_s,
        "note": asked.note,
        "managed_by": asked.managed_by,
        "selector": asked.selector,
        "origin": asked.origin,
    }
    return CheckedRecord(values, asked.body, intent.ttl_s, ended)


KINDS: dict[SnapshotType, ResourceType] = {
    "quotas": ResourceType(
        "quotas",
        "quota",
        "tenant",
        QuotaPut,
        QuotaRow,
        "tenant",
        (*quota_intent.SHARE, "note", "managed_by", "selector"),
        _quota,
        (),
        lambda values: str(values["tenant"]),
    ),
    "pins": ResourceType(
        "pins",
        "pin",
        "name",
        PinPut,
        PinRow,
        "name",
        (
            "model",
            "tenant",
            "strength",
            "tier",
            "key_count",
            "keys_digest",
            "expires_at",
            "refresh_s",
            "note",
            "managed_by",
            "selector",
        ),
        _pin,
        ("origin",),
        lambda values: str(values["tenant"]),
    ),
    "policies": ResourceType(
        "policies",
        "policy",
        "name",
        PolicyPut,
        PolicyRow,
        "name",
        (*policy_intent.RULES, "note", "managed_by", "selector", "priority"),
        _policy,
        (),
        lambda _values: None,
    ),
}
"""Types in the order of their sections in a document."""

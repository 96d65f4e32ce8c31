"""Types of records that documents can hold: how a document names one, what it is checked by, which columns it has.

Everything about a type that applying and exporting need is here; they themselves know no type.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from app.errors import FieldError, Invalid
from app.schemas.pins import PinPut
from app.schemas.policies import PolicyPut
from app.schemas.quotas import QuotaPut
from app.services import checks, pin_intent, policy_intent, quota_intent
from app.services.tokenizers import Encoded
from app.store.base import Base
from app.store.pins import PinRow
from app.store.policies import PolicyRow
from app.store.quotas import QuotaRow
from dataplane.protocol.control import SnapshotType
from dataplane.protocol.salts import shown

Encode = Callable[[PinPut], Encoded | None]
"""What a pin's text or messages become; None for a pin of neither. Raises Invalid, TooManyRequests."""
T = TypeVar("T")
Values = dict[str, Any]
"""Columns of a record that people write, with its key."""


@dataclass(frozen=True)
class Asked:
    """A record of a document, checked."""

    values: Values
    body: bytes = b""
    """Packed keys of a pin."""
    ttl_s: float | None = None
    """The end of a pin as a time from when it is written."""
    ended: bool = False
    """The moment at which a pin was to end has passed."""


@dataclass(frozen=True)
class Kind:
    """One type of record."""

    name: SnapshotType
    noun: str
    named_by: str
    """What names a record in a list of a document."""
    put: type[msgspec.Struct]
    """The body of its PUT: the fields that a document may have."""
    row: type[Base]
    key: str
    """Column of the primary key."""
    written: tuple[str, ...]
    """Columns that people write, besides the key."""
    resolve: Callable[[str, Any, float, "Encode"], Asked]
    """From name, PUT body and the time. Raises Invalid with every fault found."""
    kept: tuple[str, ...]
    """Columns of a pin that stay as they are as long as its keys do; nobody is shown a change of them."""
    salt: Callable[[Mapping[str, Any]], str | None]
    """Whose a record is; None: it is about all tenants."""

    def shown(self, key: str) -> str:
        """The record's name as people see it."""
        return shown(key) if self.key == "tenant" else key

    def audited(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What an audit entry and a diff show."""
        return {name: shown(values[name]) if name == "tenant" else values[name] for name in self.written}


def _quota(name: str, intent: QuotaPut, _now: float, _encode: Encode) -> Asked:
    asked = quota_intent.resolve(name, intent)
    spec = {name: getattr(asked.spec, name) for name in quota_intent.SHARE}
    extra = {"note": asked.note, "managed_by": asked.managed_by, "selector": asked.selector}
    return Asked({"tenant": asked.spec.tenant, **spec, **extra})


def _named(name: str, resolve: Callable[[], T]) -> T:
    """What `resolve` makes of a record; what is wrong with its name is told together with its other faults."""
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


def _policy(name: str, intent: PolicyPut, _now: float, _encode: Encode) -> Asked:
    asked = _named(name, lambda: policy_intent.resolve(name, intent))
    spec = {name: getattr(asked.spec, name) for name in policy_intent.RULES}
    extra = {name: getattr(asked, name) for name in ("note", "managed_by", "selector", "priority")}
    return Asked({"name": asked.spec.name, **spec, **extra})


def _moment(value: float | str | None) -> float | None:
    """None also for what is no moment: the pin's own check says so."""
    try:
        return None if value is None else pin_intent.moment(value)
    except (ValueError, OverflowError):
        return None


def _pin(name: str, intent: PinPut, now: float, encode: Encode) -> Asked:
    if intent.prefix is not None:
        raise Invalid(
            "prefix",
            [
                FieldError(
                    "prefix", "what a label names changes by the hour: a document has 'keys' or 'tokens'"
                )
            ],
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
    return Asked(values, asked.body, intent.ttl_s, ended)


KINDS: dict[SnapshotType, Kind] = {
    "quotas": Kind(
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
    "pins": Kind(
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
    "policies": Kind(
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
"""In the order in which they stand in a document."""

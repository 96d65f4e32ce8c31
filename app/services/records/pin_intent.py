"""Requested pins, resolved to keys as engines cut and hash tokens, and patches of pins, which keep the keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, UnsetType

from app.schemas.base.records import written
from app.schemas.records.pins import SETTINGS, STORED, PinAnswer, PinList, PinPut, PinRecord
from app.services.base import checks
from app.services.base.expiry import expiry, future, ttl
from app.services.base.merge import check_names, converted, merge
from app.services.records.key_intent import check_tokens, unpacked
from app.services.records.prefixes import FoundPrefix
from app.services.records.record_types import PushedType, Values, checked, columns
from app.services.records.tokenizers import EncodedText
from app.store.records import pins
from app.store.records.pins import PinRow
from dataplane.protocol.control.snapshots import digest_of
from dataplane.protocol.keys import chain
from dataplane.protocol.salts import DEFAULT_TENANT, shown

PINS = PushedType(
    name="pins",
    noun="pin",
    row=PinRow,
    sortable=pins.SORTABLE,
    key="name",
    put=PinPut,
    answer=PinAnswer,
    listing=PinList,
    written=written(PinRecord),
)


@dataclass(frozen=True)
class PinIntent:
    """Columns of a pin record besides its name, and the keys."""

    values: Values
    body: bytes
    """Packed keys, first chunk first."""


def resolve(intent: PinPut, prefix: FoundPrefix | None, now: float, encoded: EncodedText | None = None) -> PinIntent:
    """Return the checked intent. `prefix` is the prefix that nodes have under the label; `encoded` holds the tokens of
    the intent's text. Raises Invalid with every fault found. Takes about 10 ms for the largest pin."""
    faults = checks.Faults()
    model = faults.check("model", lambda: _model(intent, prefix))
    salt = faults.check("tenant", lambda: _salt(intent, prefix))
    stored = checked(columns(intent, STORED), faults)
    expires_at = expiry(intent.ttl_s, intent.expires_at, now, faults)
    _check_strength(intent, faults)
    check_sources(intent, faults)
    if prefix is not None:
        keys: list[bytes] | None = prefix.keys
    elif intent.keys is not None:
        keys = faults.check("keys", lambda: unpacked(intent.keys or []))
    else:
        path, tokens = _tokens(intent, encoded, faults)
        check_tokens(tokens, intent.chunk_tokens, faults, path)
        faults.stop()
        assert salt is not None
        keys = chain(tokens, salt, chunk_tokens=intent.chunk_tokens)
    faults.stop()
    assert keys is not None
    body = b"".join(keys)
    values = {
        "model": model,
        "tenant": salt,
        "key_count": len(keys),
        "keys_digest": digest_of(body),
        "expires_at": expires_at,
        "refresh_s": intent.ttl_s if intent.refresh_on_hit else None,
        "origin": _origin(intent, encoded),
        **stored,
    }
    return PinIntent(values, body)


def _tokens(intent: PinPut, encoded: EncodedText | None, faults: checks.Faults) -> tuple[str, Sequence[int]]:
    """Return the field that the tokens come from, and the tokens. Raises Invalid, including the faults found before."""
    if intent.tokens is not None:
        return "tokens", intent.tokens
    path = "messages" if intent.text is None else "text"
    if encoded is None:
        faults.stop()
        faults.add(path, "text is not supported in a document; use 'tokens' or 'keys'")
        faults.stop()
        raise AssertionError
    return path, encoded.tokens


def _origin(intent: PinPut, encoded: EncodedText | None) -> dict[str, Any]:
    (source,) = (name for name in PinPut.EXACTLY_ONE if getattr(intent, name) is not None)
    if source == "prefix":
        return {"source": source, "prefix": intent.prefix}
    if source == "keys":
        return {"source": source}
    tokens = encoded.tokens if encoded is not None else intent.tokens or []
    origin: dict[str, Any] = {"source": source, "tokens": len(tokens), "chunk_tokens": intent.chunk_tokens}
    if encoded is not None:
        origin["tokenizer"] = {"name": encoded.by.name, "digest": encoded.by.digest}
    return origin


def check_sources(intent: PinPut, faults: checks.Faults) -> None:
    """Check that exactly one source gives the keys. Raises Invalid, including the faults found before."""
    if sum(getattr(intent, name) is not None for name in PinPut.EXACTLY_ONE) != 1:
        faults.add("tokens", "expected exactly one of 'tokens', 'keys', 'prefix', 'text' and 'messages'")
        faults.stop()
    if intent.add_generation_prompt and intent.messages is None:
        faults.add(
            "add_generation_prompt", "expected false without messages: only a chat template has a generation prompt"
        )


def _model(intent: PinPut, prefix: FoundPrefix | None) -> str:
    if prefix is None:
        if intent.model is None:
            raise ValueError("expected a model name; only a pin created from a prefix takes the prefix's model")
        return checks.model(intent.model)
    if intent.model not in (None, prefix.model):
        raise ValueError(f"the prefix is of {prefix.model!r}: leave the model out, or give that one")
    return prefix.model


def _salt(intent: PinPut, prefix: FoundPrefix | None) -> str:
    if prefix is None:
        return checks.new_tenant(DEFAULT_TENANT if intent.tenant is None else intent.tenant)
    if intent.tenant not in (None, shown(prefix.salt)):
        raise ValueError(f"the prefix is of {shown(prefix.salt)!r}: leave the tenant out, or give that one")
    return checks.new_tenant(shown(prefix.salt))


def _check_strength(intent: PinPut, faults: checks.Faults) -> None:
    if intent.refresh_on_hit and intent.ttl_s is None:
        faults.add("refresh_on_hit", "expected a ttl_s, to which every hit extends the pin")
    has_end = intent.ttl_s is not None or intent.expires_at is not None or intent.refresh_on_hit
    if intent.strength == "permanent" and has_end:
        faults.add(
            "strength",
            "a permanent pin has no end: leave out ttl_s, expires_at and refresh_on_hit, or use 'guaranteed'",
        )


def patched_values(row: PinRow, patch: dict[str, Any], now: float) -> Values:
    """Return the columns of a pin that a patch sets; null resets a field to its default. Raises Invalid with every
    fault found."""
    check_names(patch, SETTINGS)
    request = converted(PinPut, merge({"selector": row.selector}, patch))
    faults = checks.Faults()
    patched = columns(request, [name for name in STORED if name in patch])
    values = checked({**columns(row, STORED), **patched}, faults)
    expires_at, refresh_s = _end(row, request, patch, now, faults)
    if values["strength"] == "permanent" and (expires_at is not None or refresh_s is not None):
        faults.add("strength", "a permanent pin has no end: set expires_at to null with it, or use 'guaranteed'")
    faults.stop()
    return {**values, "expires_at": expires_at, "refresh_s": refresh_s}


def _end(
    row: PinRow, request: PinPut, patch: dict[str, Any], now: float, faults: checks.Faults
) -> tuple[float | None, float | None]:
    """Return the end of the pin in Unix seconds, and the seconds from a hit to the new end."""
    end, refresh_s = row.expires_at, row.refresh_s
    refreshes = request.refresh_on_hit if "refresh_on_hit" in patch else refresh_s is not None
    seconds: float | UnsetType | None = request.ttl_s if "ttl_s" in patch else UNSET
    moment: float | str | UnsetType | None = request.expires_at if "expires_at" in patch else UNSET
    if seconds is None or moment is None:
        end = refresh_s = None
        refreshes = refreshes and "refresh_on_hit" in patch
    if isinstance(seconds, (int, float)) and moment is not UNSET and moment is not None:
        faults.add("expires_at", "expected at most one of 'ttl_s' and 'expires_at'")
    elif isinstance(seconds, (int, float)):
        checked_s = faults.check("ttl_s", lambda: ttl(seconds))
        if checked_s is not None:
            end, refresh_s = now + checked_s, checked_s
    elif isinstance(moment, (int, float, str)):
        end = faults.check("expires_at", lambda: future(moment, now))
        if "refresh_on_hit" not in patch:
            refreshes = False
    if refreshes and (refresh_s is None or end is None) and not faults.errors:
        faults.add("refresh_on_hit", "expected a ttl_s, to which every hit extends the pin")
    return end, refresh_s if refreshes else None

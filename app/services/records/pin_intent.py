"""A requested pin, checked and resolved to keys: the server cuts and hashes tokens as engines do."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.observe.catalogue.records import PinChanged, PinCreated, PinDeleted
from app.schemas.base.records import written
from app.schemas.records.pins import STORED, PinPut, PinRecord
from app.services.base import checks
from app.services.base.changes import Action
from app.services.base.durations import span
from app.services.records.key_intent import check_tokens, unpacked
from app.services.records.prefixes import FoundPrefix
from app.services.records.record_types import PushedType, Values, checked, columns
from app.services.records.tokenizers import EncodedText
from app.store.records.pins import PinRow
from dataplane.protocol.control.snapshots import digest_of
from dataplane.protocol.keys import chain
from dataplane.protocol.salts import DEFAULT_TENANT, shown

MAX_TTL_S = 10 * 366 * 86_400.0
SOURCES = ("tokens", "keys", "prefix", "text", "messages")


_EVENTS: dict[Action, type[PinCreated | PinChanged | PinDeleted]] = {
    "create": PinCreated,
    "update": PinChanged,
    "delete": PinDeleted,
}
PINS = PushedType(
    name="pins",
    noun="pin",
    row=PinRow,
    key="name",
    put=PinPut,
    written=written(PinRecord),
    event=lambda action, name, values, generation: _EVENTS[action](name, values["tenant"], generation),
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
    timed = "expires_at" if intent.ttl_s is None or intent.expires_at is not None else "ttl_s"
    expires_at = faults.check(timed, lambda: _expiry(intent, now))
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
    (source,) = (name for name in SOURCES if getattr(intent, name) is not None)
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
    if sum(getattr(intent, name) is not None for name in SOURCES) != 1:
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
    ends = intent.ttl_s is not None or intent.expires_at is not None or intent.refresh_on_hit
    if intent.strength == "permanent" and ends:
        faults.add(
            "strength",
            "a permanent pin has no end: leave out ttl_s, expires_at and refresh_on_hit, or use 'guaranteed'",
        )


def _expiry(intent: PinPut, now: float) -> float | None:
    if intent.ttl_s is not None and intent.expires_at is not None:
        raise ValueError("expected at most one of 'ttl_s' and 'expires_at'")
    if intent.ttl_s is not None:
        return now + ttl(intent.ttl_s)
    return None if intent.expires_at is None else future(intent.expires_at, now)


def ttl(seconds: float) -> float:
    """Check a duration in seconds. Raises ValueError."""
    if not 0 < seconds <= MAX_TTL_S:
        raise ValueError(f"expected more than 0 and at most {span(MAX_TTL_S)}, got {span(seconds)}")
    return seconds


def future(value: float | str, now: float) -> float:
    """Return a point in time in the future, as Unix seconds. Raises ValueError."""
    at = moment(value)
    if not now < at <= now + MAX_TTL_S:
        raise ValueError("expected a moment in the future, within ten years")
    return at


def moment(value: float | str) -> float:
    """Return Unix seconds, from a number or from RFC 3339. Raises ValueError."""
    if not isinstance(value, str):
        return value
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"expected RFC 3339 such as '2030-01-31T12:00:00Z', got {value[:40]!r}") from None
    if parsed.tzinfo is None:
        raise ValueError("expected a moment with an offset, such as '2030-01-31T12:00:00Z'")
    return parsed.timestamp()

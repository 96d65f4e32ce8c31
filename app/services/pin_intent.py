"""A pin as asked for, checked and resolved to keys: the server cuts and hashes tokens as engines do."""

import re
from dataclasses import dataclass
from datetime import datetime

from app.errors import Invalid
from app.schemas.pins import PinPut
from app.services import checks
from dataplane.protocol.control import digest_of
from dataplane.protocol.keys import KEY_BYTES, chain

MAX_KEYS = 4096
MAX_TOKENS = 1 << 20
MAX_CHUNK_TOKENS = 1 << 16
MAX_TOKEN = (1 << 32) - 1
MAX_TTL_S = 10 * 366 * 86_400.0
_KEY = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)


@dataclass(frozen=True)
class PinIntent:
    """What a record needs."""

    model: str
    salt: str
    key_count: int
    body: bytes
    """Packed keys, first chunk first."""
    digest: str
    expires_at: float | None
    note: str


def resolve(intent: PinPut, now: float) -> PinIntent:
    """Raises Invalid with every fault found. Takes about 10 ms for the largest pin."""
    faults = checks.Faults()
    model = faults.check("model", lambda: checks.model(intent.model))
    salt = faults.check("tenant", lambda: checks.tenant(intent.tenant))
    note = faults.check("note", lambda: checks.note(intent.note))
    expires_at = faults.check("expires_at", lambda: _expiry(intent, now))
    if (intent.tokens is None) == (intent.keys is None):
        faults.add("tokens", "expected exactly one of 'tokens' and 'keys'")
        faults.stop()
    if intent.keys is not None:
        keys = faults.check("keys", lambda: _unpacked(intent.keys or []))
    else:
        _check_tokens(intent, faults)
        faults.stop()
        assert salt is not None
        keys = chain(intent.tokens or [], salt, chunk_tokens=intent.chunk_tokens)
    faults.stop()
    if model is None or salt is None or note is None or keys is None:
        raise Invalid("the pin is not valid", faults.errors)
    body = b"".join(keys)
    return PinIntent(model, salt, len(keys), body, digest_of(body), expires_at, note)


def _check_tokens(intent: PinPut, faults: checks.Faults) -> None:
    tokens, chunk = intent.tokens or [], intent.chunk_tokens
    if not 1 <= chunk <= MAX_CHUNK_TOKENS:
        faults.add("chunk_tokens", f"expected 1 to {MAX_CHUNK_TOKENS}, got {chunk}")
        return
    if len(tokens) > MAX_TOKENS or len(tokens) // chunk > MAX_KEYS:
        faults.add(
            "tokens",
            f"expected at most {MAX_TOKENS} tokens and {MAX_KEYS} full chunks, got {len(tokens)} tokens",
        )
    elif len(tokens) < chunk:
        faults.add("tokens", f"expected at least one full chunk of {chunk} tokens, got {len(tokens)}")
    elif min(tokens) < 0 or max(tokens) > MAX_TOKEN:
        wrong = next(number for number, token in enumerate(tokens) if not 0 <= token <= MAX_TOKEN)
        faults.add(f"tokens[{wrong}]", f"expected a token id from 0 to {MAX_TOKEN}, got {tokens[wrong]}")


def _unpacked(keys: list[str]) -> list[bytes]:
    if not 1 <= len(keys) <= MAX_KEYS:
        raise ValueError(f"expected 1 to {MAX_KEYS} keys, got {len(keys)}")
    for number, key in enumerate(keys):
        if _KEY.fullmatch(key) is None:
            raise ValueError(
                f"expected {2 * KEY_BYTES} hex digits in key {number}, got {len(key)} characters"
            )
    unpacked = [bytes.fromhex(key) for key in keys]
    if len(set(unpacked)) != len(unpacked):
        raise ValueError("expected no key twice")
    return unpacked


def _expiry(intent: PinPut, now: float) -> float | None:
    if intent.ttl_s is not None and intent.expires_at is not None:
        raise ValueError("expected at most one of 'ttl_s' and 'expires_at'")
    if intent.ttl_s is not None:
        if not 0 < intent.ttl_s <= MAX_TTL_S:
            raise ValueError(
                f"expected a ttl_s above 0 and at most {MAX_TTL_S:.0f} (ten years), got {intent.ttl_s:g}"
            )
        return now + intent.ttl_s
    if intent.expires_at is None:
        return None
    at = _moment(intent.expires_at)
    if not now < at <= now + MAX_TTL_S:
        raise ValueError("expected a moment in the future, within ten years")
    return at


def _moment(value: float | str) -> float:
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"expected RFC 3339 such as '2030-01-31T12:00:00Z', got {value[:40]!r}") from None
    if moment.tzinfo is None:
        raise ValueError("expected a moment with an offset, such as '2030-01-31T12:00:00Z'")
    return moment.timestamp()

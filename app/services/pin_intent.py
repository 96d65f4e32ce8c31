"""A pin as asked for, checked and resolved to keys: the server cuts and hashes tokens as engines do."""

from dataclasses import dataclass
from datetime import datetime

from app.errors import Invalid
from app.schemas.pins import PinPut
from app.services import checks
from app.services.key_intent import check_tokens, unpacked
from app.services.prefixes import Found
from dataplane.protocol.control import Strength, digest_of
from dataplane.protocol.keys import chain
from dataplane.protocol.salts import DEFAULT_TENANT, shown

MAX_TTL_S = 10 * 366 * 86_400.0


@dataclass(frozen=True)
class PinIntent:
    """What a record needs."""

    model: str
    salt: str
    strength: Strength
    key_count: int
    body: bytes
    """Packed keys, first chunk first."""
    digest: str
    expires_at: float | None
    refresh_s: float | None
    note: str
    managed_by: str
    selector: dict[str, str] | None


def resolve(intent: PinPut, prefix: Found | None, now: float) -> PinIntent:
    """`prefix` is what nodes know under the intent's label. Raises Invalid with every fault found. Takes about 10 ms
    for the largest pin."""
    faults = checks.Faults()
    model = faults.check("model", lambda: _model(intent, prefix))
    salt = faults.check("tenant", lambda: _salt(intent, prefix))
    note = faults.check("note", lambda: checks.note(intent.note))
    managed_by = faults.check("managed_by", lambda: checks.managed_by(intent.managed_by))
    selector = faults.check("selector", lambda: checks.labels(intent.selector))
    timed = "expires_at" if intent.ttl_s is None or intent.expires_at is not None else "ttl_s"
    expires_at = faults.check(timed, lambda: _expiry(intent, now))
    _check_strength(intent, faults)
    check_sources(intent, faults)
    if prefix is not None:
        keys: list[bytes] | None = prefix.keys
    elif intent.keys is not None:
        keys = faults.check("keys", lambda: unpacked(intent.keys or []))
    else:
        check_tokens(intent.tokens or [], intent.chunk_tokens, faults)
        faults.stop()
        assert salt is not None
        keys = chain(intent.tokens or [], salt, chunk_tokens=intent.chunk_tokens)
    faults.stop()
    if model is None or salt is None or note is None or managed_by is None or keys is None:
        raise Invalid("the pin is not valid", faults.errors)
    body = b"".join(keys)
    refresh_s = intent.ttl_s if intent.refresh_on_hit else None
    return PinIntent(
        model=model,
        salt=salt,
        strength=intent.strength,
        key_count=len(keys),
        body=body,
        digest=digest_of(body),
        expires_at=expires_at,
        refresh_s=refresh_s,
        note=note,
        managed_by=managed_by,
        selector=selector,
    )


def check_sources(intent: PinPut, faults: checks.Faults) -> None:
    """Exactly one thing says which keys. Raises Invalid, with what was found before."""
    if sum(source is not None for source in (intent.tokens, intent.keys, intent.prefix)) != 1:
        faults.add("tokens", "expected exactly one of 'tokens', 'keys' and 'prefix'")
        faults.stop()


def _model(intent: PinPut, prefix: Found | None) -> str:
    if prefix is None:
        if intent.model is None:
            raise ValueError("expected a model name; only a pin made from a prefix has it from there")
        return checks.model(intent.model)
    if intent.model not in (None, prefix.model):
        raise ValueError(f"the prefix is of {prefix.model!r}: leave the model out, or give that one")
    return prefix.model


def _salt(intent: PinPut, prefix: Found | None) -> str:
    if prefix is None:
        return checks.tenant(DEFAULT_TENANT if intent.tenant is None else intent.tenant)
    if intent.tenant not in (None, shown(prefix.salt)):
        raise ValueError(f"the prefix is of {shown(prefix.salt)!r}: leave the tenant out, or give that one")
    return prefix.salt


def _check_strength(intent: PinPut, faults: checks.Faults) -> None:
    if intent.refresh_on_hit and intent.ttl_s is None:
        faults.add("refresh_on_hit", "expected a ttl_s: every hit moves the end to that long from then")
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
        if not 0 < intent.ttl_s <= MAX_TTL_S:
            raise ValueError(
                f"expected more than 0 and at most {MAX_TTL_S:.0f} s (ten years), got {intent.ttl_s:g}"
            )
        return now + intent.ttl_s
    if intent.expires_at is None:
        return None
    at = moment(intent.expires_at)
    if not now < at <= now + MAX_TTL_S:
        raise ValueError("expected a moment in the future, within ten years")
    return at


def moment(value: float | str) -> float:
    """Unix seconds, from these or from RFC 3339. Raises ValueError."""
    if not isinstance(value, str):
        return value
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"expected RFC 3339 such as '2030-01-31T12:00:00Z', got {value[:40]!r}") from None
    if parsed.tzinfo is None:
        raise ValueError("expected a moment with an offset, such as '2030-01-31T12:00:00Z'")
    return parsed.timestamp()

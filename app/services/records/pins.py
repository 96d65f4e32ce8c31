"""Pins: prefixes that must stay cached, and how much of them is cached.

The keys of a requested pin are computed as engines cut and hash tokens. A patch of a pin keeps its keys.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from app.errors import Conflict
from app.ingest.fleet import Fleet, is_empty, unlisted_tiers
from app.schemas.base.records import written
from app.schemas.records.pins import (
    SETTINGS,
    STORED,
    PinAnswer,
    PinExtend,
    PinKeys,
    PinList,
    PinOnNode,
    PinOrigin,
    PinPut,
    PinRecord,
)
from app.services.base import checks
from app.services.base.changes import Change, Changes
from app.services.base.expiry import expiry, future, ttl
from app.services.base.fields import answer
from app.services.base.merge import check_names, converted, merge
from app.services.base.principals import PLANE, Principal
from app.services.records import ceilings
from app.services.records.chains import check_prompt, check_tokens, unpacked
from app.services.records.pin_quota import PinQuota
from app.services.records.prefixes import FoundPrefix, PrefixService
from app.services.records.progress import RecordProgress
from app.services.records.record_types import PushedType, Values, checked, columns
from app.services.records.records import RecordService
from app.services.records.tokenizers import EncodedText, Tokenizers
from app.store.base.database import Database
from app.store.records import bulk, pins
from app.store.records.pins import PinRow
from dataplane.base.units import format_size
from dataplane.protocol.control.snapshots import digest_of
from dataplane.protocol.keys import KEY_BYTES, chain
from dataplane.protocol.salts import DEFAULT_TENANT, shown
from dataplane.protocol.stats.pins import PinInTier, PinStats

PINS = PushedType(
    name="pins",
    noun="pin",
    row=PinRow,
    sortable=pins.SORTABLE,
    key="name",
    put=PinPut,
    answer=PinAnswer,
    listing=PinList,
    written=(*written(PinRecord), "origin"),
)
BODY = "body"
"""Name of the packed keys among the values of a put; they are no column."""
_SUMMED = ("resident", "bytes", "guaranteed", "degraded", "gpu_copies", "gpu_copy_bytes", "gpu_copies_wanted")
"""Fields of an answer that are sums over all nodes."""


class Pins(RecordService[PinRow, PinPut, PinAnswer]):
    """A put of an identical record changes nothing, except that a `ttl_s` moves the end."""

    kind = PINS

    def __init__(
        self,
        database: Database,
        changes: Changes,
        progress: RecordProgress,
        fleet: Fleet,
        prefixes: PrefixService,
        tokenizers: Tokenizers,
        pin_quota: PinQuota,
    ) -> None:
        super().__init__(database, changes, progress, fleet)
        self._prefixes = prefixes
        self._tokenizers = tokenizers
        self._pin_quota = pin_quota

    async def keys(self, name: str, by: Principal) -> PinKeys:
        """Return the keys of the pin, with which it can be created again. Raises Invalid, NotFound."""
        checks.pin_name(name)
        async with self._database.read() as session:
            row = self._visible(name, await session.get(PinRow, name), by)
            body = (await pins.bodies(session, [row.keys_digest]))[row.keys_digest]
        return PinKeys([body[at : at + KEY_BYTES].hex() for at in range(0, len(body), KEY_BYTES)])

    async def _columns(self, name: str, intent: PinPut, by: Principal) -> Values:
        """Return the columns and the packed keys. Raises Invalid; NodeUnreachable if a prefix is named,
        TooManyRequests if a text is given."""
        faults = checks.Faults()
        check_sources(intent, faults)
        faults.stop()
        prefix = None if intent.prefix is None else await self._prefixes.keys(intent.prefix, by, intent.tenant)
        encoded = await self._tokenizers.encoded(intent, by)
        # In a thread: hashing the most tokens takes about 10 ms.
        values, body = await asyncio.to_thread(resolve, intent, prefix, time.time(), encoded)
        return {**values, BODY: body}

    async def _patched(self, row: PinRow, patch: dict[str, Any], change: Change) -> Values:
        return patched_values(row, patch, change.now)

    async def _store(self, change: Change, key: str, row: PinRow | None, values: Values) -> PinRow:
        """Check the ceiling of the pin's tenant, and write the record and the keys of a put. Raises Forbidden; Conflict
        if the tenant has too many pins."""
        salt = values["tenant"] if row is None else values.get("tenant", row.tenant)
        await ceilings.check_pin(change, salt, None if row is None else row.selector, values)
        body = values.pop(BODY, None)
        if body is None:
            return await super()._store(change, key, row, values)
        digest = values["keys_digest"]
        old_digest = None if row is None else row.keys_digest
        size_before = await self._pin_quota.before(change.session, change.by, salt)
        await bulk.put_bodies(change.session, {digest: body}, change.now)
        row = PINS.write(change, key, row, values, owner=change.by.actor)
        if old_digest not in (None, digest):
            await bulk.drop_unused_bodies(change.session, [str(old_digest)])
        await self._pin_quota.check(change.session, change.by, salt, size_before)
        return row

    async def remove(self, change: Change, row: PinRow) -> None:
        await super().remove(change, row)
        await bulk.drop_unused_bodies(change.session, [row.keys_digest])

    async def extend(self, name: str, request: PinExtend, by: Principal, wait_s: float = 0.0) -> PinAnswer:
        """Move the end of a pin to at least `ttl_s` seconds from now. Raises Invalid, NotFound; Conflict if the pin has
        no end."""
        checks.pin_name(name)
        checks.valid("ttl_s", lambda: ttl(request.ttl_s))
        async with self._begin(by) as change:
            row = self._visible(name, await change.session.get(PinRow, name), by)
            if row.expires_at is None:
                reason = "is permanent" if row.strength == "permanent" else "has no end"
                raise Conflict(f"the pin {name!r} {reason}: there is nothing to extend")
            values = columns(row, PINS.written)
            values["expires_at"] = max(row.expires_at, change.now + request.ttl_s)
            row = await self.write(change, name, row, values)
        return await self.settled(row, wait_s, by)

    def answers(self, rows: Sequence[PinRow], by: Principal = PLANE) -> list[PinAnswer]:
        """Return records with what the nodes report about their blocks."""
        stats_by_pin: dict[str, dict[str, PinStats]] = {}
        unlisted: dict[str, set[str]] = {}
        for stats in self._fleet.stats():
            tiers = unlisted_tiers(stats)
            for pin in stats.pins:
                stats_by_pin.setdefault(pin.name, {})[stats.node] = pin
                if tiers:
                    unlisted.setdefault(pin.name, set()).update(tiers)
        now = time.time()
        return [
            self._answer(row, stats_by_pin.get(row.name, {}), unlisted.get(row.name, set()), now, by) for row in rows
        ]

    def _answer(
        self, row: PinRow, by_node: dict[str, PinStats], unlisted: set[str], now: float, by: Principal
    ) -> PinAnswer:
        pin_stats = list(by_node.values())
        expires_at, expired = _end_on_nodes(row, pin_stats, now)
        all_empty = not expired and bool(pin_stats) and all(map(is_empty, pin_stats))
        return PinAnswer(
            **{
                **PINS.described(row),
                "expires_at": expires_at,
                "owner": row.owner if by.salts is None or row.owner == by.actor else "",
                "origin": None if not row.origin else msgspec.convert(row.origin, PinOrigin),
            },
            refresh_on_hit=row.refresh_s is not None,
            ttl_s=row.refresh_s,
            **{name: sum(getattr(pin, name) for pin in pin_stats) for name in _SUMMED},
            resolved=sum(pin.resolved for pin in pin_stats) or row.key_count,
            tiers=_in_tiers(pin_stats),
            only_in_tiers=0 if expired else sum(pin.only_in_tiers for pin in pin_stats),
            not_loaded="" if expired else max((pin.not_loaded for pin in pin_stats), default=""),
            expired=expired,
            holds_nothing=all_empty and not unlisted,
            unlisted_tiers=sorted(unlisted) if all_empty else [],
            summary=_summary(row, pin_stats),
            nodes={node: answer(PinOnNode, pin) for node, pin in sorted(by_node.items())},
            status=self._status(row, by),
        )


def _summary(row: PinRow, pin_stats: Sequence[PinStats]) -> str:
    """Summarize a pin in one line. A chunk has one block for each space and node that holds it."""
    resolved, resident = sum(pin.resolved for pin in pin_stats), sum(pin.resident for pin in pin_stats)
    cached = f"{resident} resident" if resolved in (0, row.key_count) else f"{resident} of {resolved} blocks resident"
    chunks = "1 chunk" if row.key_count == 1 else f"{row.key_count} chunks"
    on_gpus = f", {sum(pin.gpu_copies for pin in pin_stats)} GPU copies" if row.tier == "gpu" else ""
    in_tiers = "".join(f", {stats.blocks} in {name}" for name, stats in _in_tiers(pin_stats).items())
    return f"resolved {chunks}, {cached}, {format_size(sum(pin.bytes for pin in pin_stats))}{on_gpus}{in_tiers}"


def _in_tiers(pin_stats: Iterable[PinStats]) -> dict[str, PinInTier]:
    """Return what tiers of the same name hold of a pin on all nodes together."""
    total: dict[str, PinInTier] = {}
    for pin in pin_stats:
        for name, stats in pin.tiers.items():
            of_tier = total.setdefault(name, PinInTier())
            of_tier.blocks += stats.blocks
            of_tier.bytes += stats.bytes
            of_tier.guaranteed += stats.guaranteed
    return dict(sorted(total.items()))


def _end_on_nodes(row: PinRow, pin_stats: list[PinStats], now: float) -> tuple[float | None, bool]:
    """Return the end of the pin, and whether it has ended. If hits extend the pin, nodes know a later end than the
    record."""
    if row.expires_at is None or row.refresh_s is None:
        return row.expires_at, row.expires_at is not None and row.expires_at <= now
    end = max([row.expires_at, *(pin.expires_at for pin in pin_stats if pin.expires_at is not None)])
    return end, end <= now and all(pin.expired for pin in pin_stats)


# ---- the rules of one pin


def resolve(
    intent: PinPut, prefix: FoundPrefix | None, now: float, encoded: EncodedText | None = None
) -> tuple[Values, bytes]:
    """Return the columns of the checked intent besides its name, and the packed keys, first chunk first. `prefix` is
    the prefix that nodes have under the label; `encoded` holds the tokens of the intent's text. Raises Invalid with
    every fault found. Takes about 10 ms for the largest pin."""
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
    return values, body


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
    check_prompt(intent.add_generation_prompt, intent.messages, faults)


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

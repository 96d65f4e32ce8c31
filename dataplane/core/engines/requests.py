"""Records of requests: what each got from the cache, and why the first missing tokens were missing.

Engines report a request once, when they schedule it; look-ups cost nothing for it. Gateways keep the records of the
look-ups that they answer. The records are bounded, and live in this process: a restart forgets them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping

from dataplane.core.engines.engines import Engine
from dataplane.core.pool.pool import Pool
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.requests import MAX_FOUND_REQUESTS, MAX_REQUEST_ID_CHARACTERS, RequestRecord
from dataplane.protocol.engine import ReportRequest, RequestReported
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.misses import ENGINE_REASONS, SOURCES
from dataplane.protocol.salts import check_salt
from dataplane.protocol.spaces import Space
from dataplane.protocol.states import State

MAX_RECORDS = 4096
"""Number of requests that are remembered, at most: about 4 MiB."""
MAX_TOKENS = (1 << 40) - 1
MAX_COMPARED_SPACES = 64
"""Largest number of other spaces of a model in which a missing block is looked for."""
_DIFFERENCES = ("revision", "dtype", "layout", "world_size", "kv_group", "pipeline_stage", "rank", "gateway")
"""Fields of spaces that differ, the one that explains most first."""
MissFinding = tuple[str, str, float]
"""Reason, cause and time of `RequestReported`."""


class RequestRecords:
    """The last requests that engines reported."""

    def __init__(self, pool: Pool, max_records: int = MAX_RECORDS) -> None:
        self._pool = pool
        self._max_records = max_records
        self._records: OrderedDict[tuple[int, str], RequestRecord] = OrderedDict()
        """By client and id of the request, oldest first."""

    def report(self, engine: Engine, message: ReportRequest, now: float) -> RequestReported:
        """Keep the record of a request, count what it missed, and return why. Raise ProtocolError."""
        _check(message)
        reason, cause, at = message.reason, "", 0.0
        if not reason and message.key:
            reason, cause, at = self.why_missing(engine.spaces, message.key, message.bare_key)
        record = RequestRecord(
            request=message.request,
            tenant=message.tenant,
            engine=engine.name,
            model=engine.space_list[0].model if engine.space_list else "",
            at=now,
            prompt_tokens=message.prompt_tokens,
            engine_tokens=message.engine_tokens,
            loaded_tokens=message.loaded_tokens,
            missed_tokens=message.missed_tokens,
            reason=reason,
            cause=cause,
            cause_at=at,
        )
        self.keep(engine.client, record)
        return RequestReported(message.id, reason, cause, at)

    def keep(self, client: int, record: RequestRecord) -> None:
        """Keep a record in place of an earlier one of the same request of a client, and count what it missed."""
        name = client, record.request
        before = self._records.pop(name, None)
        missed = record.missed_tokens if before is None else record.missed_tokens - before.missed_tokens
        if record.reason and missed > 0:
            self._pool.tenants.get(record.tenant).miss(record.reason, missed)
        self._records[name] = record
        if len(self._records) > self._max_records:
            self._records.popitem(last=False)

    def find(self, request: str) -> list[RequestRecord]:
        """Return the records of a request, newest first: those with this id, and with ids that continue it after a `-`.
        vLLM computes a request with several answers (`n`) as several, with a number and `_` before the id. Raise
        ProtocolError."""
        _check_id(request)
        longer = f"{request}-"
        matches = [
            record
            for (_, name), record in reversed(self._records.items())
            if any(each == request or each.startswith(longer) for each in _names(name))
        ]
        return matches[:MAX_FOUND_REQUESTS]

    def why_missing(self, spaces: Collection[int], key: bytes, bare_key: bytes = b"") -> MissFinding:
        """Return why a block is missing in one of the spaces of an engine. `bare_key` as in `ReportRequest`."""
        being_stored = False
        for number in spaces:
            block = self._pool.table.find(pack_keys(key), number)[0]
            if block is not None and block.state in (State.READY, State.RESERVED, State.EVICTING):
                if self._pool.invalid(block):
                    return "invalidated", "invalidated", self._pool.usage.now
                being_stored = True
                continue
            return self._why_missing_in(number, spaces, key, bare_key)
        return ("being_stored" if being_stored else "never_stored"), "", 0.0

    def _why_missing_in(self, number: int, spaces: Collection[int], key: bytes, bare_key: bytes) -> MissFinding:
        pool = self._pool
        is_served = None if pool.tiers is None else pool.tiers.is_served(key, number)
        if is_served is not None:
            return "tier_late" if is_served else "tier_away", "", 0.0
        removal = pool.removals.of(key, number)
        if removal is not None:
            return removal
        own_space = pool.spaces.by_number.get(number)
        if own_space is None:  # the core forgets empty spaces
            return "never_stored", "", 0.0
        other_spaces = [space for space in pool.spaces.of_model(own_space.model) if space not in spaces]
        for other_number in other_spaces[-MAX_COMPARED_SPACES:]:
            block = pool.table.find(pack_keys(key), other_number)[0]
            if block is not None and block.state is State.READY:
                return "other_space", _difference(own_space, pool.spaces.by_number[other_number]), 0.0
        if bare_key:
            block = pool.table.find(pack_keys(bare_key), number)[0]
            if block is not None and block.state is State.READY:
                return "other_space", "adapter", 0.0
        return "never_stored", "", 0.0


def _names(name: str) -> tuple[str, ...]:
    """Return an engine's name of a request, and the one without the number of an answer if it has such a number."""
    number, _, parent = name.partition("_")
    return (name, parent) if parent and number.isdecimal() else (name,)


def _difference(own_space: Space, other_space: Space) -> str:
    """Return the fields in which two spaces of a model differ."""
    return ", ".join(name for name in _DIFFERENCES if getattr(own_space, name) != getattr(other_space, name))


def _check(message: ReportRequest) -> None:
    """Raise ProtocolError for a wrong report."""
    _check_id(message.request)
    check_salt(message.tenant)
    if message.reason and message.reason not in ENGINE_REASONS:
        raise ProtocolError(
            Code.BAD_FIELD, f"expected one of {', '.join(ENGINE_REASONS)}, got {message.reason[:64]!r}", "reason"
        )
    for name in ("key", "bare_key"):
        if len(getattr(message, name)) not in (0, KEY_BYTES):
            raise ProtocolError(Code.BAD_KEYS, f"expected {KEY_BYTES} bytes or none", name)
    if not message.loaded_tokens.keys() <= set(SOURCES):
        raise ProtocolError(Code.BAD_FIELD, f"expected only {', '.join(SOURCES)}", "loaded_tokens")
    counts: Mapping[str, int] = {
        "prompt_tokens": message.prompt_tokens,
        "engine_tokens": message.engine_tokens,
        "missed_tokens": message.missed_tokens,
        **{f"loaded_tokens.{source}": tokens for source, tokens in message.loaded_tokens.items()},
    }
    for name, tokens in counts.items():
        if not 0 <= tokens <= MAX_TOKENS:
            raise ProtocolError(Code.BAD_FIELD, f"expected 0 to {MAX_TOKENS}, got {tokens}", name)


def _check_id(request: str) -> None:
    if not 1 <= len(request) <= MAX_REQUEST_ID_CHARACTERS:
        raise ProtocolError(
            Code.BAD_FIELD, f"expected 1 to {MAX_REQUEST_ID_CHARACTERS} characters, got {len(request)}", "request"
        )

"""What requests got from the cache: reported to the data plane, which finds out why tokens are missing, and returned to
clients in `kv_transfer_params`.

Nothing here waits. The data plane's answer arrives while the request is computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from dataplane.client.client import Client
from dataplane.protocol.control.requests import MAX_REQUEST_ID_CHARACTERS
from dataplane.protocol.engine import ReportRequest, RequestReported
from dataplane.protocol.misses import SOURCES

MAX_UNSENT = 256
"""Reports that are kept while there is no data plane. Further ones replace the oldest."""


@dataclass(slots=True, kw_only=True)
class RequestOutcome:
    """What one request got."""

    request: str
    tenant: str
    prompt_tokens: int
    engine_tokens: int
    """Tokens that the engine's own prefix cache had."""
    loaded_tokens: dict[str, int]
    """Tokens that are loaded, by where they were: keys of `SOURCES`."""
    missed_tokens: int
    """Tokens that are computed although a cache could have had them."""
    reason: str
    """Why the first of these is missing, of `MISS_REASONS`; empty if none is missing, or it is not known."""
    cause: str = ""
    """As in `RequestReported`."""
    cause_at: float = 0.0
    pending: bool = False
    """Whether an answer of the data plane is to arrive."""

    def take(self, answer: RequestReported) -> None:
        """Take the data plane's answer, unless the load has failed meanwhile."""
        self.pending = False
        if not self.reason:
            self.reason, self.cause, self.cause_at = answer.reason, answer.cause, answer.at

    def span_attributes(self) -> dict[str, Any]:
        """Return the outcome as attributes of a span."""
        return {
            "gen_ai.usage.input_tokens": self.prompt_tokens,
            "larder.missed_tokens": self.missed_tokens,
            "larder.miss_reason": self.reason,
            **{f"larder.loaded_tokens.{source}": tokens for source, tokens in self.loaded_tokens.items()},
        }


def by_source(sources: Mapping[int, str], first: int, end: int, chunk_tokens: int) -> dict[str, int]:
    """Return how many of the tokens from `first` to before `end` were where. `sources` are places of chunks by
    position; all other chunks were in memory."""
    counts = dict.fromkeys(SOURCES, 0)
    counts[SOURCES[0]] = max(0, end - first)
    for position, source in sources.items():
        tokens = min(end, (position + 1) * chunk_tokens) - max(first, position * chunk_tokens)
        if tokens > 0:
            counts[SOURCES[0]] -= tokens
            counts[source] += tokens
    return {source: tokens for source, tokens in counts.items() if tokens}


class RequestReports:
    """Reports of one engine."""

    def __init__(self) -> None:
        self._unsent: deque[tuple[RequestOutcome, bytes, bytes]] = deque(maxlen=MAX_UNSENT)
        """RequestReports with the keys of their first missing block, oldest first."""

    def report(self, client: Client | None, outcome: RequestOutcome, key: bytes = b"", bare_key: bytes = b"") -> None:
        """Report an outcome, now or when there is a data plane. `key` and `bare_key`: as in `ReportRequest`."""
        self._unsent.append((outcome, key, bare_key))
        while client is not None and self._unsent:
            if not client.report_request(partial(_message, *self._unsent[0]), self._unsent[0][0].take):
                return
            self._unsent.popleft()[0].pending = True

    def load_failed(self, client: Client | None, outcome: RequestOutcome, sources: dict[str, int], tokens: int) -> None:
        """Note that the last `tokens` tokens of a load did not arrive, and report the outcome again. `sources`: where
        those were that arrived."""
        outcome.loaded_tokens = sources
        outcome.missed_tokens += tokens
        outcome.reason, outcome.cause, outcome.cause_at = "load_failed", "", 0.0
        self.report(client, outcome)

    def fields(self, client: Client | None, outcome: RequestOutcome) -> dict[str, Any] | None:
        """Return the fields of a finished request's response; None if nothing was loaded and nothing missed."""
        if outcome.pending and client is not None:
            client.receive()
        loaded_tokens = sum(outcome.loaded_tokens.values())
        if not loaded_tokens and not outcome.missed_tokens:
            return None
        fields: dict[str, Any] = {"loaded_tokens": loaded_tokens, "missed_tokens": outcome.missed_tokens}
        if loaded_tokens:
            fields["loaded_from"] = outcome.loaded_tokens
        if outcome.missed_tokens:
            fields["reason"] = outcome.reason or "not_known"
        if outcome.cause:
            fields["cause"] = outcome.cause
        if outcome.cause_at:
            fields["cause_at"] = outcome.cause_at
        return {"larder": fields}


def _message(outcome: RequestOutcome, key: bytes, bare_key: bytes, number: int) -> ReportRequest:
    return ReportRequest(
        id=number,
        request=outcome.request[:MAX_REQUEST_ID_CHARACTERS],
        tenant=outcome.tenant,
        prompt_tokens=outcome.prompt_tokens,
        engine_tokens=outcome.engine_tokens,
        loaded_tokens=outcome.loaded_tokens,
        missed_tokens=outcome.missed_tokens,
        reason=outcome.reason,
        key=key,
        bare_key=bare_key,
    )

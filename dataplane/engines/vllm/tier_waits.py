"""Requests that wait for blocks that are about to be in Larder's memory: from tiers behind it, and those that an engine
is writing, such as the prefill engine that has just answered the same prompt.

Whether a shared tier holds blocks of other nodes is not known until the tier was asked. A request first waits for the
answer, and then for the blocks, if loading them is expected to be faster than computing them.

A request waits at most once, before its first answer to vLLM: at most `larder.tier_timeout_s`, and not much longer than
the computation of the tokens takes. Nothing here blocks: vLLM asks again in each of its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dataplane.client.client import Client
from dataplane.client.leases import Lease
from dataplane.client.tiers import TierHits
from dataplane.engines.vllm.rates import BreakEven
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST
from dataplane.protocol.misses import SOURCES

LOOK_AGAIN_S = 0.005
"""Shortest time between two look-ups of a request that waits. An idle vLLM asks about every millisecond."""

Tokens = Callable[[int], int]
"""Number of tokens that a request could load if this number of its leading chunks were in memory."""


class LookupResult(NamedTuple):
    """The result of a look-up that need not be repeated."""

    hits: int
    """Leading chunks that are in memory."""
    sources: Mapping[int, str]
    """Those of them that tiers held when the request was first looked up, by position, with the place of their tier:
    one of `SOURCES`. The others were in memory."""
    reason: str = ""
    """Why the request did not wait for the next chunk, of `ENGINE_REASONS`; empty if no tier was known to hold it."""


@dataclass(slots=True)
class TierWait:
    """The wait of one request."""

    ready: int
    """Leading chunks that were in memory when the wait began."""
    keys: list[bytes]
    """Keys to prefetch: those of the chunks that tiers hold, after the last one in memory. None if engines are writing
    all chunks of the wait."""
    target: int
    """Leading chunks that are in memory when the prefetch and the writing have ended."""
    began: float
    deadline: float
    look_at: float
    lease: Lease | None = None
    """Of what is in memory, so that it is not evicted for what is loaded."""
    requested_spaces: int = 0
    """Spaces of the client in which the blocks were asked for."""
    asking: bool = False
    """Whether shared tiers have not reported yet what they hold."""
    requested: range = range(0)
    """Chunks that shared tiers were asked for. They may be in memory before a look-up has seen the answer."""
    sources: dict[int, str] = field(default_factory=dict)
    """As in `LookupResult`, of all chunks that tiers were seen to hold."""

    def see(self, hits: TierHits) -> None:
        """Note which chunks tiers hold."""
        self.sources.update((hits.ready + at, SOURCES[source]) for at, source in enumerate(hits.sources))


class TierWaits:
    """All waits of an engine, by request."""

    def __init__(
        self, timeout_s: float, break_even: BreakEven, clock: Callable[[], float], count: Callable[[str, float], None]
    ) -> None:
        """`timeout_s`: longest wait; with 0 no request waits. `count` adds to a counter of the connector."""
        self._timeout_s = timeout_s
        self._break_even = break_even
        self._clock = clock
        self._count = count
        self._waits: dict[str, TierWait] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def looked_up_lately(self, name: str) -> bool:
        """Return whether a request waits and need not be looked up again yet."""
        wait = self._waits.get(name)
        return wait is not None and self._clock() < wait.look_at

    def look_up(
        self, client: Client, name: str, keys: Sequence[bytes], tokens: Tokens, *, tenant: str, may_wait: bool
    ) -> LookupResult | None:
        """Return how many leading chunks of a request are in memory; None if the request should wait for more."""
        if not may_wait or not self._timeout_s:
            return LookupResult(client.lookup(keys, tenant=tenant, counted=False), {})
        hits = client.lookup_tiers(keys, tenant=tenant, counted=False)
        now = self._clock()
        wait = self._waits.get(name)
        if wait is not None:
            wait.see(hits)
        if wait is None:
            wait = self._begin(keys, hits, tokens, now)
            if wait is None:
                late = hits.estimate_s > self._timeout_s
                gains_tokens = tokens(hits.ready + hits.coming) > tokens(hits.ready)
                return LookupResult(
                    hits.ready, {}, ("tier_late" if late else "recompute_faster") if gains_tokens else ""
                )
            self._waits[name] = wait
            wait.lease = client.hold(keys[: wait.target])
            self._count("tier_waits", 1)
            wait.see(hits)
        elif wait.asking:
            is_answered = now >= wait.deadline or not hits.unknown
            if is_answered and not self._go_on(wait, hits, tokens, now):
                return self._end(name, hits, tokens, now)
        elif tokens(hits.ready) >= tokens(wait.target):
            return self._end(name, hits, tokens, now)
        elif not (hits.coming or hits.writing) or now >= wait.deadline:
            self._count("tier_waits_given_up", 1)
            return self._end(name, hits, tokens, now)
        if wait.keys and wait.requested_spaces < client.spaces:  # there may have been no room: try until the deadline
            wait.requested_spaces = client.prefetch(
                wait.keys, wait_s=self._timeout_s, first_space=wait.requested_spaces
            )
        wait.look_at = min(now + LOOK_AGAIN_S, wait.deadline)
        return None

    def _begin(self, keys: Sequence[bytes], hits: TierHits, tokens: Tokens, now: float) -> TierWait | None:
        """Return a wait for the chunks after those in memory that tiers hold, or may hold, and that engines write; None
        if computing them is expected to be faster, or if the wait would take too long."""
        first = max(0, hits.ready - 1)  # a block is stored with the key of the one before
        end = min(hits.ready + hits.coming + hits.unknown, first + MAX_KEYS_PER_REQUEST)
        asking = hits.ready + hits.coming < end
        prefetched = list(keys[first:end]) if end > hits.ready else []
        target = max(end, hits.ready + hits.writing)
        if not (asking and tokens(end) > tokens(hits.ready)) and not self._is_worth_it(hits, target, tokens, now):
            return None
        requested = range(hits.ready + max(hits.coming, hits.writing), end)
        deadline = now + self._limit_s(hits.ready, target, tokens)
        return TierWait(hits.ready, prefetched, target, now, deadline, now, asking=asking, requested=requested)

    def _limit_s(self, ready: int, target: int, tokens: Tokens) -> float:
        """Return the longest wait from `ready` to `target` chunks in memory."""
        return min(self._timeout_s, self._break_even.limit_s(tokens(target) - tokens(ready)))

    def _is_worth_it(self, hits: TierHits, target: int, tokens: Tokens, now: float) -> bool:
        """Return whether to wait until `target` chunks are in memory."""
        gained_tokens = tokens(target) - tokens(hits.ready)
        if gained_tokens <= 0 or hits.estimate_s > self._timeout_s:
            return False
        return self._break_even.worth_waiting(tokens(target), gained_tokens, hits.estimate_s, now)

    def _go_on(self, wait: TierWait, hits: TierHits, tokens: Tokens, now: float) -> bool:
        """Take the answer of shared tiers. Return whether the wait continues, for the chunks that they hold."""
        wait.asking = False
        wait.target = min(wait.target, hits.ready + max(hits.coming, hits.writing))
        wait.deadline = wait.began + self._limit_s(wait.ready, wait.target, tokens)
        if now < wait.deadline and self._is_worth_it(hits, wait.target, tokens, now):
            return True
        if tokens(hits.ready) < tokens(wait.target):
            self._count("tier_waits_given_up", 1)
        return False

    def _end(self, name: str, hits: TierHits, tokens: Tokens, now: float) -> LookupResult:
        wait = self._waits.pop(name)
        self._count("tier_tokens", max(0, tokens(hits.ready) - tokens(wait.ready)))
        self._count("tier_wait_seconds", now - wait.began)
        for position in wait.requested:
            if position < hits.ready:
                wait.sources.setdefault(position, SOURCES[-1])
        reason = ""
        if tokens(hits.ready + hits.coming) > tokens(hits.ready):
            reason = "tier_late" if now >= wait.deadline else "recompute_faster"
        return LookupResult(hits.ready, wait.sources, reason)

    def forget(self, client: Client | None, name: str) -> None:
        """Forget a request, and cancel the loads that it waits for and that have not begun."""
        wait = self._waits.pop(name, None)
        if wait is not None and wait.requested_spaces and client is not None:
            client.cancel_prefetch(wait.keys)

    def clear(self, client: Client | None) -> None:
        """Forget all requests, and cancel their loads."""
        for name in list(self._waits):
            self.forget(client, name)

"""Spans of the data plane: requests of engines and gateway clients, batches of evictions, and batches that are copied
to tiers or loaded from them. None is per block."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dataplane.base import tracing
from dataplane.base.tracing import Attribute
from dataplane.protocol.engine import Commit, LeaseRequest, Prefetch, Reserve, Traced
from dataplane.protocol.events import BlocksEvicted, Event
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.salts import shown
from dataplane.protocol.stats.pool import Totals

MAX_SPANS_PER_S = 10
"""Spans per second of one gateway operation, of evictions for one reason, and of batches in one direction: their traces
begin here, so no caller has decided which of them are sampled."""


class SpanSampler:
    """Limits the spans of each name per second."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[int, int]] = {}
        """For each name: the current second, and the spans that were made in it."""

    def takes(self, name: str) -> bool:
        """Return whether a span of this name may be made now, and count it."""
        second = int(time.monotonic())
        at, count = self._made.get(name, (second, 0))
        if at != second:
            count = 0
        self._made[name] = (second, count + 1)
        return count < MAX_SPANS_PER_S


@dataclass
class _Batch:
    """Evictions for one reason since the last flush."""

    began: float
    ended: float
    blocks: int = 0
    bytes: int = 0


class RequestSpans:
    """Makes the spans of one data plane, and links evictions to the requests that caused them."""

    def __init__(self) -> None:
        self._sampler = SpanSampler()
        self._causes: deque[str] = deque(maxlen=tracing.MAX_LINKS)
        self._batches: dict[str, _Batch] = {}

    @contextmanager
    def engine_request(self, traced: Traced, totals: Totals) -> Iterator[None]:
        """Run the work for an engine's request in a span of the engine's trace."""
        request, before = traced.request, totals.evicted_blocks
        attributes: dict[str, Attribute] = {}
        if isinstance(request, (Reserve, LeaseRequest, Prefetch)):
            attributes["larder.blocks"] = len(request.keys) // KEY_BYTES
        if isinstance(request, Reserve):
            attributes["larder.tenant"] = shown(request.tenant)
            attributes["larder.block_bytes"] = request.nbytes
        if isinstance(request, Commit):
            attributes["larder.reservation"] = request.reservation
        tag = "reserve" if isinstance(request, Reserve) else request.__struct_config__.tag
        name = f"engine.{tag}"
        with tracing.span(name, parent=traced.traceparent, kind="server", attributes=attributes) as span:
            yield
            evicted = totals.evicted_blocks - before
            if evicted:
                span.set({"larder.evicted_blocks": evicted})
                self._causes.append(span.traceparent)

    def gateway_request(self, operation: str, seconds: float, evicted: int) -> None:
        """Record an operation of a gateway that was answered just now, unless too many of the same operation were
        recorded in this second."""
        name = f"lmcache.{operation}"
        if not self._sampler.takes(name):
            return
        now = time.time()
        attributes: dict[str, Attribute] = {"larder.evicted_blocks": evicted} if evicted else {}
        span = tracing.past(name, now - seconds, now, kind="server", attributes=attributes)
        if evicted:
            self._causes.append(span)

    def __call__(self, event: Event) -> None:
        """Collect evictions; a subscriber of the bus."""
        if isinstance(event, BlocksEvicted):
            batch = self._batches.get(event.reason)
            if batch is None:
                batch = self._batches[event.reason] = _Batch(event.at, event.at)
            batch.ended = event.at
            batch.blocks += event.blocks
            batch.bytes += event.bytes

    def flush(self) -> None:
        """Record one span for the evictions of each reason since the last call."""
        for reason, batch in self._batches.items():
            if self._sampler.takes(f"evict.{reason}"):
                tracing.past(
                    "evict",
                    batch.began,
                    batch.ended,
                    links=tuple(self._causes) if reason in ("room", "index") else (),
                    attributes={"larder.reason": reason, "larder.blocks": batch.blocks, "larder.bytes": batch.bytes},
                )
        self._batches.clear()
        self._causes.clear()


@dataclass(frozen=True)
class MovedBatch:
    """Blocks that are being copied to a tier, or loaded from it, in one call."""

    name: str
    began: float
    causes: Sequence[str]
    attributes: Mapping[str, Attribute]


class BatchSpans:
    """Makes spans of batches that move between memory and tiers, linked to the requests since no batch was under
    way."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sampler = SpanSampler()
        self._causes: deque[str] = deque(maxlen=tracing.MAX_LINKS)
        self._under_way = 0

    def note_cause(self) -> None:
        """Note that the current span made work for tiers."""
        cause = tracing.traceparent()
        if cause and cause not in self._causes:
            self._causes.append(cause)

    def begin(self, name: str, tier: str, blocks: int, nbytes: int) -> MovedBatch | None:
        """Note that a batch begins; None while tracing is off."""
        if not tracing.on():
            return None
        self._under_way += 1
        attributes: dict[str, Attribute] = {"larder.tier": tier, "larder.blocks": blocks, "larder.bytes": nbytes}
        return MovedBatch(name, self._clock(), tuple(self._causes), attributes)

    def end(self, batch: MovedBatch | None, failed: int) -> None:
        """Record the span of a batch that has ended. `failed`: number of blocks that were not moved."""
        if batch is None:
            return
        self._under_way -= 1
        if self._sampler.takes(batch.name):
            attributes = {**batch.attributes, "larder.failed_blocks": failed}
            tracing.past(batch.name, batch.began, self._clock(), links=batch.causes, attributes=attributes)

    def settle(self) -> None:
        """Forget the requests if no batch is under way."""
        if not self._under_way:
            self._causes.clear()

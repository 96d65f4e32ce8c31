"""Spans of the data plane: requests of engines and gateway clients, and batches of evictions. None is per block."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dataplane.base import tracing
from dataplane.base.tracing import Attribute
from dataplane.protocol.engine import Commit, LeaseRequest, LoadInto, Reserve, StoreFrom, Traced
from dataplane.protocol.events import BlocksEvicted, Event
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.salts import shown
from dataplane.protocol.stats.pool import Totals

MAX_SPANS_PER_S = 10
"""Spans per second of one gateway operation, and of evictions for one reason: their traces begin here, so no caller
has decided which of them are sampled."""


@dataclass
class _Batch:
    """Evictions for one reason since the last flush."""

    began: float
    ended: float
    blocks: int = 0
    bytes: int = 0


class RequestSpans:
    """Makes the spans of one data plane, and links evictions to the requests that caused them."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._made: dict[str, tuple[int, int]] = {}
        """For each name of a sampled span: the current second, and the spans that were made in it."""
        self._causes: deque[str] = deque(maxlen=tracing.MAX_LINKS)
        self._batches: dict[str, _Batch] = {}

    @contextmanager
    def engine_request(self, traced: Traced, totals: Totals) -> Iterator[None]:
        """Run the work for an engine's request in a span of the engine's trace."""
        request, before = traced.request, totals.evicted_blocks
        attributes: dict[str, Attribute] = {}
        if isinstance(request, (Reserve, StoreFrom, LoadInto, LeaseRequest)):
            attributes["larder.blocks"] = len(request.keys) // KEY_BYTES
        if isinstance(request, (Reserve, StoreFrom)):
            attributes["larder.tenant"] = shown(request.tenant)
        if isinstance(request, Reserve):
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

    def gateway_request(self, operation: str, seconds: float, evicted: int = 0) -> None:
        """Record an operation of a gateway that was answered just now, unless too many of the same operation were
        recorded in this second."""
        name = f"lmcache.{operation}"
        if not self._sampled(name):
            return
        now = time.time()
        attributes: dict[str, Attribute] = {"larder.evicted_blocks": evicted} if evicted else {}
        made = tracing.past(name, now - seconds, now, kind="server", attributes=attributes)
        if evicted:
            self._causes.append(made)

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
            if self._sampled(f"evict.{reason}"):
                tracing.past(
                    "evict",
                    batch.began,
                    batch.ended,
                    links=tuple(self._causes) if reason in ("room", "index") else (),
                    attributes={
                        "larder.reason": reason,
                        "larder.blocks": batch.blocks,
                        "larder.bytes": batch.bytes,
                    },
                )
        self._batches.clear()
        self._causes.clear()

    def _sampled(self, name: str) -> bool:
        second = int(self._monotonic())
        at, made = self._made.get(name, (second, 0))
        if at != second:
            made = 0
        self._made[name] = (second, made + 1)
        return made < MAX_SPANS_PER_S

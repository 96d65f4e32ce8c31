"""A client whose calls are OpenTelemetry spans. `attach` makes one only if the process traces, so that any
other client does nothing for tracing.

It needs only the OpenTelemetry API: the engine chooses the SDK, sampler and exporter. The data plane's work for a
request becomes a span of the same trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry import trace

from dataplane.base.spans import SpanMaker
from dataplane.base.tracing import Attribute, Span
from dataplane.client.client import Client, Keys
from dataplane.client.copies import Buffer
from dataplane.client.leases import Lease
from dataplane.client.reservations import CommitResult, Reservation

_maker = SpanMaker(trace.get_tracer("larder.client"))


def traceparent() -> str:
    """Return the current span as a W3C traceparent."""
    return _maker.traceparent()


class TracedClient(Client):
    """A client whose calls are spans: children of the current span."""

    def request(self, traceparent: str = "", name: str = "larder.request") -> AbstractContextManager[Span]:
        return _maker.span(name, traceparent, (), "internal", {})

    def lookup(self, *arguments: Any, **options: Any) -> int:
        with _span("larder.lookup") as span:
            hits = super().lookup(*arguments, **options)
            span.set({"larder.hits": hits})
            return hits

    def acquire(self, *arguments: Any, **options: Any) -> Lease:
        with _span("larder.acquire") as span:
            lease = super().acquire(*arguments, **options)
            span.set({"larder.hits": len(lease)})
            return lease

    def _new_lease(self) -> Lease:
        return TracedLease()

    def reserve(self, keys: Keys, nbytes: int, **options: Any) -> Reservation:
        with _span("larder.reserve", {"larder.block_bytes": nbytes}) as span:
            reservation = super().reserve(keys, nbytes, **options)
            span.set({"larder.writable": len(reservation.writable)})
            refused = reservation.refused
            if refused:
                span.set({"larder.refused": sum(refused.values())})
                span.failed(", ".join(code.name.lower() for code in refused))
            return reservation

    def _new_reservation(self, keys: int, nbytes: int) -> Reservation:
        return TracedReservation(keys, nbytes, self._link, self._memory, checksums=self._checksums)


class TracedLease(Lease):
    """A lease whose copies are spans."""

    def copy_to(self, buffer: Buffer, first: int = 0, count: int | None = None, space: int = 0) -> int:
        with _span("larder.copy") as span:
            copied = super().copy_to(buffer, first, count, space)
            span.set({"larder.bytes": copied})
            return copied


class TracedReservation(Reservation):
    """A reservation whose copy and end are spans. Their parent is the span that reserved, unless another one is
    current."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reserved_in = traceparent()

    def copy_from(self, buffer: bytes | Buffer) -> int:
        with self._span("larder.copy") as span:
            copied = super().copy_from(buffer)
            span.set({"larder.bytes": copied})
            return copied

    def commit(self, positions: Sequence[int] | None = None, checksums: Sequence[bytes] | None = None) -> CommitResult:
        with self._span("larder.commit") as span:
            result = super().commit(positions, checksums)
            span.set({"larder.blocks": result.blocks})
            if result.code is not None:
                span.failed(result.code.name.lower())
            return result

    def abort(self) -> None:
        if not self.number:  # also at the end of each `with` block after a commit
            super().abort()
            return
        with self._span("larder.abort"):
            super().abort()

    def _span(self, name: str) -> AbstractContextManager[Span]:
        parent = "" if traceparent() else self._reserved_in
        return _maker.span(name, parent, (), "internal", {})


def _span(name: str, attributes: dict[str, Attribute] | None = None) -> AbstractContextManager[Span]:
    return _maker.span(name, "", (), "client", attributes or {})

"""Spans through the OpenTelemetry API: nothing happens unless the process is started with an SDK."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.propagate import inject

_SCOPE = "larder.app"


@contextmanager
def span(name: str, **attributes: str | int | float | bool) -> Iterator[trace.Span]:
    """A span around a block of work; an exception marks it as failed."""
    with trace.get_tracer(_SCOPE).start_as_current_span(name, attributes=attributes) as current:
        yield current


def traceparent() -> str:
    """The current span as a W3C traceparent, empty when there is none."""
    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier.get("traceparent", "")

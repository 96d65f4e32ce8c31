"""Spans through the OpenTelemetry API. They have no effect unless the process runs with an OpenTelemetry SDK."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.propagate import inject

_SCOPE = "larder.app"


@contextmanager
def span(name: str, **attributes: str | int | float | bool) -> Iterator[trace.Span]:
    """Run a block of work in a span. An exception marks the span as failed."""
    with trace.get_tracer(_SCOPE).start_as_current_span(name, attributes=attributes) as current:
        yield current


def traceparent() -> str:
    """Return the current span as a W3C traceparent; empty without a span."""
    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier.get("traceparent", "")

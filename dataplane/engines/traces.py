"""The trace of an engine's request, which connectors continue if the engine hands it over."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from dataplane.base.tracing import IDS, NO_SPAN, Span, trace_id_of
from dataplane.client.client import Client


def traceparent_of(headers: object) -> str:
    """Return the W3C traceparent of a request's trace headers; empty if they have none that is valid."""
    header = headers.get("traceparent") if headers and isinstance(headers, Mapping) else None
    return header[:IDS] if isinstance(header, str) and trace_id_of(header) else ""


def continued(client: Client, traceparent: str, name: str) -> AbstractContextManager[Span]:
    """Run a block of work in a span of the request's trace. Does nothing without a traceparent, or if the process does
    not trace."""
    return client.request(traceparent, name) if traceparent else NO_SPAN

"""Spans of this process: off until `dataplane.base.otlp.start` turns them on.

While tracing is off, every call costs one check and makes no object; OpenTelemetry is not even imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

Attribute = str | int | float | bool
Kind = Literal["internal", "server", "client", "producer", "consumer"]
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
IDS = 55
"""Characters of a traceparent without the fields of later versions."""
MAX_LINKS = 32


class Span(Protocol):
    """A span, or its stand-in while tracing is off."""

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        """Set attributes."""

    def rename(self, name: str) -> None:
        """Replace the name."""

    def failed(self, reason: str) -> None:
        """Mark the span as failed."""

    def end(self) -> None:
        """End the span before its block of work."""

    @property
    def traceparent(self) -> str:
        """The span as a W3C traceparent; empty while tracing is off."""


class Tracer(Protocol):
    """Makes spans; the implementation is in `dataplane.base.spans`."""

    def span(
        self, name: str, parent: str, links: Sequence[str], kind: Kind, attributes: Mapping[str, Attribute]
    ) -> AbstractContextManager[Span]: ...

    def past(
        self,
        name: str,
        began: float,
        ended: float,
        links: Sequence[str],
        kind: Kind,
        attributes: Mapping[str, Attribute],
    ) -> str: ...

    def outside(self) -> AbstractContextManager[None]: ...

    def recording(self) -> bool: ...

    def traceparent(self) -> str: ...


class _NoSpan:
    traceparent = ""

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        pass

    def rename(self, name: str) -> None:
        pass

    def failed(self, reason: str) -> None:
        pass

    def end(self) -> None:
        pass

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, *_: object) -> None:
        pass


NO_SPAN = _NoSpan()
_tracer: Tracer | None = None
_dropped: Callable[[], int] = int


def use(tracer: Tracer | None, dropped: Callable[[], int] = int) -> None:
    """Turn tracing on for this process; None turns it off."""
    global _tracer, _dropped
    _tracer, _dropped = tracer, dropped


def on() -> bool:
    """Return whether this process makes spans."""
    return _tracer is not None


def span(
    name: str,
    *,
    parent: str = "",
    links: Sequence[str] = (),
    kind: Kind = "internal",
    attributes: Mapping[str, Attribute] | None = None,
) -> AbstractContextManager[Span]:
    """Run a block of work in a span. The parent is the traceparent `parent`, or else the current span. An exception
    marks the span as failed."""
    if _tracer is None:
        return NO_SPAN
    return _tracer.span(name, parent, links[-MAX_LINKS:], kind, attributes or {})


def child(
    name: str, *, kind: Kind = "internal", attributes: Mapping[str, Attribute] | None = None
) -> AbstractContextManager[Span]:
    """Run a block of work in a span if a span is current and recorded, so that background work starts no traces."""
    if _tracer is None or not _tracer.recording():
        return NO_SPAN
    return _tracer.span(name, "", (), kind, attributes or {})


def past(
    name: str,
    began: float,
    ended: float,
    *,
    links: Sequence[str] = (),
    kind: Kind = "internal",
    attributes: Mapping[str, Attribute],
) -> str:
    """Record finished work as a trace of its own, and return its traceparent. `began` and `ended` are Unix
    seconds."""
    return "" if _tracer is None else _tracer.past(name, began, ended, links[-MAX_LINKS:], kind, attributes)


def outside() -> AbstractContextManager[object]:
    """Run a block of work that does not belong to the current span."""
    return NO_SPAN if _tracer is None else _tracer.outside()


def traceparent() -> str:
    """Return the current span as a W3C traceparent; empty without a span."""
    return "" if _tracer is None else _tracer.traceparent()


def recorded_trace_id() -> str:
    """Return the trace id of the current span if the span is recorded; otherwise an empty string."""
    if _tracer is None or not _tracer.recording():
        return ""
    return trace_id_of(_tracer.traceparent())


def trace_id_of(text: str) -> str:
    """Return the trace id of a W3C traceparent; empty if it is not valid."""
    match = _TRACEPARENT.match(text)
    suffix = text[match.end() :] if match is not None else ""
    # Later versions than 00 may append fields.
    valid = match is not None and (not suffix or (suffix[0] == "-" and not text.startswith("00")))
    return match[1] if match is not None and valid else ""


def ids_of(text: str) -> dict[str, str]:
    """Return the ids of a W3C traceparent as fields of a log line; none if it is not valid."""
    return {"trace_id": text[3:35], "span_id": text[36:52]} if trace_id_of(text) else {}


def spans_dropped() -> int:
    """Return the number of spans of this process that were not exported."""
    return _dropped()

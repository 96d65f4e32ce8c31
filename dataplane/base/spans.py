"""Spans through the OpenTelemetry API. Imported only by processes that trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType

from opentelemetry import context, trace
from opentelemetry.context.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dataplane.base.tracing import IDS, Attribute, Kind, trace_id_of

_KINDS: dict[Kind, trace.SpanKind] = {
    "internal": trace.SpanKind.INTERNAL,
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
}
_propagator = TraceContextTextMapPropagator()


class SpanMaker:
    """Makes spans with one tracer; see `dataplane.base.tracing` for the meaning of the arguments."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def span(
        self, name: str, parent: str, links: Sequence[str], kind: Kind, attributes: Mapping[str, Attribute]
    ) -> CurrentSpan:
        span = self._tracer.start_span(
            name,
            _extracted(parent) if parent else None,
            _KINDS[kind],
            attributes,
            _links(links),
            record_exception=False,
            set_status_on_exception=False,
        )
        return CurrentSpan(span)

    def past(
        self,
        name: str,
        began: float,
        ended: float,
        links: Sequence[str],
        kind: Kind,
        attributes: Mapping[str, Attribute],
    ) -> str:
        span = self._tracer.start_span(
            name, Context(), _KINDS[kind], attributes, _links(links), start_time=int(began * 1e9)
        )
        span.end(int(ended * 1e9))
        return _written(span.get_span_context())

    @contextmanager
    def outside(self) -> Iterator[None]:
        token = context.attach(Context())
        try:
            yield
        finally:
            context.detach(token)

    def recording(self) -> bool:
        return trace.get_current_span().is_recording()

    def traceparent(self) -> str:
        return _written(trace.get_current_span().get_span_context())


class CurrentSpan:
    """A span that is current within a `with` block and ends with it."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        if self._span.is_recording():
            self._span.set_attributes(attributes)

    def rename(self, name: str) -> None:
        if self._span.is_recording():
            self._span.update_name(name)

    def failed(self, reason: str) -> None:
        if self._span.is_recording():
            self._span.set_status(trace.StatusCode.ERROR, reason)

    def end(self) -> None:
        if self._span.is_recording():
            self._span.end()

    @property
    def traceparent(self) -> str:
        return _written(self._span.get_span_context())

    def __enter__(self) -> CurrentSpan:
        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        context.detach(self._token)
        if isinstance(error, Exception):  # the message may contain data that a client sent
            self.failed(type(error).__name__)
        self.end()


def _extracted(traceparent: str) -> Context:
    # Only the ids: for what later versions may append, the propagator takes time that is quadratic in its length.
    ids = traceparent[:IDS] if trace_id_of(traceparent) else ""
    return _propagator.extract({"traceparent": ids}, Context())


def _links(traceparents: Sequence[str]) -> list[trace.Link]:
    contexts = (trace.get_current_span(_extracted(traceparent)).get_span_context() for traceparent in traceparents)
    return [trace.Link(context) for context in contexts if context.is_valid]


def _written(context: trace.SpanContext) -> str:
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 1:02x}"

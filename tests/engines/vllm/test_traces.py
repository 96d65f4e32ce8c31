"""The connector continues the trace that vLLM hands over with a request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dataplane.base.spans import SpanMaker
from dataplane.client import traced
from tests.dataplane.plane import Plane
from tests.engines.vllm.fakes import Request
from tests.engines.vllm.sides import Make

TOKENS = list(range(1000, 1192))
TRACES = ["4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"]


def headers(trace_id: str) -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The engine's own SDK, as vLLM sets it up."""
    made = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(traced, "_maker", SpanMaker(provider.get_tracer("engine")))
    yield made
    provider.shutdown()


def names(spans: tuple[ReadableSpan, ...], trace_id: str) -> set[str]:
    return {each.name for each in spans if each.context and f"{each.context.trace_id:032x}" == trace_id}


def test_saves_and_loads_continue_the_trace_of_their_request(
    make_step: Make, plane: Plane, exporter: InMemorySpanExporter
) -> None:
    engine = make_step(plane)
    engine.compute(Request("a", TOKENS, trace_headers=headers(TRACES[0])), list(range(1, 13)), seed=7)
    again = Request("b", [*TOKENS, 5], trace_headers=headers(TRACES[1]))
    assert engine.load(again, list(range(20, 33)))[0] == len(TOKENS)
    spans = exporter.get_finished_spans()
    assert {"vllm.lookup", "vllm.save", "larder.reserve", "larder.commit"} <= names(spans, TRACES[0])
    assert {"vllm.lookup", "vllm.load", "larder.acquire"} <= names(spans, TRACES[1])
    assert len(spans) < 20, "no span is per block"


def test_without_a_trace_nothing_is_continued(make_step: Make, plane: Plane, exporter: InMemorySpanExporter) -> None:
    engine = make_step(plane)
    for at, given in enumerate((None, {}, {"traceparent": "junk"}, {"traceparent": 1}, "text")):
        engine.compute(Request(f"a{at}", [at, *TOKENS], trace_headers=given), list(range(1, 14)), seed=7)
        assert not [each for each in exporter.get_finished_spans() if each.name.startswith("vllm.")]

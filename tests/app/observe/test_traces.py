"""Traces of the real product, as a collector receives them."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from dataplane.base import otlp, tracing
from dataplane.base.otlp import Telemetry
from dataplane.base.spans import SpanMaker
from dataplane.base.tracing import NO_SPAN
from dataplane.client import Client, Space, attach, traced
from dataplane.protocol.keys import chain
from tests.app.up import Up, until
from tests.free_port import free_port
from tests.lmcache.client import Client as Worker
from tests.lmcache.planes import gateway_plane, url_of
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan, misbehaving_collector, otlp_receiver, silent_collector

APP, NODE = "larder-management-plane", "larder-data-plane"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
LOADING = PARENT.replace(TRACE, TRACE[::-1])


@contextmanager
def traced_up(folder: Path, **environ: str) -> Iterator[Up]:
    with Up(folder, **{"OTEL_BSP_SCHEDULE_DELAY": "100", **environ}) as up:
        up.until_ready()
        yield up


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as made:
        yield made


def put_quota(up: Up, traceparent: str = "", *, changes: bool = False, wait_s: int = 30, **body: Any) -> httpx.Response:
    headers = {"if-match": "*"} if changes else {}
    if traceparent:
        headers["traceparent"] = traceparent
    return httpx.put(
        f"{up.url}/api/v1/quotas/acme?wait={wait_s}",
        json={"limit_bytes": 8 << 20, **body},
        headers=headers,
        trust_env=False,
        verify=False,
        timeout=60,
    )


def of_trace(spans: list[ReceivedSpan], trace_id: str) -> dict[str, ReceivedSpan]:
    return {each.name: each for each in spans if each.trace_id == trace_id}


def test_one_change_is_one_trace_across_both_planes(socket_dir: Path, receiver: OtlpReceiver) -> None:
    with traced_up(socket_dir, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, OTEL_EXPORTER_OTLP_HEADERS="x-key=k1") as up:
        assert put_quota(up, PARENT).status_code == 201
        spans = of_trace(
            receiver.wait(
                lambda spans: (
                    {"snapshot.apply", "snapshot.push", "PUT /api/v1/quotas/{tenant}"} <= of_trace(spans, TRACE).keys()
                )
            ),
            TRACE,
        )
        (entry,) = up.get("/api/v1/audit").json()["items"]
        events = up.get("/api/v1/overview").json()
    request = spans["PUT /api/v1/quotas/{tenant}"]
    service, database = spans["quotas.put"], spans["database.write"]
    push, applied = spans["snapshot.push"], spans["snapshot.apply"]
    assert request.parent_id == "00f067aa0ba902b7"
    assert request.attributes["http.route"] == "/api/v1/quotas/{tenant}"
    assert request.attributes["http.response.status_code"] == 201
    assert (service.parent_id, database.parent_id) == (request.span_id, service.span_id)
    assert push.parent_id == service.span_id
    assert applied.parent_id == push.span_id
    assert push.began_ns <= applied.began_ns <= applied.ended_ns <= push.ended_ns
    assert push.attributes["larder.push.state"] == "acked"
    assert applied.attributes["larder.generation"] == push.attributes["larder.generation"] == 1
    assert {each.service for each in (request, service, database, push)} == {APP}
    assert applied.service == NODE
    assert applied.resource["larder.plane"] == "data-plane"
    assert entry["trace_id"] == TRACE
    assert events
    assert receiver.headers["x-key"] == "k1"


def test_the_audit_names_the_trace_that_the_request_began(socket_dir: Path, receiver: OtlpReceiver) -> None:
    with traced_up(socket_dir, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{receiver.url}/v1/traces") as up:
        assert put_quota(up, "00-junk").status_code == 201
        (entry,) = up.get("/api/v1/audit").json()["items"]
        expected = {"snapshot.apply", "PUT /api/v1/quotas/{tenant}"}  # of both processes
        spans = receiver.wait(lambda spans: expected <= of_trace(spans, entry["trace_id"]).keys())
        assert not [each for each in spans if each.attributes.get("http.route") in ("/healthz", "/healthz/fleet")]
        errors = up.end()
    assert of_trace(spans, entry["trace_id"])["PUT /api/v1/quotas/{tenant}"].parent_id == ""
    ended = re.search(r'.*"PUT".*"request\.ended".*', errors) or re.search(r".*request\.ended.*", errors)
    assert ended
    assert f'"trace_id":"{entry["trace_id"]}"' in ended[0].replace(" ", "")


def test_an_unsampled_request_has_no_trace_id_in_the_audit(socket_dir: Path, receiver: OtlpReceiver) -> None:
    off = {"OTEL_TRACES_SAMPLER": "always_off", "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    with traced_up(socket_dir, **off) as up:
        assert put_quota(up).status_code == 201
        assert put_quota(up, PARENT, changes=True, limit_bytes=9 << 20).status_code == 200
        entries = up.get("/api/v1/audit").json()["items"]
    assert [entry["trace_id"] for entry in entries] == [TRACE, ""]
    assert receiver.spans == []


def test_several_changes_in_one_push_are_linked(socket_dir: Path, receiver: OtlpReceiver) -> None:
    with traced_up(socket_dir, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url) as up:
        pid = up.node()["pid"]
        os.kill(pid, signal.SIGSTOP)  # it answers no push now
        try:
            traces = [f"{number:032x}" for number in (1, 2, 3)]
            for number, trace_id in enumerate(traces):
                parent = f"00-{trace_id}-00f067aa0ba902b7-01"
                put_quota(up, parent, changes=number > 0, wait_s=0, limit_bytes=(8 + number) << 20)
        finally:
            os.kill(pid, signal.SIGCONT)

        def acked(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
            return [
                each
                for each in spans
                if each.name == "snapshot.push"
                and each.attributes["larder.generation"] == 3
                and each.attributes["larder.push.state"] == "acked"
            ]

        spans = receiver.wait(lambda spans: bool(acked(spans)))
    (last,) = acked(spans)
    assert last.trace_id == traces[2]
    assert traces[1] in last.links


@contextmanager
def engine_tracing(receiver: OtlpReceiver) -> Iterator[trace.Tracer]:
    """An engine's own SDK, with its own service name, without the global provider."""
    provider = TracerProvider(resource=Resource.create({"service.name": "engine"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
    yield provider.get_tracer("engine")
    provider.shutdown()


def test_a_store_is_one_trace_from_the_engine_to_the_data_plane(
    socket_dir: Path, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = chain(list(range(64)), chunk_tokens=16)
    with traced_up(socket_dir, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url) as up, engine_tracing(receiver) as tracer:
        monkeypatch.setattr(traced, "_maker", SpanMaker(tracer))
        space = Space(model="m", block_bytes=4096)
        with attach(up.node()["engine_socket"], [space], traces=True, timeout_s=60) as client:
            with client.request(PARENT):
                assert client.lookup(keys) == 0
                with client.reserve(keys, 4096) as reservation:
                    reservation.copy_from(bytes(4096 * len(keys)))
                    assert reservation.commit().blocks == len(keys)
            with client.request(PARENT), client.acquire(keys) as lease:
                assert lease.copy_to(bytearray(4096 * len(keys))) == 4096 * len(keys)
        found = receiver.wait(
            lambda spans: {"larder.copy", "engine.reserve", "engine.commit"} <= of_trace(spans, TRACE).keys()
        )
    spans = of_trace(found, TRACE)
    for name in ("larder.lookup", "larder.reserve", "larder.commit", "larder.acquire", "larder.copy"):
        assert spans[name].service == "engine"
    requests = {each.span_id for each in found if each.name == "larder.request"}
    assert len(requests) == 2
    assert {each.parent_id for each in found if each.name == "larder.request"} == {"00f067aa0ba902b7"}
    assert {spans[name].parent_id for name in ("larder.reserve", "larder.commit", "larder.acquire")} <= requests
    assert spans["engine.reserve"].parent_id == spans["larder.reserve"].span_id
    assert spans["engine.commit"].parent_id == spans["larder.commit"].span_id
    assert spans["engine.reserve"].service == NODE
    assert spans["engine.reserve"].attributes["larder.blocks"] == len(keys)
    assert len(found) < 40, "no span is per block"


def test_batches_of_evictions_and_of_tiers_are_spans_linked_to_their_causes(
    socket_dir: Path, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 20
    chains = [chain(list(range(start, start + 10 * 16)), chunk_tokens=16) for start in (0, 1000, 2000)]
    disk = {"directories": [str(socket_dir / "disk")], "segment_bytes": 16 << 20}
    with traced_up(socket_dir, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url) as up, engine_tracing(receiver) as tracer:
        monkeypatch.setattr(traced, "_maker", SpanMaker(tracer))
        body = {"type": "disk", "budget_bytes": 64 << 20, "parameters": disk}
        made = httpx.put(f"{up.url}/api/v1/tiers/disk?wait=30", json=body, trust_env=False, timeout=60)
        assert made.status_code == 201, made.text
        until(lambda: [tier["serves"] for tier in up.node()["stats"]["tiers"]] == [True], 60)
        space = Space(model="m", block_bytes=size)
        with attach(up.node()["engine_socket"], [space], traces=True, timeout_s=60) as client:
            for number, keys in enumerate(chains, 1):
                with client.request(PARENT), client.reserve(keys, size) as reservation:
                    reservation.commit()
                until(lambda: up.node()["stats"]["tiers"][0]["blocks"] == 10 * number, 60)  # noqa: B023
            with client.request(LOADING):
                until(lambda: bool(client.prefetch(chains[0])), 60)
            spans = receiver.wait(
                lambda spans: {"evict", "tier.spill", "tier.load", "engine.prefetch"} <= {each.name for each in spans}
            )
    evictions = [each for each in spans if each.name == "evict"]
    assert evictions[0].attributes["larder.reason"] == "room"
    assert evictions[0].attributes["larder.blocks"] > 1
    assert TRACE in evictions[0].links
    assert evictions[0].trace_id != TRACE
    (prefetch,) = [each for each in spans if each.name == "engine.prefetch"]
    spills = [each for each in spans if each.name == "tier.spill"]
    loads = [each for each in spans if each.name == "tier.load"]
    assert TRACE in spills[0].links
    assert prefetch.trace_id in loads[0].links
    assert prefetch.trace_id == LOADING[3:35]
    assert {each.attributes["larder.tier"] for each in spills + loads} == {"disk"}
    assert sum(each.attributes["larder.blocks"] for each in spills) == 30
    assert len(spills) < 30, "no span is per block"


def test_an_engine_that_does_not_trace_sends_no_trace(socket_dir: Path, receiver: OtlpReceiver) -> None:
    with traced_up(socket_dir, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url) as up:
        with attach(up.node()["engine_socket"], [Space(model="m", block_bytes=4096)], timeout_s=60) as client:
            assert type(client) is Client
            with (
                client.request(PARENT) as span,
                client.reserve(chain(list(range(16)), chunk_tokens=16), 4096) as reservation,
            ):
                assert span is NO_SPAN
                assert reservation.commit().blocks == 1
        assert put_quota(up).status_code == 201
        spans = receiver.wait(lambda spans: any(each.name == "snapshot.apply" for each in spans))
    assert not [each for each in spans if each.name.startswith("engine.")]


@pytest.mark.parametrize("collector", [pytest.param("closed", marks=pytest.mark.full), "silent"])
def test_a_dead_collector_delays_nothing(socket_dir: Path, collector: str) -> None:
    with ExitStack() as ending:
        url = f"http://127.0.0.1:{free_port()}"
        if collector == "silent":
            url = ending.enter_context(silent_collector())
        queue = {"OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}
        up = ending.enter_context(traced_up(socket_dir, OTEL_EXPORTER_OTLP_ENDPOINT=url, **queue))
        for number in range(30):
            assert put_quota(up, changes=number > 0, limit_bytes=(number + 1) << 20).is_success

        def dropped(plane: str) -> float:
            page = up.get("/metrics").text
            (line,) = [
                each
                for each in page.splitlines()
                if each.startswith("larder_otel_spans_dropped_total{") and f'plane="{plane}"' in each
            ]
            return float(line.rpartition(" ")[2])

        until(lambda: dropped("management") > 30 and dropped("data") > 5, 60)
        pid = up.node()["pid"]
        up.process.terminate()
        assert up.process.wait(60) == 0
        assert not Path(f"/proc/{pid}").exists()
        errors = up.end()
    assert errors.count("otel.export_failed") <= 2, "one line for each plane"
    assert "Traceback" not in errors
    assert "opentelemetry" not in errors


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT: expected a URL such as"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://:99999/"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: expected"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:hunter2@h"}, "put credentials into OTEL_EXPORTER_OTLP_HEADERS"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "Larder exports http/protobuf only",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "TEST_MISSING": "opentelemetry.sdk"},
            "pip install 'larder[otel]'",
        ),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ""),
    ],
)
def test_the_reason_why_tracing_is_off_is_logged_once(environ: dict[str, str], expected: str) -> None:
    program = """
import os, sys
if os.environ.get("TEST_MISSING"):
    sys.modules[os.environ["TEST_MISSING"]] = None
from dataplane.base import otlp, tracing
from dataplane.base.log import configure
writer = configure("info", "json")
assert otlp.start("data-plane", "1", os.environ) is None
assert not tracing.on()
assert tracing.traceparent() == ""
writer.close()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": ".", **environ}
    )
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    assert [line["event"] for line in lines] == (["otel.off"] if expected else [])
    assert expected in "".join(line["reason"] for line in lines)
    assert "hunter2" not in ran.stderr


def test_a_data_plane_without_otel_variables_does_not_import_opentelemetry() -> None:
    program = """
import sys
import dataplane.client, dataplane.compose
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_spans_beyond_the_queue_are_dropped_and_counted() -> None:
    release = threading.Event()

    class Exporter(SpanExporter):
        exported = 0

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            release.wait(60)
            self.exported += len(spans)
            return SpanExportResult.SUCCESS

    exporter = Exporter()
    telemetry = Telemetry(exporter, max_queued=100, batch=10, delay_s=0.01)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(telemetry)  # type: ignore[arg-type]  # as in `otlp.start`
    tracer = provider.get_tracer("test")
    for _ in range(5000):
        tracer.start_span("one").end()
    assert 5000 - 100 - 10 <= telemetry.dropped <= 5000 - 100
    release.set()
    telemetry.close(60)
    assert exporter.exported + telemetry.dropped == 5000


@pytest.mark.parametrize(("answer", "dropped"), [("endless", 0), ("redirection", 1)])
def test_an_answer_of_the_collector_is_bounded_and_not_followed(
    monkeypatch: pytest.MonkeyPatch, answer: str, dropped: int
) -> None:
    with misbehaving_collector(answer) as (url, sent):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        telemetry = otlp.start("data-plane", "1", os.environ)
        assert telemetry is not None
        with tracing.span("one"):
            pass
        telemetry.close(60)
        assert telemetry.dropped == dropped
    assert sent[0] < 64 << 20, "what fits into the buffers of the sockets"


def test_a_long_traceparent_of_a_later_version_costs_no_time() -> None:
    """It comes from an engine, and the data plane serves nothing else meanwhile."""
    maker = SpanMaker(TracerProvider(shutdown_on_exit=False).get_tracer("test"))
    later = PARENT.replace("00-", "01-", 1) + "-" + "\t" * 200_000 + "\nx"
    with maker.span("one", later, [later], "server", {}) as span:
        assert span.traceparent[3:35] == TRACE


def test_operations_of_the_gateway_are_sampled_spans(
    socket_dir: Path, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    with gateway_plane(socket_dir) as plane, Worker(url_of(plane)) as worker:
        worker.register()
        for start in range(40):
            worker.store(list(range(start * 1000, start * 1000 + 512)))
        spans = receiver.wait(lambda spans: any(each.name.startswith("lmcache.") for each in spans))
        plane.stop()
        spans = receiver.wait(lambda found: len(found) >= len(spans))
    names = Counter(each.name for each in spans if each.name.startswith("lmcache."))
    assert {each.service for each in spans} == {NODE}
    assert len(names) >= 2
    assert all(count < 40 for count in names.values())
    assert all(each.kind == 2 and each.parent_id == "" for each in spans if each.name in names)

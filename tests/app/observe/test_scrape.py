"""A scrape under load: what Prometheus' own tool says of it, both formats, and what this management plane measures of
itself."""

import asyncio
import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import parser as strict_parser

from app.observe.catalogue.service import DatabaseLost
from app.observe.histogram import LatencyHistogram
from app.observe.page import C, G, H, MetricDeclaration, MetricsPage, OneFamily
from dataplane.protocol.stats.engines import EngineStats
from dataplane.protocol.stats.pool import PoolStats, Totals
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.fake_node import FakeNode
from tests.app.observe.test_metrics import gateway, space
from tests.app.plane import IMPATIENT, Plane
from tests.app.waiting import until
from tests.deploy.tools import checked

pytestmark = pytest.mark.anyio
OM = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"}
Labels = frozenset[tuple[str, str]]


async def samples(plane: Plane) -> dict[tuple[str, Labels], float]:
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in await plane.samples()}


def openmetrics(text: str) -> Iterator[Metric]:
    parse: Callable[[str], Iterator[Metric]] = strict_parser.text_string_to_metric_families
    return parse(text)


def of(found: dict[tuple[str, Labels], float], name: str, **labels: str) -> float | None:
    return found.get((f"larder_{name}", frozenset(labels.items())))


async def load(plane: Plane, node: FakeNode) -> None:
    await plane.report(
        node,
        pool=PoolStats(capacity_bytes=9, used_bytes=4),
        totals=Totals(requested_blocks=7, hit_blocks=3),
        refused={"over_limit": 4},
        spaces=[space(1)],
        engines=[EngineStats(1, 42, "g", 'vllm "\\\n0', 0.0, [], connected=True)],
        tenants=[
            TenantStats(f"t{n}", bytes=n, refused={"over_limit": 2}, refused_blocks=3, limit_bytes=9)
            for n in range(300)
        ],
        other_tenants=TenantStats("other", bytes=3, refused_blocks=5),
        gateway=gateway(),
    )


async def test_promtool_accepts_the_page_and_openmetrics_parses(new_plane: Plane, new_node: FakeNode) -> None:
    await load(new_plane, new_node)
    for path in ("/api/v1/quotas", "/api/v1/nodes/nobody", "/nothing/there", "/api/v1/nothing"):
        await new_plane.http.get(path)
    await new_plane.put_quota("a")
    text = await new_plane.http.get("/metrics")
    assert text.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    check = partial(checked, "promtool", "check", "metrics", text=text.text)  # also of names and units
    assert await asyncio.to_thread(check) == ""

    strict = await new_plane.http.get("/metrics", headers=OM)
    assert strict.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert strict.text.endswith("# EOF\n")
    families = {family.name: family for family in openmetrics(strict.text)}
    assert families["larder_http_request_seconds"].unit == "seconds"
    assert families["larder_http_request_seconds"].type == "histogram"
    assert not any(name.endswith("_created") for name in families)
    engine = {s.labels["engine"] for s in families["larder_engine_leased_blocks"].samples}
    assert engine == {'vllm "\\\n0'}
    refused = {
        (s.labels["tenant"], s.labels["reason"]): s.value for s in families["larder_tenant_refused_blocks"].samples
    }
    assert refused["t299", "over_limit"] == 2
    assert refused["t299", "other"] == 1
    assert refused["other", "over_limit"] == 2 * 250
    assert refused["other", "other"] == 250 + 5
    (others,) = [s.value for s in families["larder_tenant_bytes"].samples if s.labels["tenant"] == "other"]
    assert others == sum(range(250)) + 3


async def test_concurrent_scrapes_return_the_same_numbers(new_plane: Plane, new_node: FakeNode) -> None:
    seen: dict[tuple[str, Labels], float] = {}

    async def scrape() -> None:
        for name, value in (await samples(new_plane)).items():
            if "_tenant_" in name[0] and name[0].endswith("_total"):
                assert value >= seen.get(name, 0), name
                seen[name] = value

    await new_plane.events_flow()
    for turn in range(15):
        tenants = [
            TenantStats(f"t{n}", bytes=1 + (n * turn) % 97, hit_blocks=n + turn, requested_blocks=turn)
            for n in range(turn % 5, 120)
        ]
        await new_plane.report(new_node, tenants=tenants)
        await asyncio.gather(scrape(), scrape())
    assert len({dict(labels)["tenant"] for _, labels in seen}) > 51


async def test_requests_are_counted_by_template_and_method(new_plane: Plane) -> None:
    await new_plane.put_quota("alice")
    await new_plane.put_quota("bob")
    await new_plane.http.head("/api/v1/quotas/alice")
    await new_plane.http.post("/api/v1/pins/nobody:extend", json={"ttl_s": 60})
    for path in ("/wp-admin.php", "/api/v1/secret-of-alice", "/api/v2/x/y"):
        assert (await new_plane.http.get(path)).status_code == 404
    await new_plane.http.request("PROPFIND", "/api/v1/quotas/alice")
    found = await samples(new_plane)

    def number(method: str, route: str, status: str) -> float | None:
        return of(found, "http_requests_total", method=method, route=route, status=status)

    assert number("PUT", "/api/v1/quotas/{tenant}", "201") == 2
    assert number("HEAD", "/api/v1/quotas/{tenant}", "200") == 1
    assert number("GET", "unmatched", "404") == 3
    assert {dict(labels)["method"] for name, labels in found if name == "larder_http_requests_total"} >= {"other"}
    assert number("POST", "/api/v1/pins/{name}:extend", "404") == 1
    routes = {dict(labels).get("route", "") for _, labels in found}
    assert not any(word in route for route in routes for word in ("alice", "bob", "admin", "nobody", "secret"))
    count = of(found, "http_request_seconds_count", method="PUT", route="/api/v1/quotas/{tenant}")
    assert count is not None
    assert count >= 2


async def test_a_stream_is_counted_and_has_no_duration(new_plane: Plane) -> None:
    async with new_plane.http.stream("GET", "/api/v1/events") as stream:
        assert stream.status_code == 200
    of_stream = {"method": "GET", "route": "/api/v1/events"}

    async with asyncio.timeout(60):
        while of(await samples(new_plane), "http_requests_total", **of_stream, status="200") != 1:
            await asyncio.sleep(0.05)
    assert of(await samples(new_plane), "http_request_seconds_count", **of_stream) is None


async def test_gzip_is_sent_if_the_scraper_accepts_it(new_plane: Plane) -> None:
    async with new_plane.http.stream("GET", "/metrics", headers={"Accept-Encoding": "gzip"}) as answer:
        packed = b"".join([part async for part in answer.aiter_raw()])
        assert answer.headers["content-encoding"] == "gzip"
    assert b"larder_build_info{" in gzip.decompress(packed)
    for refused in ("identity", "gzip;q=0, identity", "br", "*", "gzip;q=nonsense"):
        plain = await new_plane.http.get("/metrics", headers={"Accept-Encoding": refused})
        assert "content-encoding" not in plain.headers


@pytest.mark.parametrize(
    ("accept", "strict"),
    [
        ("", False),
        ("*/*", False),
        ("text/html", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.2, text/plain", False),
        ("text/plain;q=0.5, APPLICATION/OpenMetrics-Text; version=0.0.1 ; q=0.75", True),
        ("application/openmetrics-text;q=high", False),
        ("application/openmetrics-text;version=newest", True),
        ("application/openmetrics-text;version=99.0;escaping=allow-utf-8", True),
    ],
)
async def test_the_format_is_negotiated(shared_plane: Plane, accept: str, *, strict: bool) -> None:
    answer = await shared_plane.http.get("/metrics", headers={"Accept": accept})
    kind = "application/openmetrics-text; version=1.0.0" if strict else "text/plain; version=0.0.4"
    assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
    assert answer.text.endswith("# EOF\n") is strict


async def test_pushes_database_process_tokens_and_lag_are_measured(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.until_state("in_sync")
    await new_plane.put_quota("a")
    ends = time.time() + 3600
    token = await new_plane.http.post("/api/v1/tokens", json={"name": "ci", "role": "admin", "ttl_s": 3600})
    assert token.status_code == 201, token.text
    headers = {"Authorization": f"Bearer {token.json()['token']}"}
    parts = new_plane.app.parts
    await parts.access.token_expiries.read()
    await until(lambda: any(parts.process.loop_lag.counts))
    new_plane.http.headers.update(headers)
    # What a node has comes with its next report, which its ACK does not wait for.
    await until(lambda: [stats.observed["quotas"].generation for stats in parts.fleet.stats()] == [1])
    found = await samples(new_plane)
    on = {"node": new_node.name, "type": "quotas"}
    assert (of(found, "push_seconds_count", **on) or 0) >= 2
    assert (of(found, "pushes_total", node=new_node.name, state="acked") or 0) >= 2
    assert of(found, "pushes_total", node=new_node.name, state="timed_out") == 0
    for operation in ("read", "write", "commit"):
        assert (of(found, "database_seconds_count", operation=operation) or 0) >= 1
    process = {"plane": "management", "node": ""}
    for name in ("process_cpu_seconds_total", "process_resident_bytes", "process_open_fds"):
        assert (of(found, name, **process) or 0) > 0
    assert (of(found, "event_loop_lag_seconds_count", **process) or 0) > 0
    assert of(found, "gc_collections_total", **process, generation="0") is not None
    (build,) = [dict(labels) for name, labels in found if name == "larder_build_info"]
    assert build["plane"] == "management"
    assert build["python"].startswith("3.")
    assert abs((of(found, "token_expires_timestamp_seconds", token="ci") or 0) - ends) < 60
    assert [of(found, name, **on) for name in ("observed_generation", "generation_lag", "node_drifted")] == [1, 0, 0]


@IMPATIENT
async def test_lag_and_drift_of_a_node_are_metrics(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.until_state("in_sync")
    on = {"node": new_node.name, "type": "quotas"}
    new_node.deaf = True
    new_node.drift("quotas")
    async with asyncio.timeout(60):
        while of(await samples(new_plane), "node_drifted", **on) != 1:
            await asyncio.sleep(0.05)
    await new_plane.put_quota("a", wait="0s")
    async with asyncio.timeout(60):
        while not of(await samples(new_plane), "generation_lag", **on):
            await asyncio.sleep(0.05)


async def test_lost_events_are_counted_by_name(new_plane: Plane) -> None:
    bus = new_plane.app.parts.bus
    with bus.subscribe():
        for number in range(300):
            bus.publish(DatabaseLost(str(number)), node="n")
    found = await samples(new_plane)
    assert (of(found, "events_dropped_total", plane="management", node="", event="database.lost") or 0) >= 40


@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
def test_a_page_equals_the_output_of_prometheus_client(kind: str) -> None:
    strict = kind != "text/plain"
    explained, value = 'A \\ of\n"two" lines.', 'x"\n\\'
    exemplar = Exemplar({"trace_id": "ab"}, 0.5, 1.25)
    page = MetricsPage(openmetrics=strict)
    page.add(MetricDeclaration("larder_odd_bytes", G, explained, ("b", "a")), 1.5e12, value, "")
    page.add(MetricDeclaration("larder_odd", C, explained), float("inf"))
    counted = MetricDeclaration("larder_odd_seconds", H, explained, ("a",))
    page.add_histogram(counted, (0.1, 1e7), (1, 2, 3), 1.5, value, exemplars=(None, exemplar, None))

    gauge = GaugeMetricFamily("larder_odd_bytes", explained, labels=("b", "a"), unit="bytes")
    gauge.add_metric((value, ""), 1.5e12)
    histogram = HistogramMetricFamily("larder_odd_seconds", explained, labels=("a",), unit="seconds")
    histogram.add_metric((value,), [("0.1", 1), ("1e+07", 3, exemplar), ("+Inf", 6)], 1.5)
    registry = CollectorRegistry()
    for family in (gauge, CounterMetricFamily("larder_odd", explained, float("inf")), histogram):
        registry.register(OneFamily(family))
    encoder, _ = choose_encoder(kind)
    assert page.text() == encoder(registry)


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("", (), "empty"),
        ("larder-x", (), "larder-x"),
        ("larder_x_total", (), "_total"),
        ("larder_x", ("__name",), "__name"),
        ("larder_x", ("le",), "le"),
        ("larder_x", ("a-b",), "a-b"),
    ],
)
def test_an_invalid_metric_declaration_raises_value_error(name: str, labels: tuple[str, ...], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        MetricDeclaration(name, H, "Something.", labels)


@contextmanager
def traced(trace_id: int, *, sampled: bool) -> Iterator[None]:
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    span = NonRecordingSpan(SpanContext(trace_id, 1, is_remote=False, trace_flags=flags))
    with trace.use_span(span):
        yield


def test_an_exemplar_has_the_sampled_trace_and_only_openmetrics_shows_it() -> None:
    declared = MetricDeclaration("larder_x_seconds", H, 'Said "so".', ("type",))
    histogram = LatencyHistogram((0.1, 1.0))
    histogram.observe(0.05)
    with traced(0xABC, sampled=True):
        histogram.observe(0.5)
    with traced(0xDEF, sampled=False):
        histogram.observe(7.0)
    texts: dict[bool, str] = {}
    for strict in (True, False):
        page = MetricsPage(openmetrics=strict)
        page.add_observed(declared, histogram, "a")
        texts[strict] = page.text().decode()
    assert "trace_id" not in texts[False]
    (family,) = openmetrics(texts[True])
    assert family.documentation == 'Said "so".'
    exemplars = {sample.labels.get("le"): sample.exemplar for sample in family.samples}
    assert exemplars["0.1"] is None
    assert exemplars["+Inf"] is None
    found: Any = exemplars["1.0"]
    assert (found.labels, found.value) == ({"trace_id": f"{0xABC:032x}"}, 0.5)
    assert {s.name: s.value for s in family.samples if "bucket" not in s.name} == {
        "larder_x_seconds_count": 3,
        "larder_x_seconds_sum": 7.55,
    }

"""The event stream, the overview and its rates."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from struct import pack
from typing import Any

import msgspec
import pytest

from app.http.routes.views.events import EventMessages
from app.ingest.rates import RateMeter
from app.observe.catalogue.fleet import NodeLost
from app.observe.catalogue.service import DatabaseLost, DatabaseRecovered
from dataplane.protocol.codec import encode
from dataplane.protocol.events import BlocksStored, EngineAttached
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pool import PoolStats, Totals
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio


async def sse(plane: Plane) -> AsyncGenerator[tuple[str, Any], None]:
    """Yield (event, data) pairs of the stream."""
    name = ""
    async with plane.http.stream("GET", "/api/v1/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


async def until(stream: AsyncIterator[tuple[str, Any]], holds) -> Any:
    async with asyncio.timeout(60):
        async for name, data in stream:
            if holds(name, data):
                return data
    raise AssertionError("the stream ended")


async def test_the_overview_comes_at_once_and_is_that_of_the_api(new_plane: Plane) -> None:
    stream = sse(new_plane)
    first = await until(stream, lambda name, _: name == "overview")
    assert set(first) == set(await new_plane.get("/api/v1/overview"))
    assert first["ready"] is True
    await until(stream, lambda name, data: name == "overview" and data["armed"])
    await stream.aclose()


async def test_a_change_is_on_the_stream_soon(new_plane: Plane) -> None:
    stream = sse(new_plane)
    await until(stream, lambda name, _: name == "overview")
    await new_plane.put_quota("acme", 5)
    event = await until(stream, lambda name, data: name == "event" and data["name"] == "quota.created")
    assert event["fields"] == {"tenant": "acme", "generation": 1}
    shown = await until(stream, lambda name, data: name == "overview" and data["tenants"])
    assert shown["tenants"][0]["limit_bytes"] == 5
    await stream.aclose()


async def test_events_of_nodes_are_on_the_stream(new_plane: Plane, new_node: FakeNode) -> None:
    stream = sse(new_plane)
    await until(stream, lambda name, _: name == "overview")
    await new_plane.events_flow()
    await new_node.publish(EngineAttached(1.0, 7, 4242, "g", "vllm", ["m"]))
    event = await until(stream, lambda name, data: name == "event" and data["name"] == "engine.attached")
    assert event["node"] == "node-a"
    assert event["at"] == 1.0
    assert event["fields"] == {"client": 7, "pid": 4242, "group": "g", "engine": "vllm", "spaces": ["m"]}
    await stream.aclose()


async def test_frequent_events_are_summed(
    new_plane: Plane, new_node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await new_plane.events_flow()
    bus, intake = new_plane.app.parts.bus, new_plane.app.parts.ingest.intake
    flush = intake.flush
    monkeypatch.setattr(intake, "flush", lambda: None)  # not by the clock
    with bus.subscribe() as subscriber:
        for _ in range(50):
            await new_node.publish(BlocksStored(2.0, 1, "s", "acme", 2, 100))
        await new_node.publish(EngineAttached(1.0, 7, 4242, "g", "vllm", ["m"]))
        await new_plane.until_event("engine.attached")
        flush()
        sums = [event.fields for event in subscriber.take() if event.name == "blocks.stored"]
    assert [(fields["events"], fields["bytes"]) for fields in sums] == [(50, 5000)]


async def test_malformed_events_are_counted_and_skipped(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.events_flow()
    before = new_plane.app.parts.ingest.intake.malformed
    good = pack("<Q", 1)
    for frames in (
        [b"x"],
        [b"node.stats", good],
        [b"node.stats", b"short", b"\x80"],
        [b"node.stats", good, b"\xc1"],
        [b"node.stats", good, encode({"event": "no.such"})],
        [b"\xff\xfe", good, encode(EngineAttached(1.0, 7, 1, "g", "v", []))],
    ):
        await new_node.publish_raw(*frames)
    await new_node.publish(EngineAttached(1.0, 7, 4242, "g", "vllm", ["m"]))
    await new_plane.until_event("engine.attached")
    assert new_plane.app.parts.ingest.intake.malformed - before == 6
    await new_plane.until_state("in_sync")


async def test_a_gap_in_the_events_causes_a_read(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.events_flow()
    described = new_node.described
    new_node.skip_events(3)
    await new_node.until(lambda: new_node.described > described)
    assert new_plane.app.parts.ingest.intake.lost >= 3


async def test_open_streams_end_with_the_plane(new_plane: Plane) -> None:
    stream = sse(new_plane)
    await until(stream, lambda name, _: name == "overview")
    new_plane.app.parts.bus.close()
    async with asyncio.timeout(60):
        async for _ in stream:
            pass


async def ids(plane: Plane, last_id: str, count: int) -> list[tuple[str, str]]:
    """Return (id, name) of the first events of a stream that resumes after an id."""
    found: list[tuple[str, str]] = []
    number = ""
    async with (
        asyncio.timeout(60),
        plane.http.stream("GET", "/api/v1/events", headers={"Last-Event-ID": last_id}) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                number = line.removeprefix("id: ")
            elif line.startswith("data: ") and number:
                found.append((number, json.loads(line.removeprefix("data: "))["name"]))
                number = ""
                if len(found) == count:
                    return found
    raise AssertionError("the stream ended")


async def test_a_returning_reader_gets_the_events_that_it_missed(new_plane: Plane) -> None:
    bus = new_plane.app.parts.bus
    for event in (DatabaseLost("gone"), DatabaseRecovered(1.0), NodeLost()):
        bus.publish(event)
    seen = bus.ring[-3].seq
    assert await ids(new_plane, f"{bus.boot}-{seen}", 2) == [
        (f"{bus.boot}-{seen + 1}", "database.recovered"),
        (f"{bus.boot}-{seen + 2}", "node.lost"),
    ]
    everything = [(f"{bus.boot}-{event.seq}", event.name) for event in bus.ring]
    for of_unknown in ("ffffffff-3", "x", "7", "", f"{bus.boot}-{'9' * 30}"):
        assert await ids(new_plane, of_unknown, len(everything)) == everything


async def test_an_event_that_occurs_while_a_reader_returns_is_sent_once(lone: Plane) -> None:
    bus, overview = lone.app.parts.bus, lone.app.parts.views.overview
    bus.publish(DatabaseLost("gone"))
    stream = EventMessages(bus, overview).stream(f"{bus.boot}-{bus.ring[-1].seq}")
    async with asyncio.timeout(60), aclosing(stream):
        sent = await anext(stream)
        bus.publish(NodeLost())
        while b"event: overview" not in sent:
            sent += await anext(stream)
    assert sent.count(f"id: {bus.boot}-{bus.ring[-1].seq}\n".encode()) == 1


def stats(node: str = "a", epoch: str = "1", **totals: int) -> NodeStats:
    return NodeStats(
        0.0, node, epoch, 0.0, True, PoolStats(100, 40), Totals(**totals), {}, [], None, [], [], {}
    )  # fmt: skip


def test_rates_survive_a_restart_of_the_node() -> None:
    meter = RateMeter()
    meter.sample(0, [stats(requested_blocks=100, hit_blocks=100, read_bytes=1000)])
    meter.sample(1, [stats(requested_blocks=110, hit_blocks=105, read_bytes=1500)])
    meter.sample(2, [stats(epoch="2", requested_blocks=10, hit_blocks=0, read_bytes=100)])
    rates = meter.rates([stats(requested_blocks=10, hit_blocks=5)])
    assert rates.hit_ratio == pytest.approx(5 / 20)
    assert rates.hit_ratio_total == 0.5
    assert rates.read_bytes_per_s == pytest.approx(300)


def test_a_ratio_of_nothing_is_null() -> None:
    meter = RateMeter()
    assert meter.rates([]).hit_ratio is None
    meter.sample(0, [stats()])
    meter.sample(1, [])
    meter.sample(2, [stats()])
    assert meter.rates([stats()]).hit_ratio is None


async def test_the_overview_sums_the_reports_of_nodes(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.put_quota("acme", 100)
    await new_plane.put_pin("p", tenant="acme")
    new_node.stats = msgspec.structs.replace(
        new_node.stats,
        tenants=[TenantStats("acme", bytes=120, blocks=2, over_limit=True), TenantStats("wild", bytes=500)],
    )
    async with asyncio.timeout(60):
        while len((await new_plane.get("/api/v1/overview"))["tenants"]) < 2:
            await asyncio.sleep(0.02)
    overview = await new_plane.get("/api/v1/overview")
    assert [(t["tenant"], t["bytes"], t["limit_bytes"], t["managed"]) for t in overview["tenants"]] == [
        ("wild", 500, None, False),
        ("acme", 120, 100, True),
    ]
    assert [pin["name"] for pin in overview["pins"]] == ["p"]
    quota = await new_plane.get("/api/v1/quotas/acme")
    assert (quota["used_bytes"], quota["blocks"], quota["over_limit"]) == (120, 2, True)

"""Metrics of KV events, for nodes with and without a publisher."""

from __future__ import annotations

import msgspec
import pytest

from dataplane.protocol.stats.kv_events import KvEventStats
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio


async def lines(plane: Plane) -> set[str]:
    text = (await plane.http.get("/metrics")).text
    return {line for line in text.splitlines() if line.startswith("larder_kv_events")}


async def test_the_counters_of_a_publisher_are_metrics(plane: Plane, node: FakeNode):
    assert not any("{" in line for line in await lines(plane))
    node.stats = msgspec.structs.replace(node.stats, kv_events=KvEventStats(["tcp://*:5557"], 70, 3, 20, 2))
    await plane.until(lambda: any(stats.kv_events for stats in plane.app.parts.fleet.stats()))
    assert await lines(plane) >= {
        'larder_kv_events_published_total{node="node-a"} 70.0',
        'larder_kv_events_dropped_total{node="node-a"} 3.0',
        'larder_kv_events_replayed_total{node="node-a"} 20.0',
        'larder_kv_events_replays_abandoned_total{node="node-a"} 2.0',
    }

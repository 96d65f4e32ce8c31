"""Queues and stores in shared memory that nodes see: in the API, and as metrics."""

from __future__ import annotations

import msgspec
import pytest

from app.services.fleet.nodes import MAX_IPC
from dataplane.protocol.stats.ipc import IpcQueueStats, IpcStats, IpcStoreStats
from tests.app.callers import create_token, send
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio

QUEUE = IpcQueueStats("a" * 32, "tokens", 4711, 2, 1 << 20, 64, 1000, 5000, 3, 0, 1, 12.5, 62.5)
STORE = IpcStoreStats("b" * 32, "images", 2, 1 << 30, None, None, 9, 1, 10, 4096, 0, 1, 0.5, 2048.0)


async def reported(plane: Plane, node: FakeNode, seen: IpcStats) -> None:
    await plane.report(node, ipc=seen)


async def test_each_node_that_has_looked_is_listed(plane: Plane, node: FakeNode) -> None:
    assert await plane.get("/api/v1/ipc") == {"items": [], "total": 0}
    await reported(plane, node, IpcStats(1.0, [QUEUE], [STORE], 1, 1, 1000, 5000, 4096, 2, ""))
    [item] = (await plane.get("/api/v1/ipc"))["items"]
    assert (item["node"], item["queues_total"], item["stores_total"]) == ("node-a", 1, 1)
    assert item["queues"] == [msgspec.to_builtins(QUEUE)]
    assert item["stores"] == [msgspec.to_builtins(STORE)]


async def test_the_lists_of_a_node_are_bounded(plane: Plane, node: FakeNode) -> None:
    await reported(plane, node, IpcStats(2.0, [QUEUE] * 1000, [STORE] * 1000, 1000, 1000))
    [item] = (await plane.get("/api/v1/ipc"))["items"]
    assert (len(item["queues"]), len(item["stores"])) == (MAX_IPC, MAX_IPC)
    assert item["queues_total"] == 1000


async def test_sums_over_a_node_are_metrics_without_names(plane: Plane, node: FakeNode) -> None:
    await reported(plane, node, IpcStats(3.0, [QUEUE], [STORE], 1, 1, 1000, 5000, 4096, 2, ""))
    text = (await plane.http.get("/metrics")).text
    for line in (
        'larder_ipc_queues{node="node-a"} 1.0',
        'larder_ipc_messages_total{node="node-a"} 1000.0',
        'larder_ipc_put_bytes_total{node="node-a"} 4096.0',
        'larder_ipc_dead_peers_total{node="node-a"} 2.0',
    ):
        assert line in text
    assert "tokens" not in "".join(line for line in text.splitlines() if line.startswith("larder_ipc"))


async def test_a_token_that_is_limited_to_tenants_is_refused(guarded: Plane) -> None:
    token = await create_token(guarded, "acme-ops", "operator", tenants=["acme"])
    assert (await send(guarded, token, "GET", "/api/v1/ipc")).status_code == 403

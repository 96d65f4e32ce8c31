"""Conditions of nodes: crash loops and thrashing are found, shown, and stay visible for a while."""

from pathlib import Path
from typing import Any

import pytest

from app.ingest.node_conditions import QUIET_S, SAMPLE_S, NodeConditions
from app.observe.catalogue import name_of
from app.observe.catalogue.service import DataplaneExited
from app.observe.events import LarderEvent
from app.schemas.fleet.nodes import NodeCondition
from app.schemas.views.findings import CRASHES_S, WINDOW_S
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pool import PoolStats, Totals
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.command import larder, output
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane, serving, settings_in

RETENTION_S = 100.0


class Watch:
    """Conditions of the node `a`, at a time of our own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.changed: list[str] = []
        self.conditions = NodeConditions(RETENTION_S, lambda: self.now)
        self.stats = _stats()

    def event(self, name: str, **fields: object) -> None:
        self.conditions.on_event(LarderEvent(name, self.now, 0, "a", fields))

    def later(self, seconds: float) -> list[NodeCondition]:
        self.now += seconds
        self.changed += [name_of(event) for _, event in self.conditions.look([self.stats])]
        return self.conditions.of("a")


def _stats(epoch: str = "1", used: int = 100, **totals: int) -> NodeStats:
    return NodeStats(0.0, "a", epoch, 0.0, True, PoolStats(100, used), Totals(**totals), {}, [], None, [], [], {})


def _twice(totals: dict[str, Any]) -> dict[str, Any]:
    return {name: 2 * count for name, count in totals.items()}


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_three_unexpected_ends_are_a_crash_loop_until_they_are_long_ago(watch: Watch) -> None:
    for epoch, code in (("1", -9), ("2", 1)):
        watch.event("node.joined", epoch=epoch)
        watch.event("dataplane.exited", code=code)
        assert watch.later(10) == []
    watch.event("node.joined", epoch="3")
    watch.event("dataplane.exited", code=None)
    (found,) = watch.later(10)
    assert (found.type, found.since, found.ended_at) == ("crash_loop", 1000.0, None)
    assert found.message == "its data plane ended unexpectedly 3 times in 10 min"
    assert list(watch.conditions.lasting()) == [("a", "crash_loop")]
    watch.later(CRASHES_S - 30)
    (ended,) = watch.later(QUIET_S + 1)
    assert ended.ended_at == watch.now
    assert list(watch.conditions.lasting()) == []
    assert watch.later(RETENTION_S + 1) == []
    assert watch.changed == ["node.condition_started", "node.condition_ended"]


def test_planned_stops_and_restarts_are_no_crashes(watch: Watch) -> None:
    for epoch in "123456":
        watch.event("node.joined", epoch=epoch)
        watch.event("node.stopped" if epoch in "135" else "dataplane.stopped")
    for epoch in "789":
        watch.event("node.joined", epoch=epoch)
        watch.event("dataplane.exited", code=0)
    for epoch in "abc":  # adopted processes, whose exit codes are unknown
        watch.event("node.joined", epoch=epoch)
        watch.event("node.stopped")
        watch.event("dataplane.exited", code=None)
    assert watch.later(1) == []


def test_a_node_without_a_supervisor_here_is_seen_to_crash_by_its_epochs(watch: Watch) -> None:
    watch.event("node.joined", epoch="1")
    watch.event("node.lost")
    watch.event("node.joined", epoch="1")  # the network was away
    for epoch in "234":
        assert watch.later(1) == []
        watch.event("node.joined", epoch=epoch)
    assert [each.type for each in watch.later(1)] == ["crash_loop"]
    watch.event("node.forgotten")
    assert watch.conditions.of("a") == []


def test_an_exit_that_the_supervisor_reported_is_counted_once(watch: Watch) -> None:
    watch.event("node.joined", epoch="1")
    for epoch in "23":
        watch.event("dataplane.exited", code=-9)
        watch.event("node.joined", epoch=epoch)
    assert watch.later(1) == []


@pytest.mark.parametrize(
    ("used", "evicted", "hit", "thrashes"),
    [(100, 900, 4, True), (80, 900, 4, False), (100, 400, 4, False), (100, 900, 50, False), (100, 90, 4, False)],
)
def test_a_full_pool_that_evicts_before_reads_thrashes(
    watch: Watch, used: int, evicted: int, hit: int, thrashes: bool
) -> None:
    watch.later(0)
    half: dict[str, Any] = {
        "stored_blocks": 500,
        "evicted_blocks": evicted // 2,
        "requested_blocks": 500,
        "hit_blocks": hit // 2,
    }
    watch.stats = _stats(used=used, **half)
    assert watch.later(WINDOW_S / 2) == []
    watch.stats = _stats(used=used, **_twice(half))
    found = watch.later(WINDOW_S / 2)
    assert [each.type for each in found] == (["thrashing"] if thrashes else [])
    if thrashes:
        assert found[0].message == (
            "its pool is full, and in 2 min 1,000 blocks were stored, 900 evicted, and 4 of 1,000 requested blocks hit"
        )


def test_blocks_refused_for_a_tenants_limit_are_a_condition(watch: Watch) -> None:
    watch.stats.tenants[:] = [TenantStats("a", refused={"over_limit": 1000}), TenantStats("b")]
    watch.later(0)
    watch.stats.tenants[:] = [
        TenantStats("a", refused={"over_limit": 1099, "pool_full": 5000}),
        TenantStats("b", refused={"over_limit": 99}),
        TenantStats("newly listed", refused={"over_limit": 5000}),
    ]
    assert watch.later(WINDOW_S) == [], "too few"
    watch.stats.tenants[:] = [
        TenantStats("a", refused={"over_limit": 1300}),
        TenantStats("b", refused={"over_limit": 300}),
    ]
    (found,) = watch.later(SAMPLE_S)
    assert (found.type, found.message) == (
        "tenant_at_limit",
        "300 blocks of tenant a were refused in 2 min because the tenant is at its limit, and blocks of 1 other tenant",
    )


def test_another_process_begins_a_new_window(watch: Watch) -> None:
    watch.later(0)
    for epoch, count in (("1", 1000), ("2", 10_000)):
        watch.stats = _stats(epoch, stored_blocks=count, evicted_blocks=count, requested_blocks=count)
        assert watch.later(WINDOW_S / 2) == []


@pytest.mark.anyio
async def test_a_manager_knows_the_crashes_that_an_earlier_one_stored(socket_dir: Path) -> None:
    settings = settings_in(socket_dir)
    async with serving(settings) as plane:
        for _ in range(3):
            plane.app.parts.bus.publish(DataplaneExited(-9, 0.0), node="node-a")
    async with serving(settings) as plane:
        await plane.until(lambda: bool(plane.app.parts.foundation.node_conditions.of("node-a")))


@pytest.mark.anyio
async def test_a_crash_loop_is_in_the_api_the_status_the_metrics_and_the_events(plane: Plane, node: FakeNode) -> None:
    await plane.until_state("in_sync")
    for _ in range(3):
        plane.app.parts.bus.publish(DataplaneExited(-9, 0.0), node="node-a")
    await plane.until_event("node.condition_started")
    (found,) = (await plane.node())["conditions"]
    assert (found["type"], found["ended_at"]) == ("crash_loop", None)
    code, out, _ = await larder(plane, "status")
    text = " ".join(out.split())
    assert (code, "but node node-a is in a crash loop" in text) == (0, True)
    assert "its data plane ended unexpectedly 3 times in 10 min" in text
    assert (await plane.http.post("/api/v1/nodes/node-a/drain", json={"on": True})).is_success
    for command in (("status",), ("nodes", "list"), ("nodes", "get", "node-a")):
        assert "in_sync (crash loop, draining)" in await output(plane, *command)
    assert "crash_loop" in (await output(plane, "nodes", "describe", "node-a")).split("\n\n")[0]
    code, out, _ = await larder(plane, "why", "node-a")
    assert out.split("\n\n")[1].startswith("Findings\n  Node node-a is in a crash loop since ")
    assert "Most likely: Node node-a is in a crash loop since " in out
    assert 'larder_node_condition{node="node-a",type="crash_loop"} 1.0' in (await plane.http.get("/metrics")).text

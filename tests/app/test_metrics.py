"""What a scrape says of a node's policy, spaces, engines and sweeps, within bounds."""

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dataplane.protocol.events import (
    EngineStats,
    PolicyStats,
    PoolStats,
    SpaceStats,
    SweepStats,
    TenantStats,
    Totals,
)
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio


def space(number: int) -> SpaceStats:
    return SpaceStats(
        f"{number:032x}", "m", "", "bf16", 1, 0, 64, blocks=2, bytes=128, padding_bytes=3, segments=1
    )


async def test_a_scrape_has_what_nodes_tell_and_labels_stay_bounded(plane: Plane, node: FakeNode) -> None:
    node.stats = msgspec.structs.replace(
        node.stats,
        pool=PoolStats(capacity_bytes=9, padding_bytes=7, prefaulted_bytes=5, huge_pages=True),
        totals=Totals(corrupt_blocks=4, invalidated_blocks=6),
        policy=PolicyStats("arc", gate_closed=True, victim_idle_s=1.5, admitted_blocks=2, declined_blocks=3),
        spaces=[space(number) for number in range(300)],
        sweeps=[SweepStats(1, "invalidate", 10, leased=2), SweepStats(2, "demote", 1, leased=0)],
        engines=[
            EngineStats(
                n, 42, "g", "vllm", 0.0, [], connected=n > 0, quarantined_bytes=64, waits_for_pids=[42, 43]
            )
            for n in range(300)
        ],
        tenants=[TenantStats(f"t{n}", bytes=n, effective_floor_bytes=10) for n in range(60)],
    )
    await plane.until(lambda: any(s.sweeps for s in plane.app.parts.fleet.stats()))
    text = (await plane.http.get("/metrics")).text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    values = {sample.name: sample.value for sample in samples}
    assert {
        name: values[f"larder_{name}"]
        for name in ("pool_padding_bytes", "pool_prefaulted_bytes", "pool_huge_pages", "corrupt_blocks_total",
                     "invalidated_blocks_total", "admission_gate_closed", "victim_idle_seconds",
                     "admission_declined_blocks_total", "sweep_leased_blocks")
    } == {
        "pool_padding_bytes": 7, "pool_prefaulted_bytes": 5, "pool_huge_pages": 1, "corrupt_blocks_total": 4,
        "invalidated_blocks_total": 6, "admission_gate_closed": 1, "victim_idle_seconds": 1.5,
        "admission_declined_blocks_total": 3, "sweep_leased_blocks": 2,
    }  # fmt: skip
    (policy,) = [s for s in samples if s.name == "larder_policy_in_force"]
    assert policy.labels["algorithm"] == "arc"
    counts = {name: sum(s.name == f"larder_{name}" for s in samples) for name in ("space_bytes", "sweeps")}
    assert counts == {"space_bytes": 50, "sweeps": 2}
    assert sum(s.name == "larder_engine_quarantined_bytes" for s in samples) == 100
    waiting = [s for s in samples if s.name == "larder_engine_waits_for_processes"]
    assert [(s.labels["client"], s.labels["pid"], s.value) for s in waiting if s.value] == [("0", "42", 2)]
    floors = {s.labels["tenant"]: s.value for s in samples if s.name == "larder_tenant_effective_floor_bytes"}
    assert (len(floors), floors["other"]) == (51, 100)


async def test_yes_or_no_of_the_pool_stays_so_in_the_overview(plane: Plane, node: FakeNode) -> None:
    node.stats = msgspec.structs.replace(node.stats, pool=PoolStats(capacity_bytes=9, huge_pages=True))
    await plane.until(lambda: any(s.pool.huge_pages for s in plane.app.parts.fleet.stats()))
    pool = (await plane.get("/api/v1/overview"))["pool"]
    assert (pool["huge_pages"], pool["locked"], pool["capacity_bytes"]) == (True, False, 9)

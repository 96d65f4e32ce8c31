"""Metrics of a node's policy, spaces, engines and sweeps, with bounded labels."""

from pathlib import Path
from typing import Any

import pytest

from dataplane.protocol.stats.engines import EngineStats
from dataplane.protocol.stats.gateways import GatewayOperation, GatewayStats
from dataplane.protocol.stats.kv_events import KvEventStats
from dataplane.protocol.stats.pool import PolicyStats, PoolStats, SpaceStats, SweepStats, Totals
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane, serving, settings_in

pytestmark = pytest.mark.anyio


def space(number: int) -> SpaceStats:
    return SpaceStats(f"{number:032x}", "m", "", "bf16", 1, 0, 64, blocks=2, bytes=128, padding_bytes=3, segments=1)


async def test_a_scrape_has_the_numbers_of_nodes_and_bounded_labels(plane: Plane, node: FakeNode) -> None:
    await plane.report(
        node,
        pool=PoolStats(capacity_bytes=9, padding_bytes=7, prefaulted_bytes=5, huge_pages=True),
        totals=Totals(corrupt_blocks=4, invalidated_blocks=6),
        policy=PolicyStats("arc", gate_closed=True, victim_idle_s=1.5, admitted_blocks=2, declined_blocks=3),
        spaces=[space(number) for number in range(300)],
        sweeps=[SweepStats(1, "invalidate", 10, leased=2), SweepStats(2, "demote", 1, leased=0)],
        engines=[
            EngineStats(
                n, n, f"g{n}", f"vllm {n // 2:03}", 0.0, [], n > 1, quarantined_bytes=64, waits_for_pids=[42, 43]
            )
            for n in range(300)
        ],
        tenants=[TenantStats(f"t{n}", bytes=n, effective_floor_bytes=10) for n in range(60)],
    )
    samples = await plane.samples()
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
    quarantined = {s.labels["engine"]: s.value for s in samples if s.name == "larder_engine_quarantined_bytes"}
    assert (len(quarantined), quarantined["vllm 000"], quarantined["other"]) == (101, 128, 50 * 128)
    waiting = [s for s in samples if s.name == "larder_engine_waits_for_processes"]
    assert [(s.labels["engine"], s.value) for s in waiting if s.value] == [("vllm 000", 4)]
    floors = {s.labels["tenant"]: s.value for s in samples if s.name == "larder_tenant_effective_floor_bytes"}
    assert (len(floors), floors["other"]) == (51, 100)


async def test_booleans_of_the_pool_stay_booleans_in_the_overview(plane: Plane, node: FakeNode) -> None:
    await plane.report(node, pool=PoolStats(capacity_bytes=9, huge_pages=True))
    pool = (await plane.get("/api/v1/overview"))["pool"]
    assert (pool["huge_pages"], pool["locked"], pool["capacity_bytes"]) == (True, False, 9)


def gateway(**more: Any) -> GatewayStats:
    return GatewayStats(
        gateway="lmcache",
        url="tcp://127.0.0.1:5555",
        memory_name="lmcache_l1_pool_a",
        memory_bytes=1000,
        chunk_tokens=256,
        connections=2,
        lookups=3,
        lookups_ended={"expired": 4},
        instances=[],
        operations=[
            GatewayOperation("lookup", 5, {"unknown_instance": 1}, 0.25, [3, 1, 1]),
            GatewayOperation("prepare_store", 9, {"refused": 2}, 0.1, [9, 0, 0]),
            GatewayOperation("commit_store", 6, {"pickled": 1}, 0.1, [6, 0, 0]),
            GatewayOperation("commit_retrieve", 8, {}, 0.1, [8, 0, 0]),
            GatewayOperation("prepare_retrieve", 8, {}, 0.1, [8, 0, 0]),
        ],
        bounds_s=[0.001, 0.1],
        unanswered=7,
        chunks_in=20,
        chunks_out=21,
        requested_chunks=10,
        hit_chunks=4,
        tier_hit_chunks=1,
        **more,
    )


async def samples_of(plane: Plane) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return values by name and labels other than `node`."""
    return {
        (sample.name, frozenset(sample.labels.items()) - {("node", "node-a")}): sample.value
        for sample in await plane.samples()
    }


async def test_a_gateway_has_metrics_by_operation_and_under_lmcaches_names(plane: Plane, node: FakeNode) -> None:
    await plane.report(node, pool=PoolStats(capacity_bytes=8, used_bytes=2, reserved_bytes=1), gateway=gateway())
    found = await samples_of(plane)

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    of = {"gateway": "lmcache"}
    assert value("larder_gateway_requests_total", **of, operation="lookup") == 5
    assert value("larder_gateway_failures_total", **of, operation="lookup", reason="unknown_instance") == 1
    assert value("larder_gateway_request_seconds_bucket", **of, operation="lookup", le="0.1") == 4
    assert value("larder_gateway_request_seconds_bucket", **of, operation="lookup", le="+Inf") == 5
    assert value("larder_gateway_request_seconds_sum", **of, operation="lookup") == 0.25
    assert value("larder_gateway_lookups_ended_total", **of, reason="expired") == 4
    assert value("lmcache_mp_l1_write_chunks_total", l1_tag="_default") == 20
    assert value("lmcache_mp_lookup_requested_tokens_total") == 2560
    assert value("lmcache_mp_lookup_hit_tokens_total") == 1024
    assert value("lmcache_mp_lookup_hit_l1_tokens_total") == 768
    assert value("lmcache_mp_lookup_hit_l2_tokens_total") == 256
    assert value("lmcache_mp_num_submitted_stores_total", device="cpu") == 8
    assert value("lmcache_mp_num_finished_stores_total", device="cpu") == 5
    assert value("lmcache_mp_num_finished_retrieves_total", device="cpu") == 8
    assert value("lmcache_mp_l1_usage_ratio", l1_tag="_default", backend="dram") == 0.25


async def test_lmcaches_names_are_omitted_if_disabled_or_without_a_gateway(
    socket_dir: Path, new_node: FakeNode
) -> None:
    async with serving(settings_in(socket_dir, lmcache_metrics=False)) as plane:
        await plane.until_state("in_sync")
        assert not any(name.startswith("larder_gateway") for name, _ in await samples_of(plane))
        await plane.report(new_node, gateway=gateway())
        names = {name for name, _ in await samples_of(plane)}
        assert "larder_gateway_lookups" in names
        assert not any(name.startswith("lmcache_") for name in names)


async def test_the_counters_of_a_publisher_of_kv_events_are_metrics(plane: Plane, node: FakeNode) -> None:
    async def counters() -> dict[str, float]:
        return {s.name: s.value for s in await plane.samples() if s.name.startswith("larder_kv_events")}

    assert await counters() == {}
    await plane.report(node, kv_events=KvEventStats(["tcp://*:5557"], 70, 3, 20, 2))
    counted = {"published": 70, "dropped": 3, "replayed": 20, "replays_abandoned": 2}
    expected = {f"larder_kv_events_{name}_total": value for name, value in counted.items()}
    assert (await counters()).items() >= expected.items()

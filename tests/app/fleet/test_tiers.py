"""Tiers of a node: in the API, as metrics, and on the command line."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from app.observe.bounded import TENANT_LABELS
from dataplane.protocol.spaces import TIER_MOVER
from dataplane.protocol.stats.engines import EngineStats
from dataplane.protocol.stats.histogram import Histogram
from dataplane.protocol.stats.tiers import TierStats, TierTenantStats
from tests.app.callers import create_token, send
from tests.app.command import output
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio

OF = {"node": "node-a", "tier": "disk"}


def tier(**more: Any) -> TierStats:
    numbers: dict[str, Any] = {
        "budget_bytes": 1 << 30,
        "serves": True,
        "blocks": 100,
        "stored_bytes": 512 << 20,
        "logical_bytes": 768 << 20,
        "encodings": {"zstd": 90, "none": 10},
        "spilled_blocks": 120,
        "spilled_bytes": 600 << 20,
        "cascaded_blocks": 30,
        "loaded_blocks": 7,
        "loaded_bytes": 35 << 20,
        "evicted_blocks": 20,
        "load_bytes_per_s": 2.5e9,
    }
    return TierStats(**{"name": "disk", "type": "disk", **numbers, **more})


async def samples(plane: Plane) -> dict[tuple[str, ...], float]:
    return {
        (s.name.removeprefix("larder_tier_"), *(s.labels[k] for k in s.labels if k not in OF)): s.value
        for s in await plane.samples()
        if s.name.startswith("larder_tier_")
    }


async def test_a_scrape_has_each_tier(plane: Plane, node: FakeNode) -> None:
    assert await samples(plane) == {}
    node.stats.tier_load_seconds = {"disk": Histogram([0.1, 1.0], [1, 0, 2], 4.5)}
    await plane.report(
        node,
        tiers=[
            tier(
                refused={"away": 3, "budget": 1, "a": 2, "b": 5},
                lost={"corrupt": 1},
                not_compressed={"size": 4, "dtype": 1, "x": 2},
                out_of_service=2,
                foreign_objects=3,
                waiting_blocks=4,
                waiting_bytes=10,
                spilling_bytes=11,
                loading_bytes=12,
            )
        ],
    )
    found = await samples(plane)
    durations = {names[1:]: value for names, value in found.items() if names[0].startswith("load_seconds")}
    assert durations == {("0.1",): 1, ("1.0",): 1, ("+Inf",): 3, (): 4.5}
    numbers = {names[0]: value for names, value in found.items() if len(names) == 1 and "seconds" not in names[0]}
    assert numbers == {
        "serves": 1, "out_of_service_total": 2, "budget_bytes": 1 << 30, "stored_bytes": 512 << 20,
        "logical_bytes": 768 << 20, "blocks": 100, "foreign_objects": 3,
        "waiting_blocks": 4, "waiting_bytes": 10, "spilling_bytes": 11, "loading_bytes": 12,
        "load_bytes_per_second": 2.5e9,
        "cascaded_blocks_total": 30,
        "spilled_blocks_total": 120, "spilled_bytes_total": 600 << 20, "loaded_blocks_total": 7,
        "loaded_bytes_total": 35 << 20, "evicted_blocks_total": 20,
        "directory_blocks": 0, "directory_unlisted_total": 0,
    }  # fmt: skip
    refused = {names[1]: value for names, value in found.items() if names[0] == "refused_blocks_total"}
    assert refused == {"away": 3, "budget": 1, "other": 7}
    assert found["lost_blocks_total", "corrupt"] == 1
    reasons = {names[1]: value for names, value in found.items() if names[0] == "not_compressed_blocks_total"}
    assert reasons == {"size": 4, "dtype": 1, "other": 2}
    await plane.report(node, tiers=[tier(serves=False, reason="Input/output error")])
    assert (await samples(plane))["serves",] == 0


async def test_tenants_of_a_tier_are_bounded(plane: Plane, node: FakeNode) -> None:
    tenants = [TierTenantStats(f"t{number:02}", number, 100 * number) for number in range(49, 0, -1)]
    tenants += [TierTenantStats("other", 9, 900)]
    blocks = sum(each.blocks for each in tenants) + 3  # 3 blocks of tenants that the node does not list
    stored = sum(each.bytes for each in tenants) + 300 + 50
    await plane.report(node, tiers=[tier(tenants=tenants, blocks=blocks, stored_bytes=stored, spilling_bytes=50)])
    found = await samples(plane)
    in_bytes = {names[1]: value for names, value in found.items() if names[0] == "tenant_bytes"}
    assert (len(in_bytes), in_bytes["t49"], in_bytes["other"]) == (50, 4900, 1200)
    assert found["tenant_blocks", "other"] == 12
    many = [TierTenantStats(f"u{number:03}", 1, 10) for number in range(TENANT_LABELS + 10)]
    await plane.report(node, tiers=[tier(tenants=many, blocks=len(many), stored_bytes=10 * len(many))])
    found = await samples(plane)
    assert found["tenant_blocks", "other"] == 10
    assert len([names for names in found if names[0] == "tenant_blocks"]) == TENANT_LABELS + 1


async def test_the_api_shows_tiers_only_to_callers_of_all_tenants(new_node: FakeNode, new_guarded: Plane) -> None:
    await new_guarded.until_state("in_sync")
    broken = tier(serves=False, reason="Input/output error", tenants=[TierTenantStats("rival", 1, 9)])
    await new_guarded.report(new_node, tiers=[broken])
    (shown,) = (await new_guarded.get("/api/v1/nodes/node-a"))["stats"]["tiers"]
    assert (shown["name"], shown["serves"], shown["reason"]) == ("disk", False, "Input/output error")
    assert (shown["tenants"][0]["tenant"], shown["tenants"][0]["bytes"]) == ("rival", 9)
    (listed,) = (await new_guarded.get("/api/v1/nodes"))["items"]
    assert listed["stats"]["tiers"] == [shown]
    token = await create_token(new_guarded, "reader", tenants=["acme"])
    for path in ("/api/v1/nodes", "/api/v1/nodes/node-a", "/api/v1/overview"):
        answer = await send(new_guarded, token, "GET", path)
        assert (answer.status_code, "rival" in answer.text, "Input/output" in answer.text) == (200, False, False)


async def test_the_command_line_lists_tiers(plane: Plane, node: FakeNode) -> None:
    assert "no node has a tier behind memory" in await output(plane, "nodes", "tiers")
    await plane.report(
        node, tiers=[tier(refused={"budget": 2, "away": 1}), tier(name="two", serves=False, reason="no such device")]
    )
    out = await output(plane, "nodes", "tiers", "-o", "wide")
    assert [
        text
        for text in ("disk", "512 MiB", "1 GiB", "67%", "90 zstd, 10 none", "in service", "no such device")
        if text not in out
    ] == []
    rows = json.loads(await output(plane, "nodes", "tiers", "node-a", "--json"))
    assert [(row["node"], row["name"], row["serves"]) for row in rows] == [
        ("node-a", "disk", True),
        ("node-a", "two", False),
    ]
    for command in (("status",), ("nodes", "list")):
        assert "node-a tier two: out of service: no such device" in await output(plane, *command), command
    assert "but tier two of node node-a is out of service" in await output(plane, "status")


async def test_the_engine_that_loads_from_tiers_is_not_shown(plane: Plane, node: FakeNode) -> None:
    """It never leaves: `larder nodes drain --wait` must not wait for it."""
    mover = EngineStats(1, 7, TIER_MOVER, "", 0.0, [], connected=True)
    node.stats = msgspec.structs.replace(node.stats, engines=[mover])
    await plane.report(node, tiers=[tier()])
    assert (await plane.node())["stats"]["engines"] == []
    assert 'larder_engines{node="node-a"} 0.0' in (await plane.http.get("/metrics")).text
    assert "1 engine left" not in await output(plane, "nodes", "drain", "node-a", "--wait", "30s")

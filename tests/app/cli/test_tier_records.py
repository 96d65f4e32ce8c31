"""`larder tiers` for records: what it sends and says."""

import asyncio
import json

import msgspec
import pytest

from dataplane.protocol.control.snapshots import Fault
from dataplane.protocol.stats.tiers import TierStats, TierTenantStats
from dataplane.protocol.tiers import TierSpec
from tests.app.command import larder, output, refused
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.app.problems import accepted

pytestmark = pytest.mark.anyio
PARAMETERS = "directories: [/mnt/nvme0/larder]"
SET = ("tiers", "set", "nvme", "--type", "disk", "--budget", "2TiB", "--parameters", PARAMETERS)


async def test_a_tier_is_set_by_parts_shown_and_deleted(plane: Plane, node: FakeNode) -> None:
    assert await output(plane, *SET, "--wait", "30s") == "nvme: disk, budget 2 TiB, spill commit, order 0; applied\n"
    out = await output(plane, "tiers", "set", "nvme", "--spill", "evict", "--wait", "30s")
    assert out == "nvme: disk, budget 2 TiB, spill evict, order 0; applied\n"
    assert node.tiers == [TierSpec("nvme", "disk", 2 << 40, {"directories": ["/mnt/nvme0/larder"]}, spill="evict")]
    reported = TierStats("nvme", "disk", 2 << 40, True, blocks=1040, stored_bytes=64 << 20, from_settings=False)
    reported.logical_bytes, reported.encodings = 128 << 20, {"none": 40, "zstd": 1000}
    reported.tenants = [TierTenantStats("acme", 1000, 60 << 20), TierTenantStats("", 40, 4 << 20)]
    reported.waiting_bytes, reported.spilling_bytes = 3 << 20, 1 << 20
    await plane.report(node, tiers=[reported])
    out = await output(plane, "tiers", "list", "-o", "wide")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "settings" not in out
    assert lines[:3] == [
        "Tiers (1)",
        "name type nodes budget stored blocks unspilled spill order deadline in flight compress ratio state owner note",
        "nvme disk all 2 TiB 64 MiB 1,040 4 MiB evict 0 5s 64 MiB none 50% applied -",
    ]
    out = await output(plane, "tier", "get", "nvme")
    generation = (await plane.get("/api/v1/tiers/nvme"))["generation"]
    assert [" ".join(line.split()) for line in out.splitlines()[-2:]] == [
        "node state generation stored blocks encodings tier",
        f"node-a in_sync {generation} 64 MiB 1,040 1,000 zstd, 40 none in service",
    ]
    listed = msgspec.structs.replace(reported, listed_blocks=1204, listing_fault="no answer")
    await plane.report(node, tiers=[listed])
    out = await output(plane, "tier", "get", "nvme", "-o", "wide")
    out = " ".join(out.split())
    assert "in service, listing, 1,204 blocks so far; no answer; it is tried again" in out
    assert f"node-a in_sync {generation} 64 MiB 1,040 4 MiB 1,000 zstd" in out
    assert json.loads(await output(plane, "tiers", "--json"))["items"][0]["stats"]["node-a"]["blocks"] == 1040
    await output(plane, "tiers", "describe", "nvme")
    assert (await output(plane, "tiers", "delete", "nvme", "--dry-run")).splitlines() == [
        "nvme: 1,040 blocks (64 MiB) that it holds could no longer be loaded",
        "to keep them in use, drain it first: larder tiers set nvme --spill drain",
    ]
    assert len(node.tiers) == 1
    out = await output(plane, "tiers", "delete", "nvme", "--wait", "30s")
    assert out.startswith("nvme: tier deleted; 1,040 blocks (64 MiB) that it holds")
    assert node.tiers == []


async def test_tiers_of_the_settings_are_listed_with_their_nodes(plane: Plane, node: FakeNode) -> None:
    reported = TierStats("disk", "disk", 1 << 30, True, blocks=7, stored_bytes=56 << 10, waiting_bytes=8 << 10)
    await plane.report(node, tiers=[reported])
    out = await output(plane, "tiers", "list")
    assert [" ".join(line.split()) for line in out.splitlines()][-3:] == [
        "Tiers of settings (1)",
        "name type node budget stored blocks unspilled tier",
        "disk disk node-a 1 GiB 56 KiB 7 8 KiB in service",
    ]
    answer = json.loads(await output(plane, "tiers", "list", "--json"))
    assert (answer["items"], answer["total"]) == ([], 0)
    assert [(each["name"], each["unspilled_bytes"]) for each in answer["from_settings"]] == [("disk", 8 << 10)]
    for query, found in (("type=disk", 1), ("type=s3", 0), ("managed_by=x", 0)):
        assert len((await plane.get(f"/api/v1/tiers?{query}"))["from_settings"]) == found


async def test_why_a_tier_does_not_serve_is_shown_in_full(plane: Plane, node: FakeNode) -> None:
    await output(plane, *SET, "--wait", "30s")
    reason = "credentials.access_key_id: the environment variable TIER_ACCESS_KEY_OF_THE_BUCKET is not set"
    reported = TierStats("nvme", "disk", 2 << 40, False, from_settings=False, state="not opened", reason=reason)
    await plane.report(node, tiers=[reported])
    out = await output(plane, "tiers", "get", "nvme")
    assert out.endswith(f"\n  node-a: not opened: {reason}\n")
    code, out, err = await larder(plane, *SET, "--wait", "30s")
    assert (code, out.endswith(f"applied\n  node-a: not opened: {reason}\n")) == (1, True), out
    assert "tier nvme is not open on node-a" in err
    out = await output(plane, "nodes", "tiers")
    assert out.endswith(f"\n  node-a nvme: not opened: {reason}\n")
    assert (await output(plane, "nodes", "tiers", "-o", "wide")).count(reason) == 1
    assert "max_bytes_in_flight: 64 MiB" in " ".join((await output(plane, "tiers", "describe", "nvme")).split())


async def test_a_set_waits_while_nodes_open_the_tier(plane: Plane, node: FakeNode) -> None:
    opening = TierStats(
        "nvme", "disk", 2 << 40, False, from_settings=False, state="opening", reason="it is being opened"
    )
    await plane.report(node, tiers=[opening])
    await output(plane, *SET, "--wait", "0s")
    await plane.until(lambda: len(node.tiers) == 1)
    await plane.until_state("in_sync")
    assert (await output(plane, *SET, "--wait", "100ms")).splitlines()[1:] == [
        "  node-a: opening: it is being opened",
        "to see whether the nodes could open it: larder tiers get nvme",
    ]
    _, out, _ = await larder(plane, "status")
    assert ("Tier nvme of node node-a is opening" in out, "out of service" in out) == (True, False)
    waiting = asyncio.create_task(larder(plane, *SET, "--wait", "30s"))
    opened = msgspec.structs.replace(opening, state="in service", serves=True, reason="")
    node.stats = msgspec.structs.replace(node.stats, tiers=[opened])
    assert (await waiting)[1].endswith("order 0; applied\n")


async def test_a_dry_run_changes_nothing_and_fails_where_a_node_would_refuse(plane: Plane, node: FakeNode) -> None:
    assert await output(plane, *SET, "--dry-run") == "node-a: accepted\n"
    node.faults = [Fault("tiers[0].name", "bad_field", "'nvme' is a tier of the settings")]
    code, out, _ = await larder(plane, *SET, "--dry-run")
    assert (code, out) == (1, "node-a: tiers.nvme.name: 'nvme' is a tier of the settings\n")
    assert (await plane.get("/api/v1/tiers"))["total"] == 0
    code, out, _ = await larder(plane, *SET, "--wait", "30s")
    assert "waiting (node-a: nacked)" in out
    refusal = "  node-a refused tiers: tiers.nvme.name: 'nvme' is a tier of the settings\n"
    assert refusal in out
    assert refusal in await output(plane, "tiers", "list")
    assert refusal in await output(plane, "tiers", "get", "nvme")
    assert "node-a refused tiers: tiers[0].name" in await output(plane, "status")


async def test_a_dry_run_names_the_nodes_that_the_selector_does_not_select(plane: Plane, node: FakeNode) -> None:
    code, out, err = await larder(plane, *SET, "--selector", "zone=b", "--dry-run")
    nowhere = "no node matches the selector zone=b: the tier would apply nowhere"
    assert (code, out) == (0, f"node-a: not selected\n{nowhere}\n"), err
    tried = await larder(plane, *SET, "--selector", "zone=b", "--dry-run", "-o", "json")
    assert [item["selected"] for item in json.loads(tried[1])["items"]] == [False]
    headers = {"Content-Type": "application/merge-patch+json"}
    accepted(await plane.http.patch("/api/v1/nodes/node-a", json={"labels": {"zone": "b"}}, headers=headers), 200)
    assert await larder(plane, *SET, "--selector", "zone=b", "--dry-run") == (0, "node-a: accepted\n", "")
    node.faults = [Fault("tiers", "too_many", "expected at most 8 tiers on a node")]
    code, out, _ = await larder(plane, *SET, "--selector", "zone=c", "--dry-run")
    assert (code, out.splitlines()[0]) == (1, "node-a: not selected; tiers: expected at most 8 tiers on a node")
    code, out, _ = await larder(plane, "policies", "check", "big", "--algorithm", "arc", "--selector", "zone=c")
    assert out.splitlines()[0].startswith("node-a: not selected")


async def test_a_tier_that_selects_no_node_is_reported(plane: Plane, node: FakeNode) -> None:
    nowhere = "  nvme: no node matches the selector rack=7,zone=b\n"
    out = await output(plane, *SET, "--selector", "zone=b", "--selector", "rack=7")
    assert out == f"nvme: disk, budget 2 TiB, spill commit, order 0; waiting (no node)\n{nowhere}"
    for words in (("tiers", "list"), ("tiers", "get", "nvme")):
        out = await output(plane, *words)
        assert "waiting (no node)" in out
        assert out.endswith(nowhere)
    out = await output(plane, "tiers", "describe", "nvme")
    assert "no node matches the selector rack=7,zone=b" in " ".join(out.split())
    assert node.tiers == []


async def test_invalid_values_are_refused_by_option_or_field(plane: Plane) -> None:
    await refused(plane, 2, "tiers", "set", "nvme")
    for text in ("[1]", "a: b: c", "word", "a: 1\n---\nb: 2"):
        assert "--parameters" in await refused(plane, 2, *SET[:-1], text)
    secret = ("--type", "redis", "--parameters", "{servers: ['cache:6379'], password: hunter2}")
    code, out, err = await larder(plane, "tiers", "set", "cache", "--budget", "1GiB", *secret)
    assert code == 1
    assert "parameters.password: expected a reference to the secret" in err
    assert "hunter2" not in out + err
    err = await refused(plane, 1, "tiers", "create", "nvme", "--type", "disk", "--parameters", PARAMETERS)
    assert err == "Error: budget_bytes: expected a value\n"

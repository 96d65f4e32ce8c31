"""Quotas in tiers, and what tiers hold of pins: in the API, in documents, on the command line and as metrics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dataplane.protocol.control.records import QuotaSpec, TierQuota
from dataplane.protocol.stats.pins import PinInTier, PinStats
from dataplane.protocol.stats.tiers import TierStats, TierTenantStats
from tests.app.callers import create_token, send
from tests.app.command import larder, output, refused
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.app.problems import accepted

pytestmark = pytest.mark.anyio
Q = "/api/v1/quotas/acme"
GIB = 1 << 30
DISK = TierQuota(10 * GIB, 100 * GIB)


async def put(plane: Plane, **body: Any) -> Any:
    response = await plane.http.put(f"{Q}?wait=30s", json=body)
    if response.status_code == 428:
        response = await plane.http.put(f"{Q}?wait=30s", json=body, headers={"If-Match": "*"})
    assert response.is_success, response.text
    return response.json()


async def test_a_quota_of_tiers_reaches_the_node_and_is_patched_in_parts(plane: Plane, node: FakeNode) -> None:
    first = await plane.http.put(
        f"{Q}?wait=30s", json={"tiers": {"disk": {"floor_bytes": "10GiB", "limit_bytes": "100GiB"}, "b": {}}}
    )
    assert first.status_code == 201, first.text
    assert node.quotas == [QuotaSpec("acme", tiers={"disk": DISK, "b": TierQuota()})]
    assert first.json()["tiers"] == {"b": {}, "disk": {"floor_bytes": 10 * GIB, "limit_bytes": 100 * GIB}}
    patch = {"tiers": {"b": None, "disk": {"limit_bytes": None}, "c": {"limit_bytes": 7}}}
    changed = await plane.http.patch(f"{Q}?wait=30s", json=patch, headers={"If-Match": "*"})
    assert changed.json()["tiers"] == {"c": {"limit_bytes": 7}, "disk": {"floor_bytes": 10 * GIB}}
    assert node.quotas[0].tiers == {"c": TierQuota(limit_bytes=7), "disk": TierQuota(10 * GIB)}
    entry = (await plane.get("/api/v1/audit?kind=quota&limit=1"))["items"][0]
    assert entry["after"]["tiers"] == changed.json()["tiers"]
    (tenant,) = (await plane.get("/api/v1/tenants"))["items"]
    assert tenant["tiers"]["c"]["limit_bytes"] == 7
    await put(plane, limit_bytes=None)
    assert node.quotas == [QuotaSpec("acme")]
    assert b"tiers" not in node.received[-1].body, "nodes of older releases accept it"


async def test_a_ceiling_does_not_allow_quotas_of_tiers(guarded: Plane) -> None:
    token = await create_token(guarded, "acme-op", "operator", tenants=["acme"])
    await guarded.http.put("/api/v1/ceilings/acme", json={"max_limit_bytes": "4GiB"})
    body = {"limit_bytes": "1GiB", "pin_budget_bytes": None}
    refused = await send(guarded, token, "PUT", Q, json={**body, "tiers": {"disk": {"limit_bytes": 1}}})
    assert (refused.status_code, refused.json()["errors"][-1]["path"]) == (403, "tiers")
    accepted(await guarded.http.put(Q, json={**body, "tiers": {"disk": {"limit_bytes": 1}}}), 201)
    lowered = {**body, "limit_bytes": "512MiB", "tiers": {"disk": {"limit_bytes": 1}}}
    lower = await send(guarded, token, "PUT", Q, json=lowered, headers={"If-Match": "*"})
    assert (lower.status_code, lower.json().get("tiers")) == (200, {"disk": {"limit_bytes": 1}})


async def test_documents_write_sizes_of_tiers_with_units(plane: Plane) -> None:
    await put(plane, tiers={"disk": {"floor_bytes": "10GiB", "limit_bytes": "100GiB"}})
    document = (await plane.get("/api/v1/export"))["document"]
    (quota,) = document["quotas"]
    assert quota["tiers"] == {"disk": {"floor_bytes": "10GiB", "limit_bytes": "100GiB"}}
    quota["tiers"]["disk"]["limit_bytes"] = "200GiB"
    applied = await plane.http.post("/api/v1/apply", json={"document": document})
    assert applied.json()["updated"] == 1
    assert (await plane.get(Q))["tiers"]["disk"]["limit_bytes"] == 200 * GIB


async def test_the_command_line_sets_quotas_of_tiers(plane: Plane, node: FakeNode) -> None:
    await plane.report(node, tiers=[TierStats("disk", "disk", 1000, serves=True)])
    code, out, err = await larder(
        plane, "quotas", "set", "acme", "1GiB", "--tier-limit", "disk=100GiB", "--tier-floor", "disk=10GiB",
        "--tier-limit", "far=1TiB", "--wait", "30s",
    )  # fmt: skip
    assert (code, err, out.splitlines()[1]) == (0, "", "Warning: no node reports a tier called 'far'")
    accepted = (await plane.get(Q))["status"]["conditions"][0]
    assert accepted["message"].endswith(" of quotas; no node reports a tier called 'far'")
    assert "disk limit 100 GiB floor 10 GiB, far limit 1 TiB" in out
    assert node.quotas[0].tiers == {"disk": DISK, "far": TierQuota(limit_bytes=1 << 40)}
    code, out, _ = await larder(plane, "quotas", "set", "acme", "--weight", "2")
    assert (code, "kept: limit 1 GiB" in out, "far limit 1 TiB" in out) == (0, True, True)
    code, out, err = await larder(
        plane, "quotas", "set", "acme", "--tier-limit", "far=none", "--tier-floor", "disk=0", "--wait", "30s"
    )
    assert (err, node.quotas[0].tiers) == ("", {"disk": TierQuota(limit_bytes=100 * GIB)})
    assert "disk limit 100 GiB" in await output(plane, "quotas", "list", "-o", "wide")
    for wrong in (["--tier-limit", "disk"], ["--tier-limit", "=1"], ["--tier-floor", "a=1", "--tier-floor", "a=2"]):
        assert wrong[0] in await refused(plane, 2, "quotas", "set", "acme", *wrong)
    assert "tiers.disk.floor_bytes" in await refused(plane, 1, "quotas", "set", "acme", "--tier-floor", "disk=101GiB")


async def test_a_pin_shows_its_blocks_in_tiers(plane: Plane, node: FakeNode) -> None:
    await plane.put_pin("p")
    in_tier = PinInTier(12, 96 << 20, 10)
    stats = PinStats("p", resolved=12, resident=0, bytes=0, guaranteed=0, tiers={"disk": in_tier})
    await plane.report(node, pins=[stats])
    for shown in (await plane.get("/api/v1/pins/p"), (await plane.get("/api/v1/pins"))["items"][0]):
        assert shown["tiers"] == {"disk": {"blocks": 12, "bytes": 96 << 20, "guaranteed": 10}}
        assert shown["nodes"]["node-a"]["tiers"] == shown["tiers"]
        assert shown["holds_nothing"] is False, "the disk has them"
        assert shown["summary"].endswith("12 in disk")
    assert "disk 12 (96 MiB)" in await output(plane, "pins", "list", "-o", "wide")
    out = await output(plane, "pins", "get", "p", "--json")
    assert json.loads(out)["tiers"]["disk"]["guaranteed"] == 10


async def test_a_scrape_has_quotas_in_tiers(plane: Plane, node: FakeNode) -> None:
    tenants = [TierTenantStats("acme", 2, 200, 100, 90, 300), TierTenantStats("rival", 1, 50)]
    tier = TierStats("disk", "disk", 1000, serves=True, blocks=3, stored_bytes=250, tenants=tenants)
    await plane.report(node, tiers=[tier])
    found = {
        (sample.name, sample.labels["tenant"]): sample.value
        for sample in await plane.samples()
        if sample.name.startswith(("larder_tier_tenant_floor", "larder_tier_tenant_limit"))
    }
    assert found == {("larder_tier_tenant_floor_bytes", "acme"): 90, ("larder_tier_tenant_limit_bytes", "acme"): 300}

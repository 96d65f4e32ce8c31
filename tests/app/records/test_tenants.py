"""Tenants: reports of nodes, quotas and pins in one list; and a quota for a tenant without one."""

from typing import Any

import pytest
from msgspec.structs import replace

from app.errors import Forbidden
from app.schemas.base.listing import PageRequest
from app.services.base.principals import Principal
from app.services.records.tenants import merged
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pool import PoolStats, Totals
from dataplane.protocol.stats.tenants import TenantStats
from dataplane.protocol.stats.tiers import TierStats, TierTenantStats
from tests.app.command import larder
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.app.problems import accepted, fault_paths, is_problem

pytestmark = pytest.mark.anyio
T = "/api/v1/tenants"
REPORTED = [
    TenantStats("wild", bytes=500, blocks=5, requested_blocks=8, hit_blocks=2, refused_blocks=3, refused={"rate": 3}),
    TenantStats("acme", bytes=120, blocks=2, limit_bytes=100, managed=True, over_limit=True),
    TenantStats("_default", bytes=7, blocks=1),
]
REPORT = NodeStats(
    at=0.0, node="a", epoch="e", uptime_s=0.0, armed=True, pool=PoolStats(), totals=Totals(), refused={},
    tenants=[], other_tenants=None, pins=[], engines=[], observed={},
)  # fmt: skip


@pytest.fixture
async def reporting_plane(plane: Plane, node: FakeNode) -> Plane:
    """A plane whose node keeps something of three tenants; one has a quota, and a fourth has only a pin."""
    await plane.put_quota("acme", 100)
    await plane.put_pin("p", tenant="pinned")
    await plane.report(node, tenants=REPORTED)
    return plane


async def names(plane: Plane, query: str = "") -> list[str]:
    return [item["tenant"] for item in (await plane.get(f"{T}?{query}"))["items"]]


async def test_a_tenant_is_listed_once_it_keeps_something_or_has_a_quota_or_a_pin(reporting_plane: Plane) -> None:
    assert await names(reporting_plane) == ["_default", "acme", "pinned", "wild"]
    assert await names(reporting_plane, "managed=true") == ["acme"]
    assert await names(reporting_plane, "managed=false") == ["_default", "pinned", "wild"]
    wild = await reporting_plane.get(f"{T}/wild")
    assert (wild["bytes"], wild["hit_ratio"], wild["refused"], wild["managed"]) == (500, 0.25, {"rate": 3}, False)
    acme = await reporting_plane.get(f"{T}/acme")
    assert (acme["managed"], acme["over_limit"], acme["limit_bytes"], acme["hit_ratio"]) == (True, True, 100, None)
    assert (await reporting_plane.get(f"{T}/pinned"))["pins"] == 1
    assert (await reporting_plane.get(f"{T}/_default"))["bytes"] == 7
    assert (await reporting_plane.http.get(f"{T}/nobody")).status_code == 404
    assert (await reporting_plane.http.get(f"{T}/a@b")).status_code == 422


async def test_a_tenant_without_a_record_that_never_did_anything_is_no_tenant(
    reporting_plane: Plane, node: FakeNode
) -> None:
    others = [TenantStats("gone", weight=2.0), TenantStats("asked", requested_blocks=1),
              TenantStats("floor", floor_bytes=9, effective_floor_bytes=4)]  # fmt: skip
    accepted(await reporting_plane.http.put("/api/v1/quotas/floor?wait=30s", json={"floor_bytes": 9}), 201)
    await reporting_plane.report(node, tenants=[*REPORTED, *others])
    listed = {tenant["tenant"]: tenant for tenant in (await reporting_plane.get("/api/v1/tenants"))["items"]}
    assert "gone" not in listed
    assert listed["asked"]["requested_blocks"] == 1
    assert listed["floor"]["effective_floor_bytes"] == 4
    assert (await reporting_plane.http.get("/api/v1/tenants/gone")).status_code == 404
    assert "gone" not in (await reporting_plane.http.get("/api/v1/overview")).text


async def test_tenants_are_sorted_by_any_number_page_by_page(reporting_plane: Plane) -> None:
    assert await names(reporting_plane, "sort=-bytes") == ["wild", "acme", "_default", "pinned"]
    assert await names(reporting_plane, "sort=-refused_blocks&limit=1") == ["wild"]
    assert (await names(reporting_plane, "sort=limit_bytes"))[0] == "acme", "no limit comes after all limits"
    assert (await names(reporting_plane, "sort=hit_ratio"))[0] == "wild"
    for sort in ("bytes", "-bytes", "limit_bytes", "-hit_ratio", "pins", ""):
        whole, seen, cursor = await names(reporting_plane, f"sort={sort}"), [], ""
        while True:
            page = await reporting_plane.get(f"{T}?limit=1&sort={sort}&cursor={cursor}")
            assert page["total"] == 4
            seen += [item["tenant"] for item in page["items"]]
            cursor = page["next_cursor"]
            if not cursor:
                break
        assert seen == whole, sort
    for query, field in (("sort=note", "sort"), ("cursor=!", "cursor"), ("managed=perhaps", "managed")):
        assert fault_paths(await reporting_plane.http.get(f"{T}?{query}"))[0] == field
    named = (await reporting_plane.get(f"{T}?limit=1&sort=bytes"))["next_cursor"]
    assert (await reporting_plane.http.get(f"{T}?sort=pins&cursor={named}")).status_code == 422


async def adopt(plane: Plane, tenant: str, **body: Any) -> Any:
    return await plane.http.post(f"{T}/{tenant}/adopt?wait=30s", json=body)


async def test_a_tenant_without_a_quota_gets_one_without_limits(reporting_plane: Plane, node: FakeNode) -> None:
    made = await adopt(reporting_plane, "wild", floor_bytes="1KiB", note="found")
    assert made.status_code == 201, made.text
    quota = made.json()
    assert (quota["limit_bytes"], quota["floor_bytes"], quota["note"]) == (None, 1024, "found")
    assert quota["status"]["applied"]
    assert [(spec.tenant, spec.limit_bytes, spec.floor_bytes) for spec in node.quotas][1] == ("wild", None, 1024)
    assert (await reporting_plane.http.get(made.headers["location"])).headers["etag"] == made.headers["etag"]
    assert is_problem(await adopt(reporting_plane, "wild"), 409)["type"] == "urn:larder:problem:conflict"
    assert (await adopt(reporting_plane, "nobody")).status_code == 404
    assert (await adopt(reporting_plane, "pinned", floor_bytes=-1)).json()["errors"][0]["path"] == "floor_bytes"
    assert (await adopt(reporting_plane, "pinned", limit_bytes=1)).json()["errors"][0]["path"] == "limit_bytes"
    over = await adopt(reporting_plane, "_default", floor_bytes="2GiB")
    assert (over.status_code, over.json()["type"]) == (409, "urn:larder:problem:floors-exceed-capacity")
    assert (await adopt(reporting_plane, "_default")).status_code == 201
    assert (await reporting_plane.get(f"{T}/_default"))["managed"] is True


async def test_callers_of_some_tenants_see_theirs(reporting_plane: Plane) -> None:
    tenants = reporting_plane.app.parts.records.tenants
    mine = Principal(salts=frozenset({"acme", ""}))
    page = await tenants.page(PageRequest(10), None, mine)
    assert ([item.tenant for item in page.items], page.total) == (["_default", "acme"], 2)
    assert (await tenants.get("acme", mine)).tenant == "acme"
    for tenant in ("wild", "nobody"):
        with pytest.raises(Forbidden):
            await tenants.get(tenant, mine)


async def test_a_dry_run_lists_what_lower_limits_would_evict_at_once(reporting_plane: Plane, node: FakeNode) -> None:
    tier = TierStats("disk", "disk", 1000, serves=True, tenants=[TierTenantStats("acme", 2, 200)])
    pinned = TenantStats("held", bytes=90, pinned_bytes=60)
    await reporting_plane.report(node, tenants=[*REPORTED, pinned], tiers=[tier])
    quotas: dict[str, dict[str, Any]] = {
        "acme": {"limit_bytes": 1000, "tiers": {"disk": {"limit_bytes": 50}}},
        "wild": {"limit_bytes": 400},
        "_default": {"limit_bytes": 2},
        "held": {"limit_bytes": 10},
        "nobody": {"limit_bytes": 1},
    }
    answer = await reporting_plane.http.post("/api/v1/actions/dry-run", json={"quotas": quotas})
    (item,) = answer.json()["items"]
    assert {(each["tenant"], each["tier"]): each["bytes"] for each in item["evictions"]} == {
        ("acme", "disk"): 150,
        ("wild", ""): 100,
        ("_default", ""): 5,
        ("held", ""): 30,
    }
    tried = await larder(reporting_plane, "quotas", "set", "acme", "1000B", "--tier-limit", "disk=50B", "--dry-run")
    assert tried == (0, f"{item['node']}: accepted, would evict 150 B of acme from disk\n", "")
    assert (await reporting_plane.http.get("/api/v1/quotas/acme")).json()["tiers"] == {}
    watched = {name: {**quota, "mode": "observe"} for name, quota in quotas.items()}
    answer = await reporting_plane.http.post("/api/v1/actions/dry-run", json={"quotas": watched})
    assert [each["evictions"] for each in answer.json()["items"]] == [[]]


def test_the_share_of_a_limit_is_that_of_the_fullest_node() -> None:
    shares = [(60, 100), (90, 100), (500, None), (0, 0)]
    nodes = [replace(REPORT, tenants=[TenantStats("acme", bytes=held, limit_bytes=limit)]) for held, limit in shares]
    (acme,) = merged(nodes, (), {})
    assert (acme.bytes, acme.limit_share) == (650, 0.9)
    (wild,) = merged(nodes[2:3], (), {})
    assert wild.limit_share is None

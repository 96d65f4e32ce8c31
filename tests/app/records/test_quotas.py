"""A tenant's share: what is taken, what is refused, and what nodes say about it."""

from typing import Any

import msgspec
import pytest

from dataplane.protocol.stats.pool import PoolStats
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.app.problems import accepted, is_problem

pytestmark = pytest.mark.anyio
Q = "/api/v1/quotas/acme"


async def put(plane: Plane, tenant: str = "acme", **body: Any) -> Any:
    return accepted(await plane.http.put(f"/api/v1/quotas/{tenant}?wait=30s", json=body))


async def test_floors_beyond_the_smallest_node_are_refused_with_sum_and_capacity(plane: Plane) -> None:
    await put(plane, "other", floor_bytes=1 << 29)
    problem = is_problem(await plane.http.put(Q, json={"floor_bytes": (1 << 29) + 1}), 409)
    assert problem["type"] == "urn:larder:problem:floors-exceed-capacity"
    assert str((1 << 30) + 1) in problem["detail"]
    assert str(1 << 30) in problem["detail"]
    await put(plane, floor_bytes=1 << 29)
    assert (await plane.http.put(Q, json={"floor_bytes": 1 << 40, "mode": "observe"})).is_success


async def test_floors_may_shrink_when_the_pool_is_already_too_small_for_them(plane: Plane, node: FakeNode) -> None:
    await put(plane, floor_bytes=1 << 30)
    await plane.report(node, pool=PoolStats(capacity_bytes=1 << 20))
    await put(plane, floor_bytes=1 << 29)
    assert (await plane.http.put(Q, json={"floor_bytes": 1 << 30})).status_code == 409


async def test_without_a_node_the_check_of_floors_is_left_to_nodes(lone: Plane) -> None:
    assert accepted(await lone.http.put(Q, json={"floor_bytes": "100TiB"}), 201)["effective_floor_bytes"] is None


async def test_reports_of_nodes_about_a_tenant_are_in_its_answer(plane: Plane, node: FakeNode) -> None:
    stats = TenantStats(
        "acme", bytes=70, blocks=7, over_limit=True, managed=True, floor_bytes=50, effective_floor_bytes=40,
        pinned_bytes=20, would_refuse_blocks=3, refused={"over_limit": 2}, refused_blocks=2,
    )  # fmt: skip
    node.stats = msgspec.structs.replace(node.stats, tenants=[stats])
    await put(plane, floor_bytes=50)
    await plane.until(lambda: any(s.tenants for s in plane.app.parts.fleet.stats()))
    shown = await plane.get(Q)
    reported_fields = ("used_bytes", "blocks", "effective_floor_bytes", "pinned_bytes", "would_refuse_blocks")
    assert [shown[name] for name in reported_fields] == [70, 7, 40, 20, 3]
    assert (shown["over_limit"], shown["refused"]) == (True, {"over_limit": 2})
    (tenant,) = (await plane.get("/api/v1/overview"))["tenants"]
    assert (tenant["floor_bytes"], tenant["effective_floor_bytes"], tenant["mode"]) == (50, 40, "enforce")

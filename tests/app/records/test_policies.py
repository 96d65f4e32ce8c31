"""Policies: checked, pushed, and shown beside what nodes have in force."""

from typing import Any

import pytest

from dataplane.protocol.control.records import PolicySpec
from dataplane.protocol.stats.pool import PolicyStats
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio
P = "/api/v1/policies/default"
WHOLE: dict[str, Any] = {
    "algorithm": "s3fifo", "admission": True, "admission_idle_s": 60, "high_watermark": 0.97,
    "low_watermark": 0.95, "note": "scans",
}  # fmt: skip


async def test_a_policy_reaches_the_node_and_a_deleted_one_leaves_the_defaults(plane: Plane, node: FakeNode) -> None:
    response = await plane.http.put(f"{P}?wait=30s", json=WHOLE)
    assert response.status_code == 201
    assert response.json()["status"]["applied"] is True
    assert node.policies == [PolicySpec("default", "s3fifo", True, 60.0, 0.97, 0.95)]
    assert (await plane.http.put(f"{P}?wait=30s", json=WHOLE)).status_code == 200
    assert (await plane.get("/api/v1/policies"))["total"] == 1
    assert (await plane.http.delete(f"{P}?wait=30s")).status_code == 204
    assert node.policies == []
    assert (await plane.http.get(P)).status_code == 404
    entries = (await plane.get("/api/v1/audit?kind=policy"))["items"]
    assert [(e["kind"], e["action"], e["generation"]) for e in entries] == [
        ("policy", "delete", 2),
        ("policy", "create", 1),
    ]


async def test_an_empty_put_keeps_the_record(plane: Plane) -> None:
    await plane.http.put(P, json=WHOLE)
    assert (await plane.http.put(P, json={})).status_code == 422
    assert (await plane.get(P))["algorithm"] == "s3fifo"
    assert (await plane.http.put(P, json={"admission": True})).status_code == 200
    assert (await plane.get(P))["algorithm"] == "lru", "a put is the whole intent"


async def test_every_policy_but_the_default_shows_its_nodes(plane: Plane, node: FakeNode) -> None:
    made = await plane.http.put(
        "/api/v1/policies/night", json={"algorithm": "arc", "selector": {"zone": "a"}, "priority": 7}
    )
    assert made.status_code == 201
    assert (made.json()["selector"], made.json()["priority"]) == ({"zone": "a"}, 7)
    assert (await plane.http.put(f"{P}?wait=30s", json={"algorithm": "lru"})).json()["status"]["applied"]


async def test_a_patch_keeps_the_other_rules_and_is_checked_whole(plane: Plane) -> None:
    assert (await plane.http.put(P, json=WHOLE)).status_code == 201
    patched = await plane.http.patch(P, json={"algorithm": "arc", "note": None})
    assert (patched.status_code, patched.json()["algorithm"], patched.json()["note"]) == (200, "arc", "")
    assert patched.json()["admission_idle_s"] == 60
    wrong = await plane.http.patch(P, json={"high_watermark": 0.5})
    assert (wrong.status_code, wrong.json()["errors"][0]["path"]) == (422, "low_watermark")
    assert (await plane.http.patch(P, json={"selector": {"zone": "a"}})).status_code == 422


async def test_the_records_in_force_on_nodes_are_shown_with_and_without_a_record(plane: Plane, node: FakeNode) -> None:
    await plane.report(node, policy=PolicyStats("lru", gate_closed=True, victim_idle_s=12.5, declined_blocks=4))
    shown = (await plane.get("/api/v1/policies"))["in_force"]["node-a"]
    assert (shown["gate_closed"], shown["victim_idle_s"], shown["declined_blocks"]) == (True, 12.5, 4)
    assert (await plane.get("/api/v1/overview"))["policy"] is None
    await plane.http.put(P, json={"algorithm": "lru"})
    assert (await plane.get(P))["in_force"]["node-a"]["gate_closed"] is True
    assert (await plane.get("/api/v1/overview"))["policy"]["algorithm"] == "lru"

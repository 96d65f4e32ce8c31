"""Policies: checked, pushed, and shown beside what nodes have in force."""

import pytest

from dataplane.protocol.stats.pool import PolicyStats
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio
P = "/api/v1/policies/default"


async def test_the_records_in_force_on_nodes_are_shown_with_and_without_a_record(plane: Plane, node: FakeNode) -> None:
    await plane.report(node, policy=PolicyStats("lru", gate_closed=True, victim_idle_s=12.5, declined_blocks=4))
    shown = (await plane.get("/api/v1/policies"))["in_force"]["node-a"]
    assert (shown["gate_closed"], shown["victim_idle_s"], shown["declined_blocks"]) == (True, 12.5, 4)
    assert (await plane.get("/api/v1/overview"))["policy"] is None
    await plane.http.put(P, json={"algorithm": "lru"})
    assert (await plane.get(P))["in_force"]["node-a"]["gate_closed"] is True
    assert (await plane.get("/api/v1/overview"))["policy"]["algorithm"] == "lru"

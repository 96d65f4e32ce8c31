"""Strength and end of pins: what is taken, what is refused, and what nodes report."""

import asyncio
import time

import msgspec
import pytest

from app.push.node_journal import NodeJournal
from dataplane.protocol.stats.pins import PinStats
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio


async def test_a_pin_that_hits_refresh_ends_by_the_last_report_of_a_node(plane: Plane, node: FakeNode) -> None:
    put = await plane.put_pin("p", ttl_s=0.3, refresh_on_hit=True)
    later = time.time() + 100
    stats = PinStats("p", resolved=2, resident=2, bytes=9, guaranteed=1, degraded=1, expires_at=later)
    await plane.report(node, pins=[stats])
    await asyncio.sleep(put["expires_at"] - time.time() + 0.01)
    shown = await plane.get("/api/v1/pins/p")
    assert (shown["expires_at"], shown["expired"]) == (later, False)
    assert (shown["resident"], shown["guaranteed"], shown["degraded"], shown["bytes"]) == (2, 1, 1, 9)
    over = msgspec.structs.replace(stats, expired=True, expires_at=put["expires_at"])
    await plane.report(node, pins=[over])
    assert (await plane.get("/api/v1/pins/p"))["expired"] is True


async def test_a_fixed_end_is_independent_of_reports_of_nodes(plane: Plane, node: FakeNode) -> None:
    put = await plane.put_pin("p", ttl_s=60)
    stats = PinStats("p", resolved=2, resident=2, bytes=9, guaranteed=2, expires_at=put["expires_at"] + 5)
    await plane.report(node, pins=[stats])
    assert (await plane.get("/api/v1/pins/p"))["expires_at"] == put["expires_at"]


async def test_an_end_that_hits_moved_outlives_the_process_that_saw_them(plane: Plane, node: FakeNode) -> None:
    put = await plane.put_pin("p", ttl_s=60, refresh_on_hit=True)
    fixed = await plane.put_pin("fixed", ttl_s=60)
    later = time.time() + 100
    stats = [PinStats(name, resolved=2, resident=2, bytes=9, guaranteed=2, expires_at=later) for name in ("p", "fixed")]
    node.stats = msgspec.structs.replace(node.stats, pins=stats)
    await plane.until(lambda: any(n.pin_ends for n in plane.app.parts.fleet.nodes.values()))
    await asyncio.sleep(0.3)
    node.stats = msgspec.structs.replace(node.stats, pins=[])
    before = len(node.received)
    await node.restart()
    await node.until(lambda: any(s.type == "pins" for s in node.received[before:]))
    ends = {pin.name: pin.expires_at for pin in node.pins}
    assert put["expires_at"] < (ends["p"] or 0) < time.time() + 60
    assert ends["fixed"] == fixed["expires_at"]
    shown = await plane.get("/api/v1/pins/p")
    assert (shown["expires_at"], shown["updated_at"]) == (ends["p"], put["updated_at"])


async def test_an_end_is_written_down_when_it_has_moved_far(plane: Plane) -> None:
    journal = NodeJournal(plane.app.parts.database, 100)
    put = await plane.put_pin("p", ttl_s=1000, refresh_on_hit=True)
    reported_at = put["updated_at"] + 2000
    assert await journal.move_ends({"p": put["expires_at"] + 400}, reported_at, 300) == []
    assert await journal.move_ends({"p": put["expires_at"] + 600}, put["updated_at"] - 1, 300) == []
    assert await journal.move_ends({"p": put["expires_at"] + 600, "gone": 9e9}, reported_at, 300) == ["p"]
    assert (await plane.get("/api/v1/pins/p"))["expires_at"] == put["expires_at"] + 600


async def test_a_deleted_pin_can_be_put_back_with_its_keys(plane: Plane) -> None:
    made = await plane.put_pin("p")
    keys = (await plane.get("/api/v1/pins/p/keys"))["keys"]
    assert len(keys) == made["key_count"]
    assert (await plane.http.delete("/api/v1/pins/p", headers={"If-Match": "*"})).status_code == 204
    assert (await plane.http.get("/api/v1/pins/p/keys")).status_code == 404
    again = await plane.http.put("/api/v1/pins/p", json={"model": "m", "keys": keys})
    assert again.json()["keys_digest"] == made["keys_digest"]

"""The complete state in one response, and waiting for the next state."""

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from app.services.views import snapshot
from app.services.views.snapshot import Snapshots
from tests.app.fake_node import FakeNode
from tests.app.plane import IMPATIENT, WAIT_S, Plane, serving, settings_in
from tests.app.problems import fault_paths

pytestmark = pytest.mark.anyio
S = "/api/v1/snapshot"
FUTURE = 1 << 52


async def settled(plane: Plane) -> dict[str, Any]:
    """Return the snapshot once it no longer changes."""
    answer = await plane.get(S)
    while True:
        later = await plane.get(f"{S}?index={answer['index']}&wait=1s")
        if later["index"] == answer["index"]:
            return dict(later)
        answer = later


async def test_a_snapshot_has_all_records_and_the_applied_generations(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.put_quota("acme", 5)
    await new_plane.put_pin("p", tenant="acme")
    assert (await new_plane.http.put("/api/v1/policies/default?wait=30s", json={"algorithm": "arc"})).is_success
    answer = await settled(new_plane)
    assert [(q["tenant"], q["limit_bytes"], q["generation"]) for q in answer["quotas"]["items"]] == [("acme", 5, 1)]
    assert [(p["name"], p["tenant"], p["key_count"]) for p in answer["pins"]["items"]] == [("p", "acme", 2)]
    assert [(p["name"], p["algorithm"]) for p in answer["policies"]["items"]] == [("default", "arc")]
    assert [(n["name"], n["state"]) for n in answer["nodes"]] == [("node-a", "in_sync")]
    assert answer["nodes"][0]["observed"] == {"pins": 1, "policies": 1, "quotas": 1}
    response = await new_plane.http.get(S)
    assert response.headers["x-larder-index"] == str(answer["index"])
    items = json.dumps(answer["quotas"]["items"], separators=(",", ":"), ensure_ascii=False)
    assert answer["quotas"]["generation"] == 1
    assert answer["quotas"]["digest"] == sha256(items.encode()).hexdigest()


async def test_a_waiting_request_is_answered_after_a_change(plane: Plane) -> None:
    before = await settled(plane)
    request = asyncio.create_task(plane.get(f"{S}?index={before['index']}&wait=300s"))
    await asyncio.sleep(0.2)
    assert not request.done()
    await plane.put_quota("acme", 5, wait="")
    after = await asyncio.wait_for(request, WAIT_S)
    assert after["index"] > before["index"]
    assert [q["tenant"] for q in after["quotas"]["items"]] == ["acme"]


@IMPATIENT
async def test_a_node_that_is_lost_is_a_change(new_plane: Plane, new_node: FakeNode) -> None:
    before = await settled(new_plane)
    await new_node.stop()
    async with asyncio.timeout(WAIT_S):
        while [each["state"] for each in before["nodes"]] != ["lost"]:
            before = await new_plane.get(f"{S}?index={before['index']}&wait=300s")


async def test_a_wait_ends_with_the_state_that_is(plane: Plane) -> None:
    before = await settled(plane)
    assert await plane.get(f"{S}?index={before['index']}&wait=50ms") == before


async def test_an_index_from_the_future_or_the_past_is_answered_at_once(plane: Plane) -> None:
    for index in (FUTURE, 1, 0):
        await asyncio.wait_for(plane.get(f"{S}?index={index}&wait=300s"), WAIT_S)


async def test_an_index_from_before_a_restart_is_older_than_any_after_it(socket_dir: Path) -> None:
    settings = settings_in(socket_dir)
    async with serving(settings) as first:
        before = (await first.get(S))["index"]
    async with serving(settings) as second:
        after = await asyncio.wait_for(second.get(f"{S}?index={before}&wait=300s"), WAIT_S)
        assert after["index"] > before


async def test_waiting_requests_are_answered_when_the_plane_stops(lone: Plane) -> None:
    before = await settled(lone)
    request = asyncio.create_task(lone.get(f"{S}?index={before['index']}&wait=300s"))
    await asyncio.sleep(0.1)
    lone.app.parts.bus.close()
    assert (await asyncio.wait_for(request, WAIT_S))["index"] == before["index"]


@pytest.mark.parametrize(
    ("query", "field"), [("wait=301s", "wait"), ("wait=soon", "wait"), ("index=-1", "index"), ("index=x", "index")]
)
async def test_an_invalid_query_names_the_field(shared_plane: Plane, query: str, field: str) -> None:
    assert fault_paths(await shared_plane.http.get(f"{S}?{query}"))[0] == field


async def test_many_waiting_requests_share_one_read(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "LOOK_S", 2 * WAIT_S)  # only notifications cause a look
    read, reads = Snapshots._read, []

    async def counted(snapshots: Snapshots) -> None:
        reads.append(snapshots)
        await read(snapshots)

    before = await settled(plane)
    monkeypatch.setattr(Snapshots, "_read", counted)
    signal = plane.app.parts.fleet.change_signal
    first = signal.count
    requests = [asyncio.create_task(plane.get(f"{S}?index={before['index']}&wait=300s")) for _ in range(50)]
    await asyncio.sleep(0.1)
    await plane.put_quota("acme", 5, wait="")
    answers = await asyncio.wait_for(asyncio.gather(*requests), WAIT_S)
    assert all(answer["quotas"]["items"] for answer in answers)
    assert len(reads) <= 1 + signal.count - first, "at most one for each notification"

"""From a committed record to what a node holds, through everything that can go wrong on the way."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.change_signal import ChangeSignal
from app.errors import NotReady
from app.ingest.fleet import Fleet
from app.push.desired import DesiredState
from app.schemas.records.quotas import QuotaPut
from app.services.base.changes import Changes
from app.services.base.principals import Principal
from app.services.records.progress import RecordProgress
from app.services.records.quotas import Quotas
from app.services.views.health import HealthChecks
from app.settings import Settings
from app.store.base import migrate
from app.store.base.database import Database
from app.supervisor.supervisor import Supervisor
from dataplane.protocol.control.snapshots import Fault
from dataplane.protocol.keys import chain
from dataplane.protocol.observed import Observed
from tests.app.event_bus import event_bus
from tests.app.fake_node import FakeNode
from tests.app.plane import IMPATIENT, TOKENS, Plane, serving, settings_in
from tests.app.problems import is_problem
from tests.app.waiting import until

pytestmark = pytest.mark.anyio


async def test_a_put_quota_is_applied_and_reported_as_such(new_plane: Plane, new_node: FakeNode) -> None:
    answer = await new_plane.put_quota("acme", "4GiB")
    assert answer["limit_bytes"] == 4 << 30
    status = answer["status"]
    assert (status["accepted"], status["applied"]) == (True, True)
    at = status["nodes"]["node-a"]
    assert (at["observed_generation"], at["state"]) == (1, "in_sync")
    assert [(c["type"], c["status"]) for c in status["conditions"]] == [
        ("Accepted", "True"),
        ("Applied", "True"),
        ("Effective", "True"),
    ]
    assert [(q.tenant, q.limit_bytes) for q in new_node.quotas] == [("acme", 4 << 30)]
    assert (await new_plane.http.get("/healthz/fleet")).status_code == 200


async def test_a_pins_keys_are_resolved_here_and_fetched_by_the_node_once(new_plane: Plane, new_node: FakeNode) -> None:
    first = await new_plane.put_pin("p")
    await new_plane.put_pin("q")
    keys = b"".join(chain(TOKENS, chunk_tokens=4))
    assert new_node.bodies == {first["keys_digest"]: keys}
    assert new_node.requested_keys == [first["keys_digest"]]
    assert [pin.name for pin in new_node.pins] == ["p", "q"]


@IMPATIENT
async def test_many_bodies_travel_in_several_messages(new_plane: Plane, new_node: FakeNode) -> None:
    new_node.deaf = True
    for number in range(70):
        await new_plane.put_pin(f"p{number}", wait="0s", tokens=[number] * 4)
    new_node.deaf = False
    await new_node.until(lambda: len(new_node.pins) == 70)
    assert len(new_node.bodies) == 70


async def test_puts_that_come_together_are_pushed_together(new_plane: Plane, new_node: FakeNode) -> None:
    new_node.delay_s = 0.2
    before = len(new_node.received)
    await asyncio.gather(*(new_plane.put_quota(f"t{number}", wait="0s") for number in range(20)))
    await new_node.until(lambda: len(new_node.quotas) == 20)
    assert len(new_node.received) - before <= 10


async def test_a_node_that_was_away_gets_the_latest_state_only(new_plane: Plane, new_node: FakeNode) -> None:
    await new_node.stop()
    for number in range(5):
        await new_plane.put_quota("acme", number, wait="0s")
    before = len(new_node.received)
    await new_node.start()
    await new_node.until(lambda: bool(new_node.quotas) and new_node.quotas[0].limit_bytes == 4)
    assert [s.generation for s in new_node.received[before:] if s.type == "quotas"] == [5]


async def test_a_nack_is_shown_with_its_paths_and_the_last_good_state_stays(
    new_plane: Plane, new_node: FakeNode
) -> None:
    await new_plane.put_quota("good", 1)
    new_node.faults = [Fault("quotas[1].limit_bytes", "bad_field", "too odd")]
    answer = await new_plane.put_quota("odd", 2)
    assert answer["status"]["applied"] is False
    at = answer["status"]["nodes"]["node-a"]
    assert (at["observed_generation"], at["state"]) == (1, "nacked")
    applied = at["conditions"][0]
    assert (applied["type"], applied["status"], applied["reason"]) == ("Applied", "False", "Refused")
    assert "quotas[1].limit_bytes: too odd" in applied["message"]
    shown = await new_plane.node()
    assert shown["state"] == "nacked"
    (fault,) = shown["faults"]
    assert (fault["type"], fault["generation"], fault["path"]) == ("quotas", 2, "quotas[1].limit_bytes")
    await new_plane.until_event("push.nacked")
    (push,) = (await _settled(new_plane, "state=nacked"))["items"]
    assert push["faults"] == [{"path": "quotas[1].limit_bytes", "code": "bad_field", "message": "too odd"}]
    assert "node-a is nacked with quotas" in is_problem(await new_plane.http.get("/healthz/fleet"), 503)["detail"]
    assert [quota.tenant for quota in new_node.quotas] == ["good"]
    metrics = (await new_plane.http.get("/metrics")).text.splitlines()
    assert 'larder_node_nacked{node="node-a",type="quotas"} 1.0' in metrics
    assert 'larder_node_nacked{node="node-a",type="pins"} 0.0' in metrics
    assert 'larder_pushes_total{node="node-a",state="nacked"} 1.0' in metrics


async def test_a_nacked_generation_is_not_sent_again_until_it_changes(new_plane: Plane, new_node: FakeNode) -> None:
    new_node.faults = [Fault("x", "bad_field", "no")]
    await new_plane.put_quota("acme", 1)
    before = len(new_node.received)
    new_plane.app.parts.fleet.change_signal.notify()
    await asyncio.sleep(0.3)
    assert len(new_node.received) == before
    new_node.faults = []
    answer = await new_plane.put_quota("acme", 2)
    assert answer["status"]["applied"] is True
    assert (await new_plane.node())["faults"] == []


@IMPATIENT
async def test_silence_is_answered_with_another_push(new_plane: Plane, new_node: FakeNode) -> None:
    new_node.deaf = True
    answer = await new_plane.put_quota("acme", 1, wait="100ms")
    assert answer["status"]["applied"] is False
    await new_plane.until_event("push.timed_out")
    new_node.deaf = False
    await new_node.until(lambda: bool(new_node.quotas))
    pushes = await _settled(new_plane, "type=quotas&limit=2", lambda items: items[0]["state"] == "acked")
    assert [(push["state"], push["attempt"]) for push in pushes["items"]] == [("acked", 2), ("timed_out", 1)]


@IMPATIENT
async def test_a_node_that_requests_bodies_twice_is_refused_and_still_served(
    new_plane: Plane, new_node: FakeNode
) -> None:
    new_node.asks_twice = True
    with capture_logs() as logged:
        await new_plane.put_pin("p", wait="100ms")
        await new_plane.until_event("push.refused")
        await new_plane.put_quota("acme", 1)
        new_node.asks_twice = False
        await new_node.until(lambda: bool(new_node.pins))
    assert [quota.tenant for quota in new_node.quotas] == ["acme"]
    assert "task.failed" not in {line["event"] for line in logged}
    (push, *_) = (await _settled(new_plane, "type=pins&state=refused"))["items"]
    assert push["faults"] == [
        {"path": "", "code": "refuse", "message": "the last body of a snapshot was answered with NeedBodies"}
    ]


async def test_a_restarted_node_that_forgot_everything_gets_it_again(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.put_quota("acme", 7)
    new_node.quotas = []
    await new_node.restart(forget=True)
    await new_node.until(lambda: [q.limit_bytes for q in new_node.quotas] == [7])
    await new_plane.until_state("in_sync")
    assert (await new_plane.node())["epoch"] == new_node.epoch


async def test_a_restarted_node_that_remembers_is_left_alone(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.put_quota("acme", 7)
    before = len(new_node.received)
    await new_node.restart()
    await new_plane.until(
        lambda: any(n.epoch == new_node.epoch and n.welcomed for n in new_plane.app.parts.fleet.nodes.values())
    )
    await new_plane.until_state("in_sync")
    assert len(new_node.received) == before


async def test_drift_is_reported_and_repaired(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.put_quota("acme", 7)
    good = new_node.observed["quotas"]
    new_node.drift("quotas")
    event = await new_plane.until_event("node.drifted")
    assert event == {"type": "quotas", "generation": 1}
    await new_node.until(lambda: new_node.observed["quotas"] == good)


async def test_a_restarted_plane_adopts_the_state_of_the_node(settings: Settings, new_node: FakeNode) -> None:
    async with serving(settings) as plane:
        await plane.put_quota("acme", 1)
        await plane.put_pin("p")
        await plane.until_state("in_sync")
    before = len(new_node.received)
    async with serving(settings) as plane:
        await plane.until_state("in_sync")
        assert (await plane.get("/api/v1/quotas/acme"))["status"]["applied"] is True
    assert len(new_node.received) == before


async def test_changes_committed_before_a_crash_are_pushed_after_it(settings: Settings, new_node: FakeNode) -> None:
    """The commit happens in a process that pushes nothing and then ends, as by a kill."""
    database = Database(settings.common.database_url)
    await migrate.upgrade(database)
    fleet, bus = Fleet(), event_bus()
    desired = DesiredState(database)
    quotas = Quotas(database, Changes(database, fleet, bus), RecordProgress(fleet, desired), fleet)
    await quotas.put("acme", QuotaPut(limit_bytes=5), Principal("r"))
    await database.close()
    assert new_node.quotas == []
    async with serving(settings):
        await new_node.until(lambda: [q.limit_bytes for q in new_node.quotas] == [5])


async def test_an_empty_database_never_wipes_a_node(settings: Settings, new_node: FakeNode) -> None:
    observed = Observed(9, "f" * 64, "another")
    new_node.observed = {"quotas": observed, "pins": observed, "policies": observed}
    async with serving(settings) as plane:
        await plane.until_state("in_sync")
        assert new_node.received == []
        await plane.put_quota("acme", 1)
        assert [q.tenant for q in new_node.quotas] == ["acme"]


async def test_a_database_that_was_set_back_overtakes_the_nodes_generation(
    settings: Settings, new_node: FakeNode
) -> None:
    async with serving(settings) as plane:
        answer = await plane.put_quota("acme", 1)
        observed = new_node.observed["quotas"]
        new_node.observed["quotas"] = Observed(40, "f" * 64, observed.store)
        new_node.quotas = []
        await new_node.until(lambda: bool(new_node.quotas))
        assert new_node.observed["quotas"].generation == 41
        await plane.until_state("in_sync")
        assert answer["generation"] == 1


@IMPATIENT
async def test_a_silent_node_is_lost_and_comes_back(new_plane: Plane, new_node: FakeNode) -> None:
    new_node.mute = new_node.deaf = True
    await new_plane.until_state("lost")
    assert (await new_plane.node())["stats"] is None
    assert (await new_plane.http.get("/readyz")).status_code == 200, "the API is there"
    fleet = await new_plane.http.get("/healthz/fleet")
    assert (fleet.status_code, fleet.json()["detail"]) == (503, "no node is connected; node-a is lost")
    assert not (await new_plane.get("/api/v1/overview"))["ready"]
    new_node.mute = new_node.deaf = False
    await new_plane.until_state("in_sync")


async def test_a_manager_is_ready_once_its_embedded_data_plane_has_served(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.until_state("in_sync")
    parts, serves = new_plane.app.parts, False
    health = HealthChecks(parts.database, parts.foundation.progress, parts.fleet, lambda: serves)
    with pytest.raises(NotReady, match="the embedded data plane does not serve yet"):
        await health.readiness(anonymous=False)
    await new_plane.until(lambda: parts.fleet.serves_at(new_node.control_url))
    serves = True
    assert (await health.readiness(anonymous=False)).status == "ready"
    serves = False
    assert (await health.readiness(anonymous=False)).status == "ready", "a crash does not take the API away"
    parts.fleet.nodes["node-a"].stats = None
    assert not parts.fleet.serves_at(new_node.control_url), "as after a start, when the database knows the node"


async def test_a_node_with_a_new_name_replaces_the_old_one_at_its_url(new_plane: Plane, new_node: FakeNode) -> None:
    await new_node.stop()
    new_node.name, new_node.observed = "node-b", {}
    await new_node.start()
    await new_plane.until(lambda: list(new_plane.app.parts.fleet.nodes) == ["node-b"])
    await new_plane.until_state("in_sync")


async def test_another_database_is_not_mistaken_for_the_same(settings: Settings, new_node: FakeNode) -> None:
    """Equal generation numbers of two databases mean nothing."""
    async with serving(settings) as plane:
        await plane.put_quota("acme", 1)
    Path(settings.common.state_dir, "larder.db").rename(Path(settings.common.state_dir, "away.db"))
    async with serving(settings) as plane:
        answer = await plane.put_quota("other", 2)
        assert answer["generation"] == 1
        assert [q.tenant for q in new_node.quotas] == ["other"]


async def test_the_whole_way_works_on_either_database(socket_dir: Path, database_url: str, new_node: FakeNode) -> None:
    async with serving(settings_in(socket_dir, database_url)) as plane:
        await plane.until_state("in_sync")
        assert (await plane.put_quota("acme", 1))["status"]["applied"] is True
        assert (await plane.put_pin("p", ttl_s=60))["status"]["applied"] is True
        assert (await plane.http.delete("/api/v1/quotas/acme?wait=30s")).status_code == 204
        assert (await plane.http.delete("/api/v1/pins/p?wait=30s")).status_code == 204
        assert (new_node.quotas, new_node.pins) == ([], [])
        entries = (await plane.get("/api/v1/audit"))["items"]
        assert len([entry for entry in entries if entry["kind"] != "token"]) == 4
        pushes = await _settled(plane, "state=acked&type=pins", lambda items: items[0]["generation"] == 2)
        assert pushes["total"] == 3


async def _settled(plane: Plane, query: str, holds=bool) -> dict:
    """The journal, once the push that was just answered is written."""

    async def settled() -> Any:
        answer = await plane.get(f"/api/v1/pushes?{query}")
        return holds(answer["items"]) and answer

    return await until(settled)


async def test_the_first_restart_does_not_wait_and_later_ones_do() -> None:
    exits = ChangeSignal()
    supervisor = Supervisor(
        os.environ, lambda _code, _pause_s: exits.notify(), on_start=lambda _pid: None, command=("/bin/false",)
    )
    with capture_logs() as lines:
        running = asyncio.create_task(supervisor.run())
        assert await exits.until(lambda: exits.count == 3, 60)
        running.cancel()
        await asyncio.wait({running})
    pauses = [line["restart_in_s"] for line in lines if line["event"] == "dataplane.exited"]
    assert pauses == [0.0, 0.2, 0.4]

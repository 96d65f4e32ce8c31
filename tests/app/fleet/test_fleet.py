"""Several data planes under one management plane: real processes that join over CURVE, labels, draining, forgetting."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from app.cli.support.machine import checkup
from app.ingest.fleet import FleetNode
from app.services.base.changes import Change
from app.services.records.quotas import Floor, excess
from app.settings import Settings
from app.store.fleet.nodes import NodeRow
from dataplane.client import AttachRefused, attach
from dataplane.protocol.codes import Code
from dataplane.protocol.join import Join, Joined, JoinToken, parse_token, token_text
from tests.app.command import larder, refused
from tests.app.plane import Plane, serving, settings_in
from tests.app.problems import accepted, is_problem
from tests.app.waiting import until
from tests.dataplane import factories as make
from tests.dataplane.plane import WAIT_S, wait_for
from tests.dataplane.plane import Plane as DataPlane

pytestmark = pytest.mark.anyio
PAGE = 4096
MakeNode = Callable[..., DataPlane]


@pytest.fixture
def settings(socket_dir: Path) -> Settings:
    folder = socket_dir / "app"
    folder.mkdir()
    return settings_in(folder, join_url="tcp://127.0.0.1:*", node_lost_s=6.0)


@pytest.fixture
async def plane(settings: Settings) -> AsyncIterator[Plane]:
    """A plane that nodes join."""
    async with serving(settings) as running:
        yield running


@pytest.fixture
def make_node(socket_dir: Path) -> Iterator[MakeNode]:
    """`make_node("a", token, zone="x")`: a data plane on loopback TCP; not started."""
    made: list[DataPlane] = []

    def new(name: str, token: str, **labels: str) -> DataPlane:
        folder = socket_dir / name
        folder.mkdir()
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text(token)
        node = DataPlane(
            folder,
            {
                "control_url": "tcp://127.0.0.1:*",
                "events_url": "tcp://127.0.0.1:*",
                "dataplane__node": name,
                "dataplane__labels": ",".join(f"{key}={value}" for key, value in labels.items()),
                "dataplane__join_token_file": str(folder / "token"),
            },
        )
        made.append(node)
        return node

    yield new
    for each in made:
        each.kill()


async def token_of(plane: Plane, **fields: Any) -> str:
    return str(accepted(await plane.http.post("/api/v1/join-tokens", json=fields), 201)["token"])


async def states(plane: Plane) -> dict[str, str]:
    return {node["name"]: node["state"] for node in (await plane.get("/api/v1/nodes"))["items"]}


async def until_states(plane: Plane, **expected: str) -> None:
    """Wait until exactly these nodes are known, in these states."""
    fleet, progress = plane.app.parts.fleet, plane.app.parts.foundation.progress

    def recent_events() -> dict[str, str]:
        return {name: progress.state(node).value for name, node in fleet.nodes.items()}

    try:
        await plane.until(lambda: recent_events() == expected, WAIT_S)
    except AssertionError:
        raise AssertionError(f"expected {expected}, got {recent_events()}") from None


async def until_true(holds: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(wait_for, holds, what)


async def start(node: DataPlane) -> DataPlane:
    return await asyncio.to_thread(node.start)


@asynccontextmanager
async def two_nodes(settings: Settings, make_node: MakeNode) -> AsyncIterator[tuple[Plane, DataPlane, DataPlane]]:
    async with serving(settings) as plane:
        token = await token_of(plane, uses=2)
        a, b = make_node("a", token, zone="x", gpu="h200"), make_node("b", token, zone="y", gpu="h200")
        await asyncio.gather(start(a), start(b))
        await until_states(plane, a="in_sync", b="in_sync")
        yield plane, a, b


# ---- joining


async def test_a_node_joins_by_a_token_and_applies_its_records(plane: Plane, make_node: MakeNode) -> None:
    await plane.put_quota("acme", 8 * PAGE, wait="0s")
    node = await start(make_node("a", await token_of(plane, labels={"rack": "7"}), zone="x"))
    await until_states(plane, a="in_sync")
    answer = await plane.node()
    assert answer["labels"] == {"zone": "x", "rack": "7"}
    assert answer["reported_labels"] == {"zone": "x"}
    assert answer["own_labels"] == {"rack": "7"}
    assert len(answer["public_key"]) == 40
    with attach(node.socket, [make.space()], timeout_s=60) as client:
        refused = client.reserve(make.keys(12), PAGE, tenant="acme").refused
    assert refused == {Code.OVER_LIMIT: 4}
    await plane.until(lambda: plane.app.parts.fleet.nodes["a"].stats is not None)
    audit = (await plane.get("/api/v1/audit"))["items"]
    assert [audit[0][key] for key in ("actor", "action", "kind", "name")] == ["node:a", "join", "node", "a"]
    tokens = (await plane.get("/api/v1/join-tokens"))["items"]
    assert [(t["uses_left"], t["nodes"]) for t in tokens] == [(0, ["a"])]


async def test_a_token_is_shown_once_and_nothing_stored_has_its_secret(settings: Settings) -> None:
    async with serving(settings) as plane:
        secret = parse_token(await token_of(plane)).secret
        for path in ("/api/v1/join-tokens", "/api/v1/audit"):
            answer = await plane.http.get(path)
            assert secret.hex() not in answer.text
            assert "hash" not in (answer.json()["items"][0].get("after") or {})
    database = (settings.state_dir / "larder.db").read_bytes()
    assert secret not in database
    assert secret.hex().encode() not in database
    manager_key = settings.state_dir / "manager.key"
    assert manager_key.stat().st_mode & 0o777 == 0o600
    assert manager_key.read_bytes().strip() not in database


async def test_an_invalid_token_is_refused_and_audited(plane: Plane, make_node: MakeNode) -> None:
    codes = {"unknown": "bad_token", "wrong": "bad_token", "revoked": "bad_token", "expired": "token_expired",
             "used": "token_used_up"}  # fmt: skip
    for why, code in codes.items():
        text = await token_of(plane, ttl_s=0.001 if why == "expired" else 3600)
        token = parse_token(text)
        if why == "unknown":
            text = token_text(JoinToken("another", token.secret, token.key, token.addresses))
        elif why == "wrong":
            text = token_text(JoinToken(token.id, bytes(32), token.key, token.addresses))
        elif why == "revoked":
            assert (await plane.http.delete(f"/api/v1/join-tokens/{token.id}")).status_code == 204
        elif why == "used":
            await start(make_node("first", text))
            await until_states(plane, first="in_sync")
        node = await start(make_node(why, text))
        assert await asyncio.to_thread(node.process.wait, WAIT_S) == 1
        assert code in node.log()
        assert "Traceback" not in node.log()
        assert why not in await states(plane)
        newest = (await plane.get("/api/v1/audit"))["items"][0]
        assert (newest["action"], newest["name"], newest["decision"]) == ("join", why, "denied")
        assert code in newest["reason"]


async def test_a_name_that_another_node_has_is_refused_until_that_one_is_forgotten(
    plane: Plane, make_node: MakeNode, socket_dir: Path
) -> None:
    token = await token_of(plane, uses=None)
    first = await start(make_node("a", token))
    await until_states(plane, a="in_sync")
    second = make_node("b", token)
    second.settings["dataplane__node"] = "a"
    await start(second)
    assert await asyncio.to_thread(second.process.wait, WAIT_S) == 1
    assert "name_taken" in second.log()
    await asyncio.to_thread(first.stop)
    await until_states(plane, a="lost")
    assert 'larder_pushes_total{node="a",state="acked"}' in (await plane.http.get("/metrics")).text
    assert (await plane.http.delete("/api/v1/nodes/a")).status_code == 204
    assert '{node="a"' not in (await plane.http.get("/metrics")).text
    await start(second)
    await until_states(plane, a="in_sync")


async def test_a_node_that_comes_back_elsewhere_is_followed(plane: Plane, make_node: MakeNode) -> None:
    node = await start(make_node("a", await token_of(plane)))
    await until_states(plane, a="in_sync")
    before = (await plane.node())["control_url"]
    await asyncio.to_thread(node.kill)
    (node.folder / "token").unlink()
    await plane.put_quota("acme", 8 * PAGE, wait="0s")
    await start(node)  # on other ports
    await plane.until(lambda: plane.app.parts.fleet.nodes["a"].control_url != before, WAIT_S)
    await until_states(plane, a="in_sync")
    status = (await plane.get("/api/v1/quotas/acme"))["status"]
    assert status["applied"]


async def test_a_restarted_management_plane_knows_its_nodes_and_pushes_committed_changes(
    settings: Settings, make_node: MakeNode
) -> None:
    async with serving(settings) as plane:
        node = await start(make_node("a", await token_of(plane)))
        await until_states(plane, a="in_sync")
        await asyncio.to_thread(node.signal, 19)  # it cannot answer: what is put now is committed and not pushed
        await plane.put_quota("acme", 8 * PAGE, wait="0s")
    await asyncio.to_thread(node.signal, 18)
    async with serving(settings) as plane:
        await until_states(plane, a="in_sync")
        assert (await plane.get("/api/v1/quotas/acme"))["status"]["applied"]
        await plane.until(lambda: plane.app.parts.fleet.nodes["a"].stats is not None, WAIT_S)


async def test_another_key_of_the_management_plane_reaches_no_node(
    settings: Settings, make_node: MakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(settings) as plane:
        node = await start(make_node("a", await token_of(plane)))
        await until_states(plane, a="in_sync")
    assert "join.key_replaced" not in capsys.readouterr().out
    (settings.state_dir / "manager.key").unlink()
    async with serving(settings) as plane:
        assert "join.key_replaced" in capsys.readouterr().out
        await until_true(lambda: "peer.refused" in node.log(), "the node turns it away")
        await until_states(plane, a="lost")


# ---- draining and forgetting


async def test_a_node_is_drained_and_undrained(settings: Settings, make_node: MakeNode) -> None:
    async with two_nodes(settings, make_node) as (plane, a, b):
        answer = accepted(await plane.http.post("/api/v1/nodes/a/drain?wait=30s", json={"on": True}), 200)
        assert (answer["draining"], answer["stats"]["draining"]) == (True, True)
        with pytest.raises(AttachRefused) as caught:
            await asyncio.to_thread(attach, a.socket, [make.space()], timeout_s=60)
        assert caught.value.code is Code.DRAINING
        assert await asyncio.to_thread(_takes_engines, b)
        await asyncio.to_thread(a.kill)
        await until_states(plane, a="lost", b="in_sync")
        answer = await plane.http.post("/api/v1/nodes/a/drain", json={"on": False})
        assert answer.json()["draining"] is False
        await start(a)
        await until_states(plane, a="in_sync", b="in_sync")
        await plane.until(lambda: plane.app.parts.fleet.nodes["a"].stats is not None, WAIT_S)
        await until_true(lambda: _takes_engines(a), "what was decided while it was away reaches it")


async def test_a_drain_waits_for_its_engines_and_counts_them(settings: Settings, make_node: MakeNode) -> None:
    async with two_nodes(settings, make_node) as (plane, a, _):
        engines = [
            await asyncio.to_thread(attach, a.socket, [make.space()], timeout_s=60, group=f"e{n}") for n in range(2)
        ]
        fleet = plane.app.parts.fleet

        def reported() -> bool:
            stats = fleet.nodes["a"].stats
            return stats is not None and len(stats.engines) == 2

        await until_true(reported, "the node reports them")
        code, out, err = await larder(plane, "nodes", "drain", "a", "--wait", "1s")
        assert (code, out.splitlines()) == (1, ["a drains", "2 engines left"])
        assert "2 engines of a left after 1 s; it still drains" in err
        waiting = asyncio.create_task(larder(plane, "nodes", "drain", "a", "--wait"))
        for left in (1, 0):
            await asyncio.sleep(1)
            await asyncio.to_thread(engines[left].close)
        code, out, err = await waiting
        assert (code, out.splitlines()[-1]) == (0, "0 engines left"), err
        err = await refused(plane, 2, "nodes", "drain", "a", "--off", "--wait", "1s")
        assert "cannot be combined with --off" in err


def _takes_engines(node: DataPlane) -> bool:
    try:
        attach(node.socket, [make.space()], timeout_s=60).close()
    except AttachRefused:
        return False
    return True


async def test_a_node_that_is_lost_for_long_leaves_the_fleet_unless_all_are_lost(
    settings: Settings, make_node: MakeNode
) -> None:
    async with two_nodes(settings, make_node) as (plane, a, b):
        parts, later, leads = plane.app.parts, 0.0, True

        async def retire() -> None:
            await parts.fleet_services.node_actions.retire(1000.0, time.monotonic() + later, lambda: leads)

        await asyncio.to_thread(a.kill)
        await until_states(plane, a="lost", b="in_sync")
        await retire()
        assert "a" in parts.fleet.nodes, "not yet"
        later, leads = 1000.0, False
        await retire()
        assert "a" in parts.fleet.nodes, "only the leader forgets nodes"
        leads = True
        await retire()
        await until_states(plane, b="in_sync")
        assert (await plane.until_event("node.forgotten"))["lost_s"] >= 1000.0
        await asyncio.to_thread(b.kill)
        await until_states(plane, b="lost")
        parts.fleet.nodes["local"] = FleetNode("local", "ipc:///local", seen=math.inf)
        await retire()
        assert "b" in parts.fleet.nodes, "this manager may be the one that is cut off"


async def test_a_connected_node_is_not_forgotten_by_mistake_and_a_forgotten_one_must_join_again(
    settings: Settings, make_node: MakeNode
) -> None:
    async with two_nodes(settings, make_node) as (plane, a, _):
        assert "drain" in is_problem(await plane.http.delete("/api/v1/nodes/a"), 409)["detail"]
        await plane.http.post("/api/v1/nodes/a/drain?wait=30s", json={"on": True})
        assert (await plane.http.delete("/api/v1/nodes/a")).status_code == 204
        await until_states(plane, b="in_sync")
        assert (await plane.http.get("/api/v1/nodes/a")).status_code == 404
        await until_true(lambda: "node.forgotten" in a.log(), "it says so while it runs")
        stored = json.loads((a.folder / "joined.json").read_text())
        assert "unknown_node" in stored["refused"]
        assert [(each.state, "unknown_node" in each.message) for each in checkup._fleet(a.folder)] == [
            ("failure", True)
        ]
        assert a.alive
        await asyncio.to_thread(a.stop)
        (a.folder / "token").unlink()
        await start(a)
        await until_true(lambda: "unknown_node" in a.log(), "it is told that nobody knows it")
        assert a.alive
        await until_states(plane, b="in_sync")
        await asyncio.to_thread(a.stop)
        (a.folder / "token").touch(mode=0o600)
        (a.folder / "token").write_text(await token_of(plane))
        await start(a)
        await until_states(plane, a="in_sync", b="in_sync")

        def known() -> bool:
            return not json.loads((a.folder / "joined.json").read_text())["refused"]

        await until_true(known, "it is known again")
        assert (await plane.http.delete("/api/v1/nodes/a?force=true")).status_code == 204
        await until_states(plane, b="in_sync")


# ---- labels and selectors


async def test_records_reach_the_nodes_of_their_selector_alone(settings: Settings, make_node: MakeNode) -> None:
    async with two_nodes(settings, make_node) as (plane, a, b):
        every = await plane.http.put("/api/v1/quotas/all?wait=30s", json={"limit_bytes": PAGE})
        some = await plane.http.put(
            "/api/v1/quotas/some?wait=30s", json={"limit_bytes": PAGE, "selector": {"zone": "x"}}
        )
        none = await plane.http.put(
            "/api/v1/quotas/none?wait=30s", json={"limit_bytes": PAGE, "selector": {"zone": "z"}}
        )
        assert set(every.json()["status"]["nodes"]) == {"a", "b"}
        assert set(some.json()["status"]["nodes"]) == {"a"}
        assert some.json()["status"]["applied"]
        assert none.json()["status"]["nodes"] == {}
        assert [(c["type"], c["status"], c["reason"]) for c in none.json()["status"]["conditions"]] == [
            ("Accepted", "True", "Committed"),
            ("Applied", "False", "NoNode"),
            ("Effective", "False", "NoNode"),
        ]
        nowhere = {c["message"] for c in none.json()["status"]["conditions"][1:]}
        assert nowhere == {"no node matches the selector zone=z"}
        assert await limited(a, "all", "some", "none") == {"all", "some"}
        assert await limited(b, "all", "some", "none") == {"all"}
        patched = await plane.http.patch(
            "/api/v1/nodes/b", json={"labels": {"zone": "x"}}, headers={"content-type": "application/merge-patch+json"}
        )
        assert patched.json()["labels"] == {"zone": "x", "gpu": "h200"}
        await until_states(plane, a="in_sync", b="in_sync")
        assert await limited(b, "all", "some", "none") == {"all", "some"}
        await plane.http.patch(
            "/api/v1/nodes/b", json={"labels": {"zone": None}}, headers={"content-type": "application/merge-patch+json"}
        )
        await until_states(plane, a="in_sync", b="in_sync")
        assert await limited(b, "all", "some", "none") == {"all"}


async def limited(node: DataPlane, *tenants: str) -> set[str]:
    """Which tenants may store only one page on a node."""

    def ask() -> set[str]:
        with attach(node.socket, [make.space()], timeout_s=60) as client:
            return {
                tenant
                for tenant in tenants
                if client.reserve(make.keys(3, tenant), PAGE, tenant=tenant).refused.get(Code.OVER_LIMIT)
            }

    return await asyncio.to_thread(ask)


async def test_of_the_policies_that_match_a_node_the_highest_priority_is_in_force(
    settings: Settings, make_node: MakeNode
) -> None:
    async with two_nodes(settings, make_node) as (plane, _, _b):
        for name, body in (
            ("default", {"algorithm": "fifo"}),
            ("gpus", {"algorithm": "arc", "selector": {"gpu": "h200"}, "priority": 1}),
            ("zone-x", {"algorithm": "lfu", "selector": {"zone": "x"}, "priority": 2}),
        ):
            accepted(await plane.http.put(f"/api/v1/policies/{name}?wait=30s", json=body))
        await until_states(plane, a="in_sync", b="in_sync")

        def algorithms() -> dict[str, str]:
            stats = plane.app.parts.fleet.stats()
            return {each.node: each.policy.algorithm for each in stats}

        await plane.until(lambda: algorithms() == {"a": "lfu", "b": "arc"}, WAIT_S)
        gpus = await plane.get("/api/v1/policies/gpus")
        reasons = {
            name: [(c["status"], c["reason"]) for c in at["conditions"]] for name, at in gpus["status"]["nodes"].items()
        }
        assert reasons == {
            "a": [("True", "Applied"), ("False", "Overruled")],
            "b": [("True", "Applied"), ("True", "Effective")],
        }
        for name in ("zone-x", "gpus"):
            await plane.http.delete(f"/api/v1/policies/{name}?wait=30s")
        await plane.until(lambda: algorithms() == {"a": "fifo", "b": "fifo"}, WAIT_S)


# ---- conditions


async def test_a_quota_takes_effect_when_the_leases_of_the_excess_end(plane: Plane, make_node: MakeNode) -> None:
    node = await start(make_node("a", await token_of(plane)))
    await until_states(plane, a="in_sync")
    await plane.put_quota("acme", 8 * PAGE)

    with await asyncio.to_thread(attach, node.socket, [make.space()], timeout_s=60) as client:
        with client.reserve(make.keys(4), PAGE, tenant="acme") as reservation:
            reservation.commit()
        lease = client.acquire(make.keys(4))
        assert len(lease) == 4
        await plane.put_quota("acme", PAGE)

        async def effective(*expected: str) -> bool:
            condition = (await plane.get("/api/v1/quotas/acme"))["status"]["conditions"][2]
            return (condition["status"], condition["reason"]) == expected

        await until(lambda: effective("False", "OverLimit"))
        lease.release()
        await until(lambda: effective("True", "Effective"))


async def test_a_join_token_needs_a_join_socket_and_sane_fields(settings: Settings, socket_dir: Path) -> None:
    async with serving(settings) as plane:
        for body, field in (
            ({"uses": 0}, "uses"),
            ({"ttl_s": -1}, "ttl_s"),
            ({"labels": {"": "x"}}, "labels"),
            ({"addresses": ["tcp://0.0.0.0:1"]}, "addresses[0]"),
            ({"addresses": ["http://x"]}, "addresses[0]"),
            ({"name": "x" * 129}, "name"),
        ):
            answer = await plane.http.post("/api/v1/join-tokens", json=body)
            assert answer.status_code == 422, body
            assert [error["path"] for error in answer.json()["errors"]] == [field]
        assert (await plane.http.delete("/api/v1/join-tokens/nobody")).status_code == 404
    alone = socket_dir / "alone"
    alone.mkdir()
    async with serving(settings_in(alone)) as plane:
        problem = is_problem(await plane.http.post("/api/v1/join-tokens", json={}), 409)
        assert "LARDER_APP__JOIN_URL" in problem["detail"]
    assert not (alone / "manager.key").exists(), "who needs no key makes none"


async def test_floors_are_checked_against_their_nodes(settings: Settings, make_node: MakeNode) -> None:
    async with two_nodes(settings, make_node) as (plane, _, _b):
        pool = 16 * make.MIB

        async def put(tenant: str, **body: Any) -> int:
            answer = await plane.http.put(f"/api/v1/quotas/{tenant}?wait=30s", json=body)
            return answer.status_code

        assert await put("x", floor_bytes=pool, selector={"zone": "x"}) == 201
        assert await put("y", floor_bytes=pool, selector={"zone": "y"}) == 201
        assert await put("all", floor_bytes=1) == 409
        assert await put("nowhere", floor_bytes=100 * pool, selector={"zone": "z"}) == 201
        assert await put("x", floor_bytes=pool, selector={"zone": "y"}) == 409
        assert await put("x", floor_bytes=pool - 1, selector={"zone": "x"}) == 200


async def test_a_caller_refused_repeatedly_is_delayed_and_the_audit_stays_short(plane: Plane) -> None:
    enrolment = plane.app.parts.fleet_services.enrolment
    ask = Join(1, "a", "0", {}, "tcp://10.0.0.9:1", "tcp://10.0.0.9:2", "nobody", bytes(32))
    codes = [(await enrolment.decide(ask, "k" * 40, "10.0.0.9")).code for _ in range(60)]
    assert codes[0] == "bad_token"
    assert "rate_limited" in codes
    assert (await enrolment.decide(ask, "k" * 40, "10.0.0.8")).code == "bad_token"
    refused = [e for e in (await plane.get("/api/v1/audit"))["items"] if e["action"] == "join"]
    assert len(refused) == codes.count("bad_token") + 1


async def test_a_node_that_another_manager_enrols_at_the_same_time_is_enrolled(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolment = plane.app.parts.fleet_services.enrolment
    token = parse_token(await token_of(plane))
    ask = Join(1, "a", "0", {}, "tcp://10.0.0.9:1", "tcp://10.0.0.9:2", token.id, token.secret)
    admit = enrolment._admit

    async def admit_again(change: Change, message: Join, key: str) -> NodeRow:
        """Create the row twice, as two managers do."""
        monkeypatch.setattr(enrolment, "_admit", admit)
        row = await admit(change, message, key)
        await change.session.flush()
        columns = list(NodeRow.__table__.columns)
        await change.session.execute(sa.insert(NodeRow).from_select(columns, sa.select(*columns)))
        return row

    monkeypatch.setattr(enrolment, "_admit", admit_again)
    assert isinstance(await enrolment.decide(ask, "k" * 40, "10.0.0.9"), Joined)


@pytest.mark.parametrize(
    ("field", "value"),
    [("node", "a\0b"), ("node", "\x1b[31m\nb"), ("token", "a\0b"), ("token", "x" * 60_000), ("release", "1\0")],
)
async def test_bytes_that_are_not_text_are_refused_and_logged_escaped(plane: Plane, field: str, value: str) -> None:
    enrolment = plane.app.parts.fleet_services.enrolment
    token = parse_token(await token_of(plane))
    ask = Join(1, "a", "0", {}, "tcp://10.0.0.9:1", "tcp://10.0.0.9:2", token.id, token.secret)
    ask = msgspec.structs.replace(ask, **{field: value})
    for number in range(5):
        answer = await enrolment.decide(ask, "k" * 40, f"10.0.0.{number}")
        assert answer.code in ("bad_field", "bad_token")
    entries = [e for e in (await plane.get("/api/v1/audit"))["items"] if e["action"] == "join"]
    assert len(entries) == 5
    assert all(entry["name"].isascii() and entry["name"].isprintable() for entry in entries)


def test_a_limited_caller_is_shown_no_size_of_a_pool() -> None:
    node = FleetNode("a", "ipc://a", capacity_bytes=10)
    floors: list[Floor] = [(None, 8)]
    more: list[Floor] = [*floors, (None, 4)]
    assert "12 bytes" in str(excess(floors, more, [node]))
    hidden = excess(floors, more, [node], whole=False)
    assert hidden is not None
    assert not any(character.isdigit() for character in hidden)
    assert excess(floors, [*floors, (None, 2)], [node], whole=False) is None


@pytest.mark.parametrize(
    ("url", "address", "good"),
    [
        ("tcp://10.0.0.9:1", "10.0.0.9", True),
        ("tcp://0.0.0.0:1", "10.0.0.9", True),
        ("tcp://[::]:1", "fd00::9", True),
        ("tcp://127.0.0.1:1", "127.0.0.1", True),
        ("ipc:///run/larder/control.sock", "", True),
        ("tcp://127.0.0.1:1", "10.0.0.9", False),
        ("tcp://localhost:1", "10.0.0.9", False),
        ("tcp://LOCALHOST.:1", "10.0.0.9", False),
        ("tcp://127.1:1", "10.0.0.9", False),
        ("tcp://2130706433:1", "10.0.0.9", False),
        ("tcp://0x7f000001:1", "10.0.0.9", False),
        ("tcp://[::ffff:127.0.0.1]:1", "10.0.0.9", False),
        ("ipc:///run/larder/control.sock", "10.0.0.9", False),
        ("http://10.0.0.9:1", "10.0.0.9", False),
    ],
)
async def test_a_node_cannot_send_the_management_plane_to_sockets_of_its_own_machine(
    plane: Plane, url: str, address: str, good: bool
) -> None:
    enrolment = plane.app.parts.fleet_services.enrolment
    token = parse_token(await token_of(plane))
    ask = Join(1, "a", "0", {}, url, "tcp://0.0.0.0:2" if good and address else url, token.id, token.secret)
    answer = await enrolment.decide(ask, "k" * 40, address)
    if good:
        assert isinstance(answer, Joined)
        expected = {"tcp://0.0.0.0:1": "tcp://10.0.0.9:1", "tcp://[::]:1": "tcp://[fd00::9]:1"}.get(url, url)
        assert answer.control_url == expected
    else:
        assert answer.code == "bad_field"
        assert "control_url" in answer.message

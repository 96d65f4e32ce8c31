"""Sessions that requests name: requests to nodes, tenants of tokens, audit entries, the command, and a real node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dataplane.protocol.control.messages import ControlReply, ControlRequest
from dataplane.protocol.control.sessions import ActOnSession, ListSessions, SessionActed, SessionsListed, SessionState
from dataplane.protocol.sessions import MAX_SESSION_CHARACTERS
from tests.app.callers import ADMIN, create_token, send
from tests.app.command import output, refused
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.app.problems import accepted, fault_paths, is_problem
from tests.app.real_node import governing
from tests.app.waiting import until
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane as DataPlane
from tests.dataplane.tiering import chains

pytestmark = pytest.mark.anyio
S = "/api/v1/sessions"
ACTIONS = ("release", "retain", "prefetch")
NEVER = 4_000_000_000


def state(name: str, tenant: str = "acme", **fields: Any) -> SessionState:
    known = {
        "model": "m", "started_at": 100, "used_at": 200, "released": False, "retained_until": 0, "chunks": 3,
        "bytes": {"memory": 8192, "disk": 12288}, "private_bytes": 4096, **fields,
    }  # fmt: skip
    return SessionState(tenant, name, **known)


class Sessions:
    """The sessions of a node that answers questions about them."""

    def __init__(self, node: FakeNode, *states: SessionState) -> None:
        self.states = [*states]
        self.acted: list[ActOnSession] = []
        node.answers = self.answer

    def answer(self, message: ControlRequest) -> ControlReply | None:
        if isinstance(message, ListSessions):
            chosen = [
                (at, each)
                for at, each in enumerate(self.states, 1)
                if at > message.after
                and message.tenant in (None, each.tenant)
                and message.session in ("", each.session)
            ]
            page = chosen[: min(2, message.limit)]
            following = page[-1][0] if len(page) < len(chosen) else 0
            return SessionsListed(message.nonce, [each for _, each in page], following)
        if isinstance(message, ActOnSession):
            self.acted.append(message)
            found = any((each.tenant, each.session) == (message.tenant, message.session) for each in self.states)
            return SessionActed(message.nonce, found, 3 * found, 12288 * found, 1 * found)
        return None


async def test_sessions_are_listed_page_by_page(new_plane: Plane, new_node: FakeNode) -> None:
    Sessions(new_node, *(state(f"s{at}") for at in range(5)), state("s0", ""), state("gone", retained_until=NEVER))
    listed = await new_plane.get(S)
    assert [item["session"] for item in listed["items"]] == ["s0", "s1", "s2", "s3", "s4", "s0", "gone"]
    assert listed["items"][0] == {
        "node": "node-a", "tenant": "acme", "session": "s0", "model": "m", "started_at": 100.0, "used_at": 200.0,
        "released": False, "retained_until": None, "chunks": 3, "bytes": {"memory": 8192, "disk": 12288},
        "private_bytes": 4096,
    }  # fmt: skip
    assert listed["items"][-1]["retained_until"] == NEVER
    assert [item["tenant"] for item in (await new_plane.get(f"{S}?tenant=_default"))["items"]] == ["_default"]
    names, cursor = list[str](), ""
    while cursor or not names:
        page = await new_plane.get(f"{S}?limit=3&cursor={cursor}")
        names += [item["session"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert names == [item["session"] for item in listed["items"]]
    (item,) = (await new_plane.get(f"{S}/s1?tenant=acme"))["items"]
    assert (item["node"], item["session"]) == ("node-a", "s1")
    for query in ("tenant=other", "tenant=_default", ""):
        is_problem(await new_plane.http.get(f"{S}/s1?{query}"), 404)
    assert fault_paths(await new_plane.http.get(f"{S}?cursor=x")) == ["cursor"]


async def test_actions_are_sent_audited_and_published(new_plane: Plane, new_node: FakeNode) -> None:
    node = Sessions(new_node, state("s1"))
    for action, sent, seconds in (
        ("release", {}, 0.0),
        ("release", {"seconds": 5}, 0.0),
        ("retain", {}, 300.0),
        ("retain", {"seconds": 7}, 7.0),
        ("prefetch", {}, 60.0),
        ("prefetch", {"seconds": 1e6, "node": "node-a"}, 300.0),
    ):
        answer = accepted(await new_plane.http.post(f"{S}/s1:{action}", json={"tenant": "acme", **sent}), 200)
        assert answer == {
            "session": "s1", "tenant": "acme", "total": 1, "blocks": 3, "bytes": 12288, "refused_blocks": 1,
            "items": [{"node": "node-a", "blocks": 3, "bytes": 12288, "refused_blocks": 1, "error": None}],
        }  # fmt: skip
        acted = node.acted[-1]
        assert (acted.action, acted.tenant, acted.session, acted.seconds) == (action, "acme", "s1", seconds)
    entries = (await new_plane.get("/api/v1/audit?kind=agent_session"))["items"]
    assert [(entry["action"], entry["name"]) for entry in entries[:2]] == [("prefetch", "s1"), ("prefetch", "s1")]
    assert entries[0]["after"] == {"tenant": "acme", "seconds": 300.0, "nodes": ["node-a"]}
    event, *_ = await new_plane.stored_events("name=session.action_requested", 6)
    assert (event["fields"]["action"], event["fields"]["session"]) == ("prefetch", "s1")
    for path in (f"{S}/s1:release", f"{S}/s2:release"):
        is_problem(await new_plane.http.post(path, json={}), 404)
    assert node.acted[-1].tenant == "", "without a tenant, the one of the empty salt is meant"


async def test_wrong_names_and_fields_are_refused(new_plane: Plane, new_node: FakeNode) -> None:
    node = Sessions(new_node, state("s1"))
    for name in ("x" * (MAX_SESSION_CHARACTERS + 1), "a%20b", "a%0Ab", "a%1B[2Jb", "a:b", "%C3%A9", "a@b"):
        for action in ACTIONS:
            path = f"{S}/{name}:{action}"
            assert fault_paths(await new_plane.http.post(path, json={"tenant": "acme"})) == ["session"], path
    assert fault_paths(await new_plane.http.get(f"{S}/a%20b")) == ["session"]
    longest = f"{S}/{'x' * 30_000}:release"  # the client sends no URL of 1 MiB
    assert fault_paths(await new_plane.http.post(longest, json={})) == ["session"]
    for body, path in (({"seconds": 0}, "seconds"), ({"seconds": -1}, "seconds"), ({"tenant": "a@b"}, "tenant"),
                       ({"node": "nobody"}, "node"), ({"minutes": 1}, "minutes")):  # fmt: skip
        assert fault_paths(await new_plane.http.post(f"{S}/s1:retain", json=body)) == [path]
    for method, name, allowed in (
        ("GET", "s1:release", "OPTIONS, POST"),
        ("POST", "s1", "GET, HEAD, OPTIONS"),
        ("POST", "s1:drop", "GET, HEAD, OPTIONS"),
    ):
        answer = await new_plane.http.request(method, f"{S}/{name}", json={})
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed), name
    assert node.acted == []


async def test_a_node_that_knows_no_sessions_is_reported(new_plane: Plane, new_node: FakeNode) -> None:
    new_node.unable = True
    answer = accepted(await new_plane.http.post(f"{S}/s1:release", json={}), 200)
    (item,) = answer["items"]
    assert (item["blocks"], item["error"].startswith("node-a: ")) == (0, True)
    (failed,) = (await new_plane.get(S))["failed_nodes"]
    assert failed["node"] == "node-a"


async def test_a_token_reaches_the_sessions_of_its_tenants_alone(new_node: FakeNode, new_guarded: Plane) -> None:
    await new_guarded.until_state("in_sync")
    node = Sessions(new_node, state("s1"), state("s1", "other"), state("s2", "other"))
    viewer = await create_token(new_guarded, "viewer")
    acme = await create_token(new_guarded, "acme", "operator", tenants=["acme"])
    both = await create_token(new_guarded, "both", "operator", tenants=["acme", "other"])
    for token, body, status in (
        ("", {"tenant": "acme"}, 401),
        (viewer, {"tenant": "acme"}, 403),
        (acme, {"tenant": "other"}, 403),
        (acme, {"tenant": "_default"}, 403),
        (both, {}, 403),
    ):
        for action in ACTIONS:
            answer = await send(new_guarded, token, "POST", f"{S}/s1:{action}", json=body)
            assert answer.status_code == status, (body, answer.text)
    assert node.acted == []
    accepted(await send(new_guarded, acme, "POST", f"{S}/s1:release", json={}), 200)
    accepted(await send(new_guarded, both, "POST", f"{S}/s1:retain", json={"tenant": "other"}), 200)
    assert [(each.action, each.tenant) for each in node.acted] == [("release", "acme"), ("retain", "other")]
    listed = accepted(await send(new_guarded, acme, "GET", S), 200)
    assert [(item["tenant"], item["session"]) for item in listed["items"]] == [("acme", "s1")]
    assert (await send(new_guarded, acme, "GET", f"{S}/s2")).status_code == 404
    for token, path in ((acme, f"{S}?tenant=other"), (acme, f"{S}/s2?tenant=other"), (both, S), (both, f"{S}/s1")):
        assert (await send(new_guarded, token, "GET", path)).status_code == 403, path
    assert len(accepted(await send(new_guarded, ADMIN, "GET", S), 200)["items"]) == 3


async def test_the_command_lists_and_acts(new_plane: Plane, new_node: FakeNode) -> None:
    node = Sessions(new_node, state("s1"), state("s2", "", released=True, model="", bytes={}))
    out = await output(new_plane, "sessions", "-o", "wide")
    lines = [line.split() for line in out.splitlines()]
    (first,) = [line for line in lines if line[:1] == ["s1"]]
    assert first[1:4] == ["acme", "node-a", "m"]
    assert "8.0 KiB memory, 12.0 KiB disk" in out or "8 KiB memory, 12 KiB disk" in out
    assert [line[:5] for line in lines if line[:1] == ["s2"]] == [["s2", "_default", "node-a", "-", "released"]]
    out = await output(new_plane, "sessions", "describe", "s1", "--tenant", "acme")
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    assert ["nodes.node-a.bytes.disk:", "12 KiB"] in lines
    ((used_at,),) = [line[1:] for line in lines if line[:1] == ["nodes.node-a.used_at:"]]
    assert used_at.endswith("Z")
    assert "Events: none" in out
    assert await output(new_plane, "sessions", "list", "--limit", "1", "-o", "name") == "s1\n"
    out = await output(new_plane, "sessions", "retain", "s1", "--for", "2m", "--tenant", "acme", "--node", "node-a")
    assert "node-a" in out
    assert (node.acted[-1].action, node.acted[-1].seconds) == ("retain", 120.0)

    async def reported() -> bool:
        return "action=retain" in await output(new_plane, "sessions", "describe", "s1", "--tenant", "acme")

    await until(reported)
    node.states.append(state("s1", "other"))
    assert "Events: none" in await output(new_plane, "sessions", "describe", "s1", "--tenant", "other")
    await output(new_plane, "session", "release", "s1", "--tenant", "acme")
    await output(new_plane, "sessions", "prefetch", "s1", "--within", "5s", "--tenant", "acme")
    assert [(each.action, each.seconds) for each in node.acted[-2:]] == [("release", 0.0), ("prefetch", 5.0)]
    assert "there is no session 's9'" in await refused(new_plane, 4, "sessions", "release", "s9", "--tenant", "acme")


async def test_a_real_node_releases_retains_and_prefetches(
    data_plane: DataPlane, socket_dir: Path, tmp_path: Path
) -> None:
    keys = make.keys(chains.BLOCKS, "chain")

    def store() -> None:
        with chains.connect(data_plane) as client, client.reserve(keys, chains.NBYTES, session="talk") as written:
            written.commit()

    def ready() -> int:
        with chains.connect(data_plane) as client:
            return client.lookup(keys)

    async def act(plane: Plane, action: str) -> dict[str, Any]:
        answer: dict[str, Any] = accepted(await plane.http.post(f"{S}/talk:{action}", json={}), 200)
        return answer

    async with governing(data_plane, socket_dir) as plane:
        parameters = {"directories": [str(tmp_path / "t")], "segment_bytes": 4 << 20}
        tier = {"type": "disk", "budget_bytes": "64MiB", "parameters": parameters, "spill": "off"}
        accepted(await plane.http.put("/api/v1/tiers/fast?wait=30s", json=tier), 201)
        await plane.until(lambda: any(t.serves for each in plane.app.parts.fleet.stats() for t in each.tiers), 60.0)
        with chains.connect(data_plane):  # a space without engines and blocks in memory is forgotten
            await asyncio.to_thread(store)
            assert (await act(plane, "retain"))["blocks"] == chains.BLOCKS
            assert (await act(plane, "release"))["blocks"] == chains.BLOCKS
            move = {"tenant": "_default", "tier": "fast", "release": True}
            accepted(await plane.http.post("/api/v1/actions/move?wait=30s", json=move), 200)
            assert await asyncio.to_thread(ready) == 0
            (item,) = (await plane.get(f"{S}/talk"))["items"]
            assert (item["chunks"], [*item["bytes"]], item["released"]) == (chains.BLOCKS, ["fast"], True)
            assert (await act(plane, "prefetch"))["blocks"] == chains.BLOCKS
            for _ in range(600):
                if await asyncio.to_thread(ready) == chains.BLOCKS:
                    break
                await asyncio.sleep(0.1)
            (item,) = (await plane.get(f"{S}/talk"))["items"]
            assert item["bytes"]["memory"] == item["bytes"]["fast"] > 0

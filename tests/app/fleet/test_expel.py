"""Expel an engine through the API and the command line: the request to the node, and the output."""

from __future__ import annotations

import pytest

from dataplane.protocol.stats.engines import EngineStats
from tests.app.command import larder, output, refused
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.app.problems import accepted, fault_paths, is_problem

pytestmark = pytest.mark.anyio
PATH = "/api/v1/nodes/node-a/engines/7/expel"


async def test_the_request_is_sent_to_the_node_and_audited(plane: Plane, node: FakeNode) -> None:
    assert accepted(await plane.http.post(PATH, json={"force": True}), 200) == {
        "node": "node-a",
        "pid": 4711,
        "clients": [7, 8],
        "leased_blocks": 3,
        "dropped": True,
        "killed": False,
        "quarantined_bytes": 4096,
        "waits_for_pids": [4711, 4712],
    }
    assert (await plane.http.post(PATH, json={"kill": True})).json()["killed"] is True
    assert (await plane.http.post(PATH, json={"on": False})).status_code == 200
    assert [(each.client, each.on, each.force, each.kill) for each in node.expelled] == [
        (7, True, True, False),
        (7, True, False, True),
        (7, False, False, False),
    ]
    entries = (await plane.get("/api/v1/audit?kind=node&limit=3"))["items"]
    assert [(entry["action"], entry["name"], entry["after"]) for entry in entries] == [
        ("readmit", "node-a", {"client": 7, "force": False, "kill": False}),
        ("expel", "node-a", {"client": 7, "force": False, "kill": True}),
        ("expel", "node-a", {"client": 7, "force": True, "kill": False}),
    ]


async def test_invalid_values_are_refused(plane: Plane, node: FakeNode) -> None:
    assert fault_paths(await plane.http.post(PATH, json={"on": False, "kill": True}))[0] == "on"
    assert node.expelled == []
    assert (await plane.http.post(PATH.replace("node-a", "nobody"), json={})).status_code == 404
    assert (await plane.http.post(PATH.replace("/7/", "/0/"), json={})).status_code in (400, 404, 422)
    for path, part in ((PATH, "holds 3 blocks"), (PATH.replace("/7/", "/9/"), "no engine")):
        refused = is_problem(await plane.http.post(path, json={}), 409)
        assert refused["type"].endswith("node-refused")
        assert part in refused["detail"]


async def test_the_command_shows_finished_and_waiting_work(plane: Plane, node: FakeNode) -> None:
    assert "holds 3 blocks: with --force" in await refused(plane, 1, "engines", "expel", "node-a", "7")
    code, out, _ = await larder(plane, "engines", "expel", "node-a", "7", "--force")
    assert (code, out) == (
        0,
        "node-a: process 4711 is expelled; its leases on 3 blocks no longer count\n"
        "4 KiB that it was writing wait until these processes are gone: 4711, 4712\n",
    )
    code, out, _ = await larder(plane, "engines", "expel", "node-a", "7", "--kill")
    assert (code, out) == (
        0,
        "node-a: process 4711 was sent SIGKILL; its leases on 3 blocks end with it\n"
        "its leases and 4 KiB that it was writing wait until these processes are gone: 4712\n",
    )
    assert await output(plane, "engines", "expel", "node-a", "7", "--off") == "node-a: process 4711 may attach again\n"
    await refused(plane, 2, "engines", "expel", "node-a", "7", "--off", "--kill")


async def test_engines_are_listed_those_that_hold_most_first(plane: Plane, node: FakeNode) -> None:
    engines = [
        EngineStats(1, 100, "a", "vllm", 0.0, ["llama"], True, leased_blocks=2),
        EngineStats(
            2, 200, "b", "vllm", 0.0, ["llama"], False, leased_blocks=9, waits_for_pids=[200], expelled="barred"
        ),
    ]
    await plane.report(node, engines=engines)
    out = await output(plane, "engines", "list", "node-a")
    lines = [line.split() for line in out.splitlines() if "node-a" in line]
    assert [line[1:5] for line in lines] == [["2", "200", "b", "expelled"], ["1", "100", "a", "attached"]]

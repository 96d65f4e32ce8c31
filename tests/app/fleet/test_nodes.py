"""Requests to one node: resizes, traces and labels."""

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from app.schemas.fleet.nodes import TracedRequest
from app.services.cache.traces import replayable
from dataplane.core.engines.accesses import AccessRecord
from dataplane.protocol.control.prefixes import TracePart
from dataplane.replay.trace import read_trace
from tests.app.fake_node import FakeNode
from tests.app.plane import IMPATIENT, Plane
from tests.app.problems import accepted, fault_paths, is_problem

pytestmark = pytest.mark.anyio
N = "/api/v1/nodes/node-a"


def line(number: int, **fields: Any) -> bytes:
    request = {"timestamp": number * 1000.5, "tenant": "acme", "model": "m", "block_bytes": 64, "hit_blocks": 1}
    return json.dumps({**request, "hash_ids": [number, number + 1], **fields}).encode() + b"\n"


async def test_a_pool_grows_and_grows_again_when_its_node_comes_back_smaller(
    new_plane: Plane, new_node: FakeNode
) -> None:
    answer = accepted(await new_plane.http.post(f"{N}/resize", json={"pool_bytes": "2GiB"}), 200)
    assert (answer["node"], answer["capacity_bytes"]) == ("node-a", 2 << 30)
    new_node.capacity_bytes = 1 << 30
    await new_node.restart()
    await new_node.until(lambda: new_node.capacity_bytes == 2 << 30)
    (entry,) = (await new_plane.get("/api/v1/audit?kind=node"))["items"]
    assert (entry["action"], entry["kind"], entry["name"]) == ("resize", "node", "node-a")
    assert entry["after"] == {"pool_bytes": 2 << 30}


async def test_a_node_that_will_not_grow_again_works_on_as_it_is(new_plane: Plane, new_node: FakeNode) -> None:
    assert (await new_plane.http.post(f"{N}/resize", json={"pool_bytes": 2 << 30})).is_success
    new_node.capacity_bytes, new_node.unable = 1 << 30, True
    await new_node.restart()
    await new_plane.until_event("node.resize_refused")
    assert (await new_plane.put_quota("acme"))["status"]["applied"] is True


async def test_a_forgotten_size_is_not_requested_again(new_plane: Plane, new_node: FakeNode) -> None:
    assert (await new_plane.http.delete(f"{N}/resize")).status_code == 404, "none is asked for"
    assert (await new_plane.http.delete("/api/v1/nodes/nobody/resize")).status_code == 404
    assert (await new_plane.http.post(f"{N}/resize", json={"pool_bytes": 2 << 30})).is_success
    assert (await new_plane.http.delete(f"{N}/resize")).status_code == 204
    assert (await new_plane.node())["capacity_bytes"] == 2 << 30
    new_node.capacity_bytes = 1 << 30
    await new_node.restart()
    await new_plane.until_state("in_sync")
    assert (await new_plane.put_quota("acme"))["status"]["applied"] is True
    assert new_node.capacity_bytes == 1 << 30
    entries = (await new_plane.get("/api/v1/audit"))["items"]
    resizes = [entry["after"] for entry in entries if entry["action"] == "resize"]
    assert resizes == [{"pool_bytes": None}, {"pool_bytes": 2 << 30}]


async def test_a_resize_shows_how_many_blocks_the_node_can_name(new_plane: Plane, new_node: FakeNode) -> None:
    pool = msgspec.structs.replace(new_node.stats.pool, max_blocks=1000)
    await new_plane.report(new_node, pool=pool)
    answer = (await new_plane.http.post(f"{N}/resize", json={"pool_bytes": 2 << 30})).json()
    assert answer == {"node": "node-a", "capacity_bytes": 2 << 30, "max_blocks": 1000}


@IMPATIENT
async def test_an_invalid_size_is_refused(new_plane: Plane, new_node: FakeNode) -> None:
    for body in ({"pool_bytes": 0}, {"pool_bytes": -1}, {"pool_bytes": "big"}, {"pool_bytes": None}, {}):
        assert fault_paths(await new_plane.http.post(f"{N}/resize", json=body)) == ["pool_bytes"]
    assert (await new_plane.http.post("/api/v1/nodes/nobody/resize", json={"pool_bytes": 1})).status_code == 404
    smaller = is_problem(await new_plane.http.post(f"{N}/resize", json={"pool_bytes": 1}), 409)
    assert "the pool cannot shrink" in smaller["detail"]
    refused = (await new_plane.get("/api/v1/audit"))["items"][0]
    assert (refused["action"], refused["decision"], refused["after"]) == ("resize", "denied", {"pool_bytes": 1})
    assert "the pool cannot shrink" in refused["reason"]
    await new_node.stop()
    await new_plane.until_state("lost")
    assert (await new_plane.http.post(f"{N}/resize", json={"pool_bytes": 2 << 30})).status_code == 503


async def test_a_trace_is_streamed_in_parts_and_can_be_replayed(
    new_plane: Plane, new_node: FakeNode, tmp_path: Path
) -> None:
    new_node.trace = [line(0) + line(1), b"", line(2, input_length=7, output_length=3)]
    response = await new_plane.http.get(f"{N}/trace?since_s=60")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("application/x-ndjson")
    file = tmp_path / "trace.jsonl"
    file.write_bytes(response.content)
    requests = read_trace(file)
    assert [(r.timestamp, r.input_length, r.hash_ids) for r in requests] == [
        (0.0, 512, (0, 1)),
        (1000.5, 512, (1, 2)),
        (2001.0, 7, (2, 3)),
    ]
    described = [msgspec.json.decode(text, type=TracedRequest) for text in response.content.splitlines()]
    assert [(each.tenant, each.hash_ids) for each in described] == [("acme", [n, n + 1]) for n in range(3)]
    assert [ask.after for ask in new_node.traced] == [0, 1, 2]
    assert len({ask.since for ask in new_node.traced}) == 1


def test_a_described_request_has_the_fields_that_nodes_send() -> None:
    assert TracedRequest.__struct_fields__ == AccessRecord.__struct_fields__


async def test_an_empty_trace_is_an_empty_answer(new_plane: Plane, new_node: FakeNode) -> None:
    assert (await new_plane.http.get(f"{N}/trace")).content == b""


async def test_malformed_requests_are_left_out_of_a_trace() -> None:
    assert replayable(b'nonsense\n{"hash_ids": "x"}\n\n[]\n{}\n') == b""
    assert len(replayable(line(1) + b"{" + line(2)).splitlines()) == 1


async def test_a_trace_that_fails_is_a_problem_or_breaks_off(new_plane: Plane, new_node: FakeNode) -> None:
    assert (await new_plane.http.get("/api/v1/nodes/nobody/trace")).status_code == 404
    for bad in ("0", "-1", "nan", "long"):
        assert (await new_plane.http.get(f"{N}/trace?since_s={bad}")).status_code == 422
    new_node.unable = True
    assert (await new_plane.http.get(f"{N}/trace")).status_code == 409
    new_node.unable = False
    new_node.answers = lambda message: TracePart(getattr(message, "nonce", ""), line(1), 5)
    with capture_logs() as lines, pytest.raises(httpx.RemoteProtocolError):
        await new_plane.http.get(f"{N}/trace")
    (logged,) = [entry for entry in lines if entry["event"] == "request.interrupted"]
    assert "repeats itself" in logged["reason"]
    new_node.answers = None
    assert (await new_plane.http.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"labels": {"-a": "b"}}, "labels"),
        ({"labels": {"a": "b c"}}, "labels"),
        ({"labels": {f"k{number}": "" for number in range(33)}}, "labels"),
        ({"labels": 3}, "labels"),
        ({}, "labels"),
        ({"labels": {}, "more": 1}, "more"),
    ],
)
async def test_invalid_labels_are_refused_by_field(
    new_plane: Plane, new_node: FakeNode, body: dict[str, Any], field: str
) -> None:
    answer = await new_plane.http.patch(
        "/api/v1/nodes/node-a", json=body, headers={"content-type": "application/merge-patch+json"}
    )
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"].startswith(field)

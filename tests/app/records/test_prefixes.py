"""Hot prefixes, and pins that are made from one."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from app.ingest.fleet import FleetNode
from app.push.node_requests import NodeReply
from app.services.base.principals import PLANE
from app.services.records.prefixes import PrefixService
from dataplane.protocol.control.messages import ControlRefused
from dataplane.protocol.control.nodes import Resized
from dataplane.protocol.control.prefixes import Prefix, PrefixesListed
from tests.app.callers import create_token, guarding, send
from tests.app.fake_node import FakeNode
from tests.app.plane import IMPATIENT, Plane
from tests.app.problems import accepted, fault_paths, is_problem

pytestmark = pytest.mark.anyio
KEYS = b"".join(sha256(bytes([at])).digest() for at in range(3))


def prefix(label: str, tenant: str = "acme", **fields: Any) -> Prefix:
    values: dict[str, Any] = {
        "model": "llama", "depth": 3, "hits": 5, "bytes_served": 100, "error": 0, "resident": 3,
        "last_used": 1.0, "keys": KEYS, **fields,
    }  # fmt: skip
    return Prefix(label=label, tenant=tenant, **values)


async def test_prefixes_are_listed_the_hottest_first(plane: Plane, node: FakeNode) -> None:
    node.prefixes = [prefix("few", hits=9, bytes_served=1), prefix("many", "", hits=2, bytes_served=500)]
    by_bytes = await plane.get("/api/v1/prefixes")
    assert [(p["label"], p["tenant"], p["nodes"]) for p in by_bytes["items"]] == [
        ("many", "_default", ["node-a"]),
        ("few", "acme", ["node-a"]),
    ]
    assert (by_bytes["total"], by_bytes["failed_nodes"]) == (2, [])
    assert [p["label"] for p in (await plane.get("/api/v1/prefixes?by=hits"))["items"]] == ["few", "many"]
    only = await plane.get("/api/v1/prefixes?tenant=_default")
    assert [p["label"] for p in only["items"]] == ["many"]
    assert [p["label"] for p in (await plane.get("/api/v1/prefixes?limit=1"))["items"]] == ["few"]


@IMPATIENT
async def test_bad_parameters_and_a_missing_node_are_problems(new_plane: Plane, new_node: FakeNode) -> None:
    for query, field in (("by=age", "by"), ("tenant=a@b", "tenant"), ("limit=0", "limit"), ("limit=1001", "limit")):
        assert fault_paths(await new_plane.http.get(f"/api/v1/prefixes?{query}")) == [field]
    await new_node.stop()
    await new_plane.until_state("lost")
    problem = is_problem(await new_plane.http.get("/api/v1/prefixes"), 503)
    assert problem["type"] == "urn:larder:problem:node-unreachable"


async def test_a_tenants_own_operator_sees_its_own_hot_prefixes_and_no_others(
    socket_dir: Path, new_node: FakeNode
) -> None:
    new_node.prefixes = [prefix("of-rival", "rival", bytes_served=900), prefix("of-acme", bytes_served=5),
                     prefix("of-both", "rival"), prefix("of-both"), prefix("of-third", "third", hits=7)]  # fmt: skip
    async with guarding(socket_dir) as plane:
        await plane.until_state("in_sync")
        one = await create_token(plane, "one", tenants=["acme"])
        two = await create_token(plane, "two", tenants=["acme", "third"])
        for query in ("", "?tenant=acme"):
            seen = (await send(plane, one, "GET", f"/api/v1/prefixes{query}")).json()
            assert [(p["label"], p["tenant"]) for p in seen["items"]] == [("of-both", "acme"), ("of-acme", "acme")]
            assert (seen["total"], "rival" in str(seen)) == (2, False)
        seen = (await send(plane, two, "GET", "/api/v1/prefixes?by=hits&limit=2")).json()
        assert [p["label"] for p in seen["items"]] == ["of-third", "of-acme"]
        assert (await send(plane, one, "GET", "/api/v1/prefixes?tenant=rival")).status_code == 403
        many = await create_token(plane, "many", tenants=[f"t{at}" for at in range(51)])
        assert fault_paths(await send(plane, many, "GET", "/api/v1/prefixes"))[0] == "tenant"
        assert (await send(plane, many, "GET", "/api/v1/prefixes?tenant=t50")).json()["items"] == []


async def test_the_same_prefix_of_two_nodes_is_one() -> None:
    class Two:
        def connected(self) -> list[FleetNode]:
            return [FleetNode(name, "") for name in ("a", "b", "c")]

        async def ask_all(self, nodes: list[FleetNode], *_: object) -> list[NodeReply[PrefixesListed]]:
            one, other = prefix("p", hits=1, resident=2), prefix("p", hits=2, depth=4, last_used=7.0)
            answers = [PrefixesListed("", [one]), PrefixesListed("", [other]), None]
            return list(map(NodeReply, nodes, answers, (None, None, "c: did not answer")))

    answer = await PrefixService(Two()).page("hits", None, 10, PLANE)  # type: ignore[arg-type]
    (merged,) = answer.items
    assert (merged.hits, merged.bytes_served, merged.depth, merged.resident) == (3, 200, 4, 5)
    assert (merged.last_used, merged.nodes) == (7.0, ["a", "b"])
    assert [(one.node, one.error) for one in answer.failed_nodes] == [("c", "c: did not answer")]


async def test_a_node_that_does_not_know_the_question_is_named(plane: Plane, node: FakeNode) -> None:
    node.unable = True
    answer = await plane.get("/api/v1/prefixes")
    assert answer["items"] == []
    assert answer["failed_nodes"] == [{"node": "node-a", "error": "node-a: unsupported: not known here"}]


@IMPATIENT
async def test_a_node_that_answers_wrongly_or_not_at_all_harms_no_other(new_plane: Plane, new_node: FakeNode) -> None:
    new_node.answers = lambda message: Resized(getattr(message, "nonce", ""), 1)
    (failed_nodes,) = (await new_plane.get("/api/v1/prefixes"))["failed_nodes"]
    assert "answered with Resized, expected Prefixes" in failed_nodes["error"]
    new_node.answers = lambda message: ControlRefused("malformed", "what?")
    (failed_nodes,) = (await new_plane.get("/api/v1/prefixes"))["failed_nodes"]
    assert "malformed: what?" in failed_nodes["error"]
    new_node.answers = lambda message: None
    (failed_nodes,) = (await new_plane.get("/api/v1/prefixes"))["failed_nodes"]
    assert "did not answer within 1 s" in failed_nodes["error"]
    new_node.answers = None
    assert (await new_plane.get("/api/v1/prefixes"))["failed_nodes"] == []
    assert (await new_plane.put_quota("acme"))["status"]["applied"] is True


async def test_a_pin_is_made_from_a_prefix(plane: Plane, node: FakeNode) -> None:
    node.prefixes = [prefix("hot-1")]
    answer = accepted(await plane.http.put("/api/v1/pins/p?wait=30s", json={"prefix": "hot-1"}), 201)
    assert (answer["model"], answer["tenant"], answer["key_count"]) == ("llama", "acme", 3)
    assert list(node.bodies.values()) == [KEYS]
    same = {"prefix": "hot-1", "model": "llama", "tenant": "acme"}
    assert (await plane.http.put("/api/v1/pins/p", json=same)).status_code == 200


async def test_a_prefix_that_cannot_be_pinned_is_refused_with_a_sentence(plane: Plane, node: FakeNode) -> None:
    node.prefixes = [
        prefix("hot-1"), prefix("torn", keys=KEYS[:-1]), prefix("empty", keys=b""),
        prefix("twice", keys=KEYS + KEYS), prefix("odd", tenant="a@b"),
    ]  # fmt: skip
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"prefix": "cold"}, "prefix", "no connected node has a prefix 'cold'"),
        ({"prefix": ""}, "prefix", "expected 1 to 128"),
        ({"prefix": "torn"}, "prefix", "cannot be pinned"),
        ({"prefix": "empty"}, "prefix", "cannot be pinned"),
        ({"prefix": "twice"}, "prefix", "cannot be pinned"),
        ({"prefix": "odd"}, "prefix", "cannot be pinned"),
        ({"prefix": "hot-1", "model": "other"}, "model", "the prefix is of 'llama'"),
        ({"prefix": "hot-1", "tenant": "_default"}, "tenant", "the prefix is of 'acme'"),
        ({"prefix": "hot-1", "model": "llama", "tokens": [1]}, "tokens", "exactly one of"),
    ]
    for body, field, sentence in cases:
        response = await plane.http.put("/api/v1/pins/p", json=body)
        assert response.status_code == 422, body
        assert [error["path"] for error in response.json()["errors"]] == [field], body
        assert sentence in response.json()["detail"]
    assert (await plane.get("/api/v1/pins"))["total"] == 0


async def test_a_label_of_another_tenant_is_as_unknown_as_a_missing_one(socket_dir: Path, new_node: FakeNode) -> None:
    new_node.prefixes = [
        prefix("theirs", "acme", model="secret-model"),
        prefix("broken", "acme", keys=KEYS[:-1]),
        prefix("mine", "small", model="m"),
    ]
    async with guarding(socket_dir) as plane:
        await plane.until_state("in_sync")
        one = await create_token(plane, "one", "operator", tenants=["small"])
        two = await create_token(plane, "two", "operator", tenants=["small", "empty"])

        async def answer_to(token: str, label: str, **body: Any) -> tuple[Any, ...]:
            """Everything that can be seen of an answer, without the label itself."""
            if body.get("listed"):
                answer = await send(plane, token, "GET", f"/api/v1/blocks?tenant=small&prefix={label}")
            else:
                answer = await send(plane, token, "PUT", "/api/v1/pins/p", json={"prefix": label, **body})
            headers = {name: text for name, text in answer.headers.items() if name not in ("date", "x-request-id")}
            problem = {name: value for name, value in answer.json().items() if name != "request_id"}
            return answer.status_code, headers, str(problem).replace(label, "LABEL")

        for token in (one, two):
            for body in ({"tenant": "small"}, {"tenant": "small", "model": "secret-model"}, {"tenant": "acme"},
                         {"model": "m"}, {}, {"listed": True}, {"tenant": "a@b"}):  # fmt: skip
                unknown = await answer_to(token, "nobody", **body)
                assert unknown[0] in (403, 422)
                for label in ("theirs", "broken"):
                    assert await answer_to(token, label, **body) == unknown, (label, body)
        assert new_node.labels == [], "nor does it take another time: no node was asked for those keys"
        assert fault_paths(await send(plane, two, "PUT", "/api/v1/pins/p", json={"prefix": "mine"}))[0] == "tenant"
        for token, body in ((one, {}), (two, {"tenant": "small"})):
            name = f"/api/v1/pins/of-{len(body)}"
            own = accepted(await send(plane, token, "PUT", name, json={"prefix": "mine", **body}), 201)
            assert (own["model"], own["tenant"]) == ("m", "small")
        assert set(new_node.labels) == {"mine"}


async def test_without_a_node_a_prefix_means_nothing(lone: Plane) -> None:
    problem = is_problem(await lone.http.put("/api/v1/pins/p", json={"prefix": "hot-1"}), 503)
    assert "no node is connected" in problem["detail"]

"""Invalidate and demote: valid scopes, requests to nodes, and audit entries."""

from itertools import product
from typing import Any

import pytest

from dataplane.protocol.control.messages import ControlRequest
from dataplane.protocol.control.scopes import Demote, Invalidate, Scope
from dataplane.protocol.control.verification import Verification, VerificationState, Verified, Verify
from dataplane.protocol.keys import chain
from tests.app.callers import ADMIN, create_token, send
from tests.app.fake_node import FakeNode
from tests.app.plane import IMPATIENT, TOKENS, Plane
from tests.app.problems import accepted

pytestmark = pytest.mark.anyio
SPACE = "ab" * 16
KEY = "cd" * 32


async def act(plane: Plane, verb: str, **scope: Any) -> Any:
    return accepted(await plane.http.post(f"/api/v1/actions/{verb}", json=scope), 200)


async def test_every_node_is_sent_the_verification_and_names_its_sweep(new_plane: Plane, new_node: FakeNode) -> None:
    first = await act(new_plane, "invalidate", tenant="_default", model="m")
    assert first["items"] == [{"node": "node-a", "sweep": 1, "error": None, "blocks": 3, "bytes": 12288}]
    assert (first["total"], first["tokenizer"]) == (1, None)
    await act(new_plane, "demote", space=SPACE.upper())
    await act(new_plane, "demote", keys=[KEY])
    await act(new_plane, "invalidate", tenant="acme", model="m", tokens=TOKENS, chunk_tokens=4)
    assert [(type(message), message.scope) for message in new_node.swept] == [
        (Invalidate, Scope(tenant="", model="m")),
        (Demote, Scope(space=SPACE)),
        (Demote, Scope(keys=bytes.fromhex(KEY))),
        (Invalidate, Scope("acme", "m", None, b"".join(chain(TOKENS, "acme", chunk_tokens=4)))),
    ]


async def test_a_verification_is_followed_by_callers_of_its_tenant_and_of_all(
    new_guarded: Plane, new_node: FakeNode
) -> None:
    states: list[VerificationState] = []

    def answer(message: ControlRequest) -> Verified | None:
        if isinstance(message, Verify):
            states.append(VerificationState(len(states) + 1, 3, 0, 0, 0, 0, 0, 1.0, None, message.scope.tenant))
            return Verified(message.nonce, states[-1])
        return Verified(message.nonce, states[message.number - 1]) if isinstance(message, Verification) else None

    await new_guarded.until_state("in_sync")
    new_node.answers = answer
    mine = await create_token(new_guarded, "mine", "operator", tenants=["acme", "_default"])
    viewer = await create_token(new_guarded, "viewer")
    for token, body in (
        (mine, {"tenant": "acme"}),
        (mine, {"tenant": "_default"}),
        (ADMIN, {"tenant": "rival"}),
        (ADMIN, {}),
    ):
        begun = accepted(await send(new_guarded, token, "POST", "/api/v1/actions/verify", json=body), 200)
        assert begun["items"][0]["verification"]["tenant"] == body.get("tenant")
    seen: dict[str, list[Any]] = {mine: [], viewer: []}
    for token, number in product(seen, range(1, 5)):
        followed = await send(new_guarded, token, "GET", f"/api/v1/actions/verify/node-a/{number}")
        assert "rival" not in followed.text or token == viewer
        seen[token].append(followed.json()["verification"]["tenant"] if followed.is_success else followed.status_code)
    assert seen == {mine: ["acme", "_default", 403, 403], viewer: ["acme", "_default", "rival", None]}


async def test_a_dry_run_counts_and_does_nothing(new_plane: Plane, new_node: FakeNode) -> None:
    for verb, scope in (("invalidate", {"model": "m"}), ("demote", {"model": "m"}), ("clear", {"confirm": True})):
        answer = await act(new_plane, verb, dry_run=True, **scope)
        assert answer["items"] == [{"node": "node-a", "sweep": None, "error": None, "blocks": 3, "bytes": 12288}]
        assert (answer["blocks"], answer["bytes"]) == (3, 12288)
    assert new_node.swept == []
    assert (await new_plane.get("/api/v1/audit?kind=blocks"))["items"] == []


async def test_actions_are_audited_with_the_scope_and_no_keys(new_plane: Plane) -> None:
    await act(new_plane, "invalidate", tenant="acme", model="m", tokens=TOKENS, chunk_tokens=4)
    (entry,) = (await new_plane.get("/api/v1/audit?kind=blocks"))["items"]
    assert (entry["action"], entry["kind"], entry["generation"]) == ("invalidate", "blocks", 0)
    assert entry["name"] == "tenant acme, model m, key_count 2"
    assert entry["after"]["key_count"] == 2
    assert len(entry["after"]["keys_digest"]) == 64


async def test_an_invalid_scope_is_refused_by_field(new_plane: Plane, new_node: FakeNode) -> None:
    cases: list[tuple[Any, list[str]]] = [
        ({}, ["tenant"]),
        ({"chunk_tokens": 4}, ["tenant"]),
        ({"tenant": "a@b"}, ["tenant"]),
        ({"tenant": ""}, ["tenant"]),
        ({"model": ""}, ["model"]),
        ({"space": "ab"}, ["space"]),
        ({"space": "zz" * 16}, ["space"]),
        ({"tokens": TOKENS, "chunk_tokens": 4}, ["tenant", "model"]),
        ({"tokens": TOKENS, "model": "m"}, ["tenant", "tokens"]),
        ({"tokens": TOKENS, "keys": [KEY]}, ["tokens"]),
        ({"tenant": "t", "model": "m", "tokens": [1, -1], "chunk_tokens": 2}, ["tokens[1]"]),
        ({"keys": []}, ["keys"]),
        ({"keys": ["ab"]}, ["keys"]),
        ({"tenat": "acme"}, ["tenat"]),
        ([], [""]),
    ]
    for verb in ("invalidate", "demote"):
        for scope, paths in cases:
            response = await new_plane.http.post(f"/api/v1/actions/{verb}", json=scope)
            assert response.status_code == 422, scope
            found = [error["path"] for error in response.json()["errors"]]
            assert found == paths or paths == [""], (scope, found)
    assert new_node.swept == []
    assert (await new_plane.get("/api/v1/audit?kind=blocks"))["total"] == 0


async def test_a_refusal_of_a_node_is_distinguished_from_success(new_plane: Plane, new_node: FakeNode) -> None:
    new_node.unable = True
    (item,) = (await act(new_plane, "invalidate", tenant="acme"))["items"]
    assert (item["sweep"], item["error"]) == (None, "node-a: unsupported: not known here")


@IMPATIENT
async def test_without_a_node_nothing_is_done_and_nothing_is_written(new_plane: Plane, new_node: FakeNode) -> None:
    await new_node.stop()
    await new_plane.until_state("lost")
    response = await new_plane.http.post("/api/v1/actions/invalidate", json={"tenant": "acme"})
    assert response.status_code == 503
    assert (await new_plane.get("/api/v1/audit?kind=blocks"))["total"] == 0

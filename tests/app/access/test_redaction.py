"""The fleet as callers of some tenants see it: nodes by name and state, without addresses and totals."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from blake3 import blake3

from app.openapi import document
from app.store.base.database import Database
from dataplane.protocol.control.lookups import Looked, LookupChain, SpaceHits
from dataplane.protocol.control.messages import ControlRefused, ControlRequest
from dataplane.protocol.control.snapshots import Fault
from dataplane.protocol.spaces import Space
from dataplane.protocol.stats.pool import PoolStats
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.callers import bearer, create_token, guarding, send
from tests.app.fake_node import FakeNode
from tests.app.plane import PIN, TOKENS, Plane
from tests.app.problems import accepted
from tests.app.tokenizer_files import TEMPLATE, words

pytestmark = pytest.mark.anyio


async def identity(plane: Plane) -> tuple[str, str]:
    """Name and secret of the plane's database."""
    database: Database = plane.app.parts.database
    async with database.read() as session:
        row = (await session.execute(sa.text("SELECT id, secret FROM store"))).one()
    return row[0], row[1]


async def first_overview(plane: Plane, token: str) -> str:
    async with plane.http.stream("GET", "/api/v1/events", headers=bearer(token)) as stream:
        lines = stream.aiter_lines()
        async with asyncio.timeout(60):
            while await anext(lines) != "event: overview":
                pass
            return await anext(lines)


def looked(spaces: list[SpaceHits]) -> Callable[[ControlRequest], Any]:
    """Answers of a node that holds these parts of every prefix."""

    def answer(message: ControlRequest) -> Any:
        if not isinstance(message, LookupChain):
            return ControlRefused("unsupported", "not asked here", nonce=getattr(message, "nonce", ""))
        return Looked(message.nonce, spaces, 0)

    return answer


async def test_the_overview_of_a_tenant_shows_nodes_without_their_addresses(
    socket_dir: Path, new_node: FakeNode
) -> None:
    new_node.stats = msgspec.structs.replace(
        new_node.stats, tenants=[TenantStats("acme", bytes=5), TenantStats("other", bytes=6)], pool=PoolStats(100, 11)
    )
    async with guarding(socket_dir) as plane:
        await plane.until_state("in_sync")
        await plane.events_flow()
        await plane.http.patch("/api/v1/nodes/node-a", json={"labels": {"for": "other-tenant"}},
                               headers={"content-type": "application/merge-patch+json"})  # fmt: skip
        token = await create_token(plane, "acme-op", "operator", tenants=["acme"])
        store, _ = await identity(plane)
        inside = (store, new_node.epoch, new_node.control_url, new_node.events_url, str(socket_dir), "/nowhere",
                  "other-tenant", f'"pid":{os.getpid()}', '"tenant":"other"')  # fmt: skip
        whole = (await plane.http.get("/api/v1/overview")).text
        assert [text for text in inside if text not in whole] == []
        shown = (await send(plane, token, "GET", "/api/v1/overview")).text
        streamed = await first_overview(plane, token)
        for overview in (shown, streamed):
            assert [text for text in inside if text in overview] == []
            assert '"name":"node-a","state":"in_sync"' in overview
        for path in ("/api/v1/nodes", "/api/v1/nodes/node-a"):
            answer = await send(plane, token, "GET", path)
            assert (answer.status_code, [text for text in inside if text in answer.text]) == (200, [])
        (node_seen,) = (await send(plane, token, "GET", "/api/v1/nodes")).json()["items"]
        assert {name: value for name, value in node_seen.items() if value} == {
            "name": "node-a",
            "state": "in_sync",
            "capacity_bytes": new_node.capacity_bytes,
            "seen_at": node_seen["seen_at"],
        }


async def test_a_tenant_sees_the_rules_of_the_policy_and_no_counts_or_notes(
    new_node: FakeNode, new_guarded: Plane
) -> None:
    await new_guarded.until_state("in_sync")
    body = {"algorithm": "slru", "note": "for the rival", "managed_by": "team-x"}
    assert (await new_guarded.http.put("/api/v1/policies/default?wait=30s", json=body)).status_code == 201
    token = await create_token(new_guarded, "acme-op", "operator", tenants=["acme"])
    whole = (await new_guarded.http.get("/api/v1/overview")).json()["policy"]
    seen = (await send(new_guarded, token, "GET", "/api/v1/overview")).json()["policy"]
    assert (whole["note"], list(whole["status"]["nodes"])) == ("for the rival", ["node-a"])
    status = {"accepted": True, "applied": whole["status"]["applied"], "nodes": {}, "conditions": []}
    assert seen == {**whole, "note": "", "managed_by": "", "in_force": {}, "status": status}


async def test_locate_shows_a_tenant_which_nodes_and_not_their_addresses(
    new_node: FakeNode, new_guarded: Plane
) -> None:
    space = Space(model="m", layout="l", dtype="d")
    await new_guarded.until_state("in_sync")
    new_node.answers = looked([SpaceHits("0" * 32, space, {"l1": 2}, {"l1": 2})])
    token = await create_token(new_guarded, "acme-op", tenants=["acme"])
    body = {"model": "m", "tenant": "acme", "tokens": TOKENS, "chunk_tokens": 4}
    (whole,) = (await new_guarded.http.post("/api/v1/actions/locate", json=body)).json()["items"]
    assert (whole["engine_socket"], whole["control_url"]) == ("/nowhere", new_node.control_url)
    (place,) = (await send(new_guarded, token, "POST", "/api/v1/actions/locate", json=body)).json()["items"]
    assert place == {**whole, "engine_socket": "", "control_url": ""}


async def test_refusals_of_records_of_others_are_hidden_from_a_tenant(new_node: FakeNode, new_guarded: Plane) -> None:
    await new_guarded.until_state("in_sync")
    token = await create_token(new_guarded, "acme-op", "operator", tenants=["acme"])
    new_node.faults = [Fault("quotas[1].limit_bytes", "bad_field", "other wants too much")]
    await new_guarded.put_quota("acme", 1)
    await new_guarded.put_pin("p", tenant="acme")
    for path in ("/api/v1/quotas/acme", "/api/v1/pins/p"):
        assert "other wants too much" in (await new_guarded.http.get(path)).text
        answer = (await send(new_guarded, token, "GET", path)).text
        assert "node-a refused generation 1" in answer
        assert "other" not in answer
    for path in ("/api/v1/quotas", "/api/v1/pins", "/api/v1/overview"):
        assert "other" not in (await send(new_guarded, token, "GET", path)).text


async def test_nothing_that_a_tenant_reads_names_another_caller(guarded: Plane) -> None:
    outsider = await create_token(guarded, "outsider-of-the-fleet", "admin")
    token = await create_token(guarded, "acme-op", "operator", tenants=["acme"])
    pin = {**PIN, "tenant": "acme"}
    writes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("pins/theirs", pin), ("quotas/acme", {"limit_bytes": 5}), ("ceilings/acme", {}), ("policies/default", {}),
        ("rates/m", {"model": "m", "prefill_tokens_per_s": 5.0}),
    )  # fmt: skip
    for path, body in writes:
        answer = await send(guarded, outsider, "PUT", f"/api/v1/{path}", json=body)
        assert answer.status_code in (200, 201, 422, 404, 405), answer.text
    assert (await send(guarded, token, "PUT", "/api/v1/pins/mine", json=pin)).json()["owner"] == "acme-op"
    shown = {"stream": await first_overview(guarded, token)}
    for path, item in json.loads(document())["paths"].items():
        if "get" in item and path != "/api/v1/events":
            filled = path.replace("{tenant}", "acme").replace("{name}", "theirs")
            shown[path] = (await send(guarded, token, "GET", filled)).text
    (theirs,) = [pin for pin in json.loads(shown["/api/v1/pins"])["items"] if pin["name"] == "theirs"]
    assert theirs["owner"] == ""
    assert {path for path, text in shown.items() if "outsider-of-the-fleet" in text} == set()
    assert (await send(guarded, outsider, "GET", "/api/v1/pins/theirs")).json()["owner"] == "outsider-of-the-fleet"


async def test_a_pin_of_another_tenant_shows_only_that_its_name_exists(guarded: Plane) -> None:
    token = await create_token(guarded, "acme-op", "operator", tenants=["acme"])
    await guarded.put_pin("plain", wait="", tenant="rival")
    await guarded.put_pin("strong", wait="", tenant="third", strength="permanent", note="ours", model="secret")
    pin, refused = {**PIN, "tenant": "acme"}, set()
    for name in ("plain", "strong"):
        for headers in ({}, {"if-match": "*"}, {"if-none-match": "*"}, {"if-match": '"1"'}):
            answer = await send(guarded, token, "PUT", f"/api/v1/pins/{name}", json=pin, headers=headers)
            problem = answer.json()
            del problem["request_id"]
            refused.add((answer.status_code, str(problem).replace(name, "NAME")))
    ((status, text),) = refused
    assert (status, "names of pins are unique in the whole fleet" in text) == (403, True)
    assert [word for word in ("rival", "third", "tenant", "secret", "ours", "permanent") if word in text] == []
    for method, path, body in (("GET", "", None), ("PATCH", "", {"note": "x"}), ("DELETE", "", None),
                               ("POST", ":extend", {"ttl_s": 5})):  # fmt: skip
        refusals = set()
        for name in ("plain", "strong", "nobodys"):
            answer = await send(
                guarded, token, method, f"/api/v1/pins/{name}{path}", json=body, headers={"if-match": "*"}
            )
            refusals.add((answer.status_code, answer.json()["detail"].replace(name, "NAME")))
        assert refusals == {(404, "there is no pin 'NAME'")}, method
    document = {"apiVersion": "larder/v1", "pins": {"strong": pin}}
    for dry_run in (True, False):
        whole = {"document": document, "dry_run": dry_run}
        refused = (await send(guarded, token, "POST", "/api/v1/apply", json=whole)).json()
        assert refused["detail"] == (
            "pins.strong: 'strong' is taken: names of pins are unique in the whole fleet; choose another one"
        )
    assert (await send(guarded, token, "PUT", "/api/v1/pins/mine", json=pin)).status_code == 201


async def test_no_output_contains_the_key_of_token_hashes(guarded: Plane) -> None:
    token = await create_token(guarded, "ci")
    store, secret = await identity(guarded)
    assert len(bytes.fromhex(secret)) == 32
    database: Database = guarded.app.parts.database
    async with database.read() as session:
        stored = (await session.execute(sa.text("SELECT hash FROM tokens WHERE name = 'ci'"))).scalar_one()
    _, ident, part = token.split("_")
    for known in (store, "", ident):
        key = blake3(known.encode(), derive_key_context="larder 2026-11-21 secrets of callers").digest()
        assert blake3(f"token {ident} {part}".encode(), key=key).hexdigest() != stored
    for path in ("nodes", "overview", "whoami", "audit", "tokens", "managers", "snapshot", "pushes", "session"):
        assert secret not in (await guarded.http.get(f"/api/v1/{path}")).text


async def test_a_lookup_shows_a_tenant_no_engines_without_its_blocks(new_node: FakeNode, new_guarded: Plane) -> None:
    ours, theirs = (Space(model="m", layout="l", dtype=dtype, world_size=2, rank=0) for dtype in ("o", "t"))
    ours_too = msgspec.structs.replace(ours, rank=1)
    spaces = [
        SpaceHits("0" * 32, ours, {"l1": 2}, {"l1": 2}),
        SpaceHits("1" * 32, ours_too, {"l1": 1}, {"l1": 1}),
        SpaceHits("2" * 32, theirs, {"l1": 0}, {"l1": 0}),
    ]

    await new_guarded.until_state("in_sync")
    new_node.answers = looked(spaces)
    token = await create_token(new_guarded, "acme-op", "operator", tenants=["acme"])
    body = {"model": "m", "tenant": "acme", "tokens": TOKENS, "chunk_tokens": 4}
    path = "/api/v1/actions/lookup"
    (whole,) = (await new_guarded.http.post(path, json=body)).json()["items"]
    assert [each["dtype"] for each in whole["spaces"]] == ["o", "o", "t"]
    (seen,) = (await send(new_guarded, token, "POST", path, json=body)).json()["items"]
    assert seen == {**whole, "spaces": whole["spaces"][:2]}
    del spaces[:2]
    (seen,) = (await send(new_guarded, token, "POST", path, json=body)).json()["items"]
    spaces.clear()
    (unknown,) = (await send(new_guarded, token, "POST", path, json=body)).json()["items"]
    assert seen == unknown, "a model of others and one of nobody are told apart"


async def test_of_tokenizers_a_tenant_sees_which_models_have_one(guarded: Plane) -> None:
    body = {
        "model": "m", "tokenizer": words(), "chat_template": TEMPLATE,
        "special_tokens": {"bos_token": "<bos>"}, "note": "for the rival",
    }  # fmt: skip
    put = accepted(await guarded.http.put("/api/v1/tokenizers/t", json=body), 201)
    token = await create_token(guarded, "acme-op", "operator", tenants=["acme"])
    one = (await send(guarded, token, "GET", "/api/v1/tokenizers/t")).json()
    (listed,) = (await send(guarded, token, "GET", "/api/v1/tokenizers")).json()["items"]
    blank = {"digest": "", "chat_template": None, "special_tokens": None, "note": ""}
    assert one == listed == {**put, **blank}

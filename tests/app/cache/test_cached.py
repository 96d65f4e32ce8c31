"""The cache of a real data plane through the API: lookups, blocks, verification, clearing."""

from __future__ import annotations

import mmap
import os
from typing import Any

import pytest
from msgspec.structs import replace

from dataplane.client import Client, attach
from dataplane.protocol.keys import chain
from tests.app.command import output, refused
from tests.app.plane import Plane
from tests.app.problems import accepted
from tests.app.tokenizer_files import TEMPLATE, text, words
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane as DataPlane
from tests.dataplane.plane import contents

pytestmark = pytest.mark.anyio
PAGE = 4096
CHUNK = 4
TOKENS = list(range(40))
WHERE: dict[str, Any] = {"model": make.MODEL, "tenant": "acme", "chunk_tokens": CHUNK}
KEYS = chain(TOKENS, "acme", chunk_tokens=CHUNK)


def store(engine: Client, keys: list[bytes], tenant: str = "acme") -> None:
    with engine.reserve(keys, PAGE, tenant=tenant) as reservation:
        for at, data in enumerate(contents(keys, PAGE)):
            reservation.view(at)[:] = data
        reservation.commit()


async def post(plane: Plane, action: str, status: int = 200, **body: Any) -> Any:
    response = await plane.http.post(f"/api/v1/actions/{action}", json=body)
    assert response.status_code == status, response.text
    return response.json()


async def all_blocks(plane: Plane, **query: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = accepted(await plane.http.get("/api/v1/blocks", params={**query, "cursor": cursor}))
        assert page["failed_nodes"] == []
        items += page["items"]
        cursor = page["next_cursor"]
        if not cursor:
            return items


async def test_a_lookup_returns_the_tokens_that_an_engine_would_be_served(governed: Plane, engine: Client) -> None:
    store(engine, KEYS[:6])
    found = await post(governed, "lookup", **WHERE, tokens=TOKENS)
    (item,) = found["items"]
    assert (item["hit_tokens"], item["hit_chunks"], item["resident_chunks"]) == ({"l1": 24}, {"l1": 6}, {"l1": 6})
    assert (found["chunks"], found["chunk_tokens"], found["tokenizer"]) == (10, 4, None)
    assert item["hit_chunks"]["l1"] == engine.lookup(KEYS)
    by_keys = await post(governed, "lookup", **WHERE, keys=[key.hex() for key in KEYS])
    assert by_keys["items"] == found["items"]
    other = await post(governed, "lookup", **{**WHERE, "tenant": "other"}, tokens=TOKENS)
    assert other["items"][0]["hit_tokens"] == {"l1": 0}
    unknown = await post(governed, "lookup", **{**WHERE, "model": "nobody's"}, tokens=TOKENS)
    assert unknown["items"][0]["hit_tokens"] == {}


async def test_a_lookup_counts_the_rank_that_has_least(governed: Plane, data_plane: DataPlane) -> None:
    spaces = [make.space(model="ranked", rank=rank, world_size=2) for rank in range(2)]
    with attach(data_plane.socket, spaces, timeout_s=60) as client:
        for at, count in enumerate((7, 3)):
            with client.reserve(KEYS[:count], PAGE, tenant="acme", space=at) as reservation:
                reservation.commit()
        found = await post(governed, "lookup", **{**WHERE, "model": "ranked"}, tokens=TOKENS)
        assert found["items"][0]["hit_chunks"] == {"l1": 3}
        assert [space["hits"] for space in found["items"][0]["spaces"]] == [{"l1": 7}, {"l1": 3}]


async def test_a_lookup_counts_what_all_kv_groups_and_stages_have(governed: Plane, data_plane: DataPlane) -> None:
    spaces = [
        replace(make.space("hybrid", rank=rank, world_size=2), layout=f"layers of {group}, {rank}", kv_group=group)
        for group in range(2)
        for rank in range(2)
    ]
    with attach(data_plane.socket, spaces, timeout_s=60) as client:
        for at, count in enumerate((7, 6, 5, 4)):
            with client.reserve(KEYS[:count], PAGE, tenant="acme", space=at) as reservation:
                reservation.commit()
        found = await post(governed, "lookup", **{**WHERE, "model": "hybrid"}, tokens=TOKENS)
        assert found["items"][0]["hit_chunks"] == {"l1": 4}


async def test_blocks_that_no_attached_engine_can_load_count_only_while_none_is_attached(
    governed: Plane, data_plane: DataPlane
) -> None:
    where = {**WHERE, "model": "trained"}
    spaces = [replace(make.space("trained"), revision=weights) for weights in "12"]
    with attach(data_plane.socket, spaces[:1], timeout_s=60) as earlier:
        store(earlier, KEYS[:5])
    assert (await post(governed, "lookup", **where, tokens=TOKENS))["items"][0]["hit_chunks"] == {"l1": 5}
    with attach(data_plane.socket, spaces[1:], timeout_s=60) as now:
        (item,) = (await post(governed, "lookup", **where, tokens=TOKENS))["items"]
        assert item["hit_chunks"] == item["resident_chunks"] == {"l1": now.lookup(KEYS)} == {"l1": 0}
        assert (await post(governed, "locate", **where, tokens=TOKENS))["items"] == []
        store(now, KEYS[:2])
        (place,) = (await post(governed, "locate", **where, tokens=TOKENS))["items"]
        assert place["hit_chunks"] == {"l1": 2}


async def test_locate_names_the_node_and_its_socket_and_leaves_out_nodes_without_blocks(
    governed: Plane, data_plane: DataPlane, engine: Client
) -> None:
    assert (await post(governed, "locate", **WHERE, tokens=TOKENS))["items"] == []
    store(engine, KEYS[:5])
    located = await post(governed, "locate", **WHERE, tokens=TOKENS)
    (place,) = located["items"]
    assert (place["engine_socket"], place["hit_tokens"]) == (data_plane.socket, {"l1": 20})
    assert located["failed_nodes"] == []


async def test_text_and_messages_are_looked_up_by_the_tokenizer_of_the_model(governed: Plane, engine: Client) -> None:
    refused = await post(governed, "lookup", 422, **WHERE, text=text(TOKENS))
    assert refused["errors"][0]["path"] == "text"
    made = await governed.http.put(
        "/api/v1/tokenizers/t",
        json={
            "model": make.MODEL,
            "tokenizer": words(),
            "chat_template": TEMPLATE,
            "special_tokens": {"bos_token": ""},
        },
    )
    store(engine, KEYS)
    found = await post(governed, "lookup", **WHERE, text=text(TOKENS))
    assert found["items"][0]["hit_tokens"] == {"l1": 40}
    assert found["tokenizer"] == {"name": "t", "digest": made.json()["digest"]}
    messages = [{"role": "system", "content": text(TOKENS[:20])}]
    assert (await post(governed, "lookup", **WHERE, messages=messages))["items"][0]["hit_tokens"] == {"l1": 20}
    short = await post(governed, "lookup", 422, **WHERE, text="w1 w2 w3")
    assert short["errors"] == [{"path": "text", "message": "expected at least one full chunk of 4 tokens, got 3"}]


async def test_blocks_are_listed_page_by_page_with_filters(governed: Plane, engine: Client) -> None:
    store(engine, KEYS)
    store(engine, make.keys(5), tenant="")
    await governed.put_pin("system", model=make.MODEL, tenant="acme", tokens=TOKENS[:8], chunk_tokens=CHUNK)
    with engine.acquire(KEYS[:2]):
        items = await all_blocks(governed, limit="3", tenant="acme")
    items.sort(key=lambda item: KEYS.index(bytes.fromhex(item["key"])))
    assert [item["key"] for item in items] == [key.hex() for key in KEYS]
    assert [item["leases"] for item in items] == [1, 1, *[0] * 8]
    assert [item["pins"] for item in items] == [["system"], ["system"], *[[]] * 8]
    first = items[0]
    assert (first["tenant"], first["model"], first["state"], first["tier"]) == ("acme", make.MODEL, "ready", "l1")
    assert (first["strength"], first["guaranteed"], items[1]["parent"]) == ("guaranteed", True, first["key"])
    assert len(await all_blocks(governed)) == 15
    assert len(await all_blocks(governed, tenant="_default")) == 5
    assert len(await all_blocks(governed, model="other")) == 0
    assert len(await all_blocks(governed, space=make.space().identity(), node=first["node"])) == 15
    assert [item["key"] for item in await all_blocks(governed, key=KEYS[3].hex())] == [KEYS[3].hex()]


async def test_one_block_is_shown_with_all_its_copies(governed: Plane, engine: Client, data_plane: DataPlane) -> None:
    with attach(data_plane.socket, [make.space(dtype="fp8")], timeout_s=60) as other:
        store(engine, KEYS[:2])
        store(other, KEYS[:1])
        found = await governed.get(f"/api/v1/blocks/{KEYS[0].hex()}")
        assert found["total"] == 2
        assert {item["key"] for item in found["items"]} == {KEYS[0].hex()}
        assert len({item["space"] for item in found["items"]}) == 2
    assert (await governed.http.get(f"/api/v1/blocks/{'0' * 64}")).status_code == 404
    assert (await governed.http.get("/api/v1/blocks/xyz")).status_code == 422


WRONG_LISTINGS: list[tuple[dict[str, str], int, str | None]] = [
    ({"tenant": "a@b"}, 422, "tenant"),
    ({"space": "ab"}, 422, "space"),
    ({"key": "ab"}, 422, "key"),
    ({"key": "ab" * 32, "prefix": "p-1"}, 422, "prefix"),
    ({"prefix": "p-1"}, 422, "prefix"),
    ({"cursor": "nonsense"}, 422, "cursor"),
    ({"cursor": "k6FhAA"}, 422, "cursor"),
    ({"limit": "0"}, 422, "limit"),
    ({"limit": "1001"}, 422, "limit"),
    ({"node": "nobody"}, 404, None),
]


async def test_an_invalid_listing_is_refused_by_field(governed: Plane) -> None:
    for query, status, path in WRONG_LISTINGS:
        response = await governed.http.get("/api/v1/blocks", params=query)
        assert response.status_code == status, response.text
        if path is not None:
            assert [error["path"] for error in response.json()["errors"]] == [path]


async def test_a_verification_finds_and_drops_corrupt_blocks(
    governed: Plane, engine: Client, data_plane: DataPlane
) -> None:
    store(engine, KEYS)
    (block,) = (await governed.get(f"/api/v1/blocks/{KEYS[4].hex()}"))["items"]
    with segment_file(data_plane, block["segment"]) as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[block["offset"]] ^= 1
    answer = await post(governed, "verify?wait=30s", tenant="acme")
    (item,) = answer["items"]
    state = item["verification"]
    assert (state["blocks"], state["checked"], state["corrupt"]) == (10, 10, 1)
    assert state["ended_at"] >= state["started_at"]
    described = await governed.get(f"/api/v1/actions/verify/{item['node']}/{state['number']}")
    assert described["verification"] == state
    assert engine.lookup(KEYS) == 4
    assert (await governed.http.get(f"/api/v1/actions/verify/{item['node']}/99")).status_code == 409
    assert (await governed.http.get("/api/v1/actions/verify/nobody/1")).status_code == 404
    again = await post(governed, "verify?wait=30s")
    assert again["items"][0]["verification"]["corrupt"] == 0


def segment_file(data_plane: DataPlane, segment: int) -> Any:
    """The memory of a segment."""
    folder = f"/proc/{data_plane.pid}/fd"
    for fd in os.listdir(folder):
        if os.readlink(f"{folder}/{fd}").startswith(f"/memfd:larder-segment-{segment} "):
            return open(f"{folder}/{fd}", "r+b")
    raise AssertionError(f"segment {segment} has no memory")


async def test_clear_needs_a_yes_and_leaves_blocks_of_permanent_pins(governed: Plane, engine: Client) -> None:
    store(engine, KEYS)
    store(engine, make.keys(5), tenant="")
    await governed.put_pin(
        "kept", model=make.MODEL, tenant="acme", tokens=TOKENS[:8], chunk_tokens=CHUNK, strength="permanent"
    )
    for body in ({}, {"confirm": False}, {"confirm": "yes"}):
        refused = await post(governed, "clear", 422, **body)
        assert [error["path"] for error in refused["errors"]] == ["confirm"]
    assert engine.lookup(KEYS) == 10
    await post(governed, "clear", confirm=True)
    assert (engine.lookup(KEYS), engine.lookup(make.keys(5))) == (2, 0)
    await post(governed, "clear", confirm=True, permanent=True)
    assert engine.lookup(KEYS) == 0
    entries = (await governed.get("/api/v1/audit?kind=blocks"))["items"]
    assert [(entry["action"], entry["name"]) for entry in entries[:2]] == [
        ("clear", "everything, including blocks under permanent pins"),
        ("clear", "everything"),
    ]


async def test_an_action_may_name_its_nodes(governed: Plane, engine: Client) -> None:
    store(engine, KEYS)
    name = (await governed.node())["name"]
    before = (await governed.get("/api/v1/audit?kind=blocks"))["total"]
    answer = await post(governed, "invalidate", tenant="acme", node=name)
    assert [item["node"] for item in answer["items"]] == [name]
    assert engine.lookup(KEYS) == 0
    for body, path in (
        ({"node": "nobody"}, "node"),
        ({"nodes": [name, "nobody"]}, "nodes[1]"),
        ({"node": name, "nodes": [name]}, "nodes"),
    ):
        refused = await post(governed, "demote", 422, tenant="acme", **body)
        assert [error["path"] for error in refused["errors"]] == [path]
    audited = await governed.get("/api/v1/audit?kind=blocks")
    assert (audited["total"], audited["items"][0]["after"]["nodes"]) == (before + 1, [name])


WRONG_LOOKUPS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["model"]),
    ({"model": "m"}, ["tokens"]),
    ({"model": "m", "tokens": [1], "keys": ["ab" * 32]}, ["tokens"]),
    ({"model": "m", "tokens": [1], "chunk_tokens": 0}, ["chunk_tokens"]),
    ({"model": "m", "tokens": [1], "chunk_tokens": 2}, ["tokens"]),
    ({"model": "m", "tokens": [-1], "chunk_tokens": 1}, ["tokens[0]"]),
    ({"model": "m", "tokens": [1], "chunk_tokens": 1, "add_generation_prompt": True}, ["add_generation_prompt"]),
    ({"model": "", "keys": ["ab" * 32]}, ["model"]),
    ({"model": "m", "tenant": "a/b", "keys": ["ab" * 32]}, ["tenant"]),
    ({"model": "m", "keys": ["ab"]}, ["keys"]),
    ({"model": "m", "messages": [1]}, ["messages[0]"]),
    ({"model": "m", "text": "x"}, ["text"]),
]


async def test_an_invalid_lookup_is_refused_by_field(governed: Plane) -> None:
    for body, paths in WRONG_LOOKUPS:
        for action in ("lookup", "locate"):
            refused = await post(governed, action, 422, **body)
            assert [error["path"] for error in refused["errors"]] == paths


async def test_the_command_line_takes_the_first_digits_that_its_tables_show(governed: Plane, engine: Client) -> None:
    alike = [bytes.fromhex("ab" * 8) + bytes([number]) * 24 for number in (1, 2)]
    store(engine, [*KEYS[:2], *alike])
    space = (await all_blocks(governed))[0]["space"]
    short = KEYS[0].hex()[:16]
    out = await output(governed, "blocks", "get", short)
    assert KEYS[0].hex() in out
    assert KEYS[1].hex() not in out
    assert "Blocks (4)" in await output(governed, "blocks", "--space", space[:8].upper())
    err = await refused(governed, 1, "blocks", "get", "abababababababab")
    assert "2 keys begin with abababababababab: " in err
    assert all(key.hex() in err for key in alike)
    err = await refused(governed, 4, "blocks", "get", "0123456789")
    assert err == "Error: no cached block has a key that begins with 0123456789\n"
    assert "4 blocks" in await output(governed, "invalidate", "--space", space[:8], "--yes")

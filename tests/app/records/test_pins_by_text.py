"""Pins for people: made from text and messages, changed and extended; a real data plane holds what they name."""

from __future__ import annotations

import time
from typing import Any

import httpx
import msgspec
import pytest

from dataplane.client import Client, attach
from dataplane.protocol.keys import chain
from dataplane.protocol.stats.pins import PinStats
from tests.app.fake_node import FakeNode
from tests.app.plane import TOKENS, Plane
from tests.app.problems import accepted, fault_paths, is_problem
from tests.app.tokenizer_files import BOS, END, TEMPLATE, text, words
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane as DataPlane

pytestmark = pytest.mark.anyio
PAGE = 4096
CHUNK = 4
P = "/api/v1/pins/p"
PROMPT = list(range(100, 141))


@pytest.fixture(scope="module")
def data_plane_settings() -> dict[str, str]:
    return {"pool_bytes": "2MiB", "dataplane__segment_bytes": "2MiB"}


async def register(plane: Plane, model: str = "m", **fields: Any) -> str:
    """A tokenizer with a chat template for a model; its digest."""
    body = {
        "model": model,
        "tokenizer": words(),
        "chat_template": TEMPLATE,
        "special_tokens": {"bos_token": "<bos>"},
        **fields,
    }
    return accepted(await plane.http.put("/api/v1/tokenizers/t", json=body))["digest"]


async def put(plane: Plane, status: int = 201, **fields: Any) -> Any:
    body = {"model": "m", "tenant": "acme", "chunk_tokens": CHUNK, **fields}
    response = await plane.http.put(f"{P}?wait=30s", json=body)
    assert response.status_code == status, response.text
    return response.json()


async def test_a_text_is_pinned_by_the_keys_of_its_tokens_in_engines(plane: Plane, node: FakeNode) -> None:
    digest = await register(plane)
    answer = await put(plane, text=text(PROMPT))
    assert (answer["key_count"], answer["tenant"], answer["model"]) == (10, "acme", "m")
    assert answer["origin"] == {
        "source": "text",
        "tokens": 41,
        "chunk_tokens": CHUNK,
        "prefix": None,
        "tokenizer": {"name": "t", "digest": digest},
    }
    (pin,) = node.pins
    assert node.bodies[pin.keys_digest] == b"".join(chain(PROMPT, "acme", chunk_tokens=CHUNK))
    by_tokens = await put(plane, 200, tokens=PROMPT)
    assert by_tokens["keys_digest"] == answer["keys_digest"]
    assert (by_tokens["origin"]["source"], by_tokens["origin"]["tokenizer"]) == ("tokens", None)


async def test_a_dry_run_does_not_change_what_a_pin_was_made_from(plane: Plane, node: FakeNode) -> None:
    await register(plane)
    made = await put(plane, text=text(PROMPT))
    body = {"model": "m", "tenant": "acme", "chunk_tokens": CHUNK, "tokens": PROMPT}
    tried = await plane.http.put(f"{P}?dry_run=true", json=body)
    assert (tried.status_code, tried.json()["origin"]["source"]) == (200, "tokens")
    assert tried.json()["keys_digest"] == made["keys_digest"], "nothing else changes"
    assert (await plane.get(P))["origin"] == made["origin"]


async def test_messages_are_pinned_as_the_chat_template_writes_them(plane: Plane, node: FakeNode) -> None:
    await register(plane)
    await put(plane, messages=[{"role": "system", "content": text(PROMPT)}])
    (pin,) = node.pins
    tokens = [BOS, *PROMPT, END]
    assert node.bodies[pin.keys_digest] == b"".join(chain(tokens, "acme", chunk_tokens=CHUNK))


async def test_texts_that_cannot_be_tokenized_are_refused_by_field(plane: Plane, node: FakeNode) -> None:
    refused = await put(plane, 422, text=text(PROMPT))
    assert refused["errors"][0]["path"] == "text"
    assert "'m' (no tokenizer is registered)" in refused["detail"]
    await register(plane)
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"text": "w1 w2 w3"}, ["text"]),
        ({"messages": []}, ["messages"]),
        ({"text": ""}, ["text"]),
        ({"text": text(PROMPT), "tokens": PROMPT}, ["tokens"]),
        ({"text": text(PROMPT), "messages": []}, ["tokens"]),
        ({}, ["tokens"]),
        ({"text": text(PROMPT), "model": None}, ["model"]),
        ({"text": text(PROMPT), "model": "other"}, ["text"]),
        ({"text": text(PROMPT), "tenant": "a@b"}, ["tenant"]),
        ({"text": text(PROMPT), "chunk_tokens": 0}, ["chunk_tokens"]),
        ({"text": text(PROMPT), "add_generation_prompt": True}, ["add_generation_prompt"]),
        ({"text": 5}, ["text"]),
        ({"messages": "hello"}, ["messages"]),
        ({"messages": [{"content": "w1"}], "ttl_s": -1}, ["ttl_s", "messages"]),
    ]
    for fields, paths in cases:
        refused = await put(plane, 422, **fields)
        assert [error["path"] for error in refused["errors"]] == paths, fields
    short = await put(plane, 422, text="w1 w2 w3")
    assert short["errors"][0]["message"] == "expected at least one full chunk of 4 tokens, got 3"
    assert node.pins == []


async def test_the_answer_has_the_amount_in_a_line_and_by_node(plane: Plane, node: FakeNode) -> None:
    assert (await plane.put_pin("p"))["summary"] == "resolved 2 chunks, 0 resident, 0 B"
    stats = PinStats("p", resolved=2, resident=1, bytes=96 << 20, guaranteed=1)
    await plane.report(node, pins=[stats])
    answer = await plane.get(P)
    assert answer["summary"] == "resolved 2 chunks, 1 resident, 96 MiB"
    assert answer["nodes"].keys() == {"node-a"}
    assert answer["nodes"]["node-a"].items() >= {"resolved": 2, "resident": 1, "bytes": 96 << 20}.items()
    await plane.report(node, pins=[msgspec.structs.replace(stats, resolved=4, resident=3)])
    assert (await plane.get(P))["summary"] == "resolved 2 chunks, 3 of 4 blocks resident, 96 MiB"


async def send(plane: Plane, method: str, path: str = P, body: Any = None, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await plane.http.request(method, path, json=body, headers=named, auth=lambda request: request)


async def test_a_patch_changes_the_named_fields_and_never_the_prefix(plane: Plane, node: FakeNode) -> None:
    before = time.time()
    made = await plane.put_pin("p", ttl_s=60, refresh_on_hit=True, note="trial")

    async def patched(**fields: Any) -> Any:
        return accepted(await send(plane, "PATCH", f"{P}?wait=30s", fields, if_match="*"), 200)

    noted = await patched(note=None, strength="soft")
    assert (noted["note"], noted["strength"], noted["expires_at"]) == ("", "soft", made["expires_at"])
    assert (noted["refresh_on_hit"], noted["ttl_s"]) == (True, 60.0)
    longer = await patched(ttl_s=600)
    assert before + 600 <= longer["expires_at"] <= time.time() + 600
    assert (longer["refresh_on_hit"], longer["ttl_s"]) == (True, 600.0)
    fixed = await patched(refresh_on_hit=False)
    assert (fixed["ttl_s"], fixed["expires_at"]) == (None, longer["expires_at"])
    permanent = await patched(strength="permanent", ttl_s=None)
    assert (permanent["strength"], permanent["expires_at"]) == ("permanent", None)
    assert permanent["keys_digest"] == made["keys_digest"]
    (pin,) = node.pins
    assert (pin.strength, pin.expires_at, pin.refresh_s) == ("permanent", None, None)
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"ttl_s": 5}, ["strength"]),
        ({"strength": "soft", "ttl_s": 0}, ["ttl_s"]),
        ({"strength": "soft", "expires_at": 5}, ["expires_at"]),
        ({"strength": "soft", "ttl_s": 5, "expires_at": time.time() + 9}, ["expires_at"]),
        ({"strength": "soft", "refresh_on_hit": True}, ["refresh_on_hit"]),
        ({"tokens": TOKENS}, ["tokens"]),
        ({"model": "other"}, ["model"]),
        ({"note": "x" * 1025}, ["note"]),
        ({"selector": {"A b": "x"}}, ["selector"]),
        ({"strength": "firm"}, ["strength"]),
    ]
    for fields, paths in cases:
        response = await send(plane, "PATCH", P, fields, if_match="*")
        assert response.status_code == 422, fields
        assert [error["path"] for error in response.json()["errors"]] == paths
    assert (await plane.get(P))["etag"] == permanent["etag"]


async def test_a_pin_is_extended_from_now_and_never_shortened(plane: Plane, node: FakeNode) -> None:
    made = await plane.put_pin("p", ttl_s=60)
    extended = accepted(await send(plane, "POST", f"{P}:extend?wait=30s", {"ttl_s": 600}), 200)
    assert made["expires_at"] + 500 < extended["expires_at"] <= time.time() + 600
    assert node.pins[0].expires_at == extended["expires_at"]
    same = await send(plane, "POST", f"{P}:extend", {"ttl_s": 5})
    assert same.json() | {"status": None} == extended | {"status": None}
    for seconds in (0, -1, 1e12, "1h", None):
        assert fault_paths(await send(plane, "POST", f"{P}:extend", {"ttl_s": seconds}))[0] == "ttl_s"
    assert (await send(plane, "POST", P, {"ttl_s": 5})).status_code == 405
    assert (await send(plane, "POST", "/api/v1/pins/nobody:extend", {"ttl_s": 5})).status_code == 404
    for strength, expected in (("permanent", "is permanent"), ("guaranteed", "has no end")):
        await plane.put_pin("p", strength=strength)
        assert expected in is_problem(await send(plane, "POST", f"{P}:extend", {"ttl_s": 5}), 409)["detail"]


# ---- with a real data plane


def store(engine: Client, keys: list[bytes], tenant: str) -> None:
    with engine.reserve(keys, PAGE, tenant=tenant) as reservation:
        reservation.commit()


async def test_a_pin_by_text_holds_exactly_the_blocks_of_an_engine_that_stored_its_tokens(
    governed: Plane, data_plane: DataPlane
) -> None:
    await register(governed, make.MODEL)
    answer = await put(governed, model=make.MODEL, text=text(PROMPT[:32]))
    assert answer["status"]["applied"]
    with attach(data_plane.socket, [make.space()], timeout_s=60) as engine:
        # The engine's prompt goes on behind the text; another tenant says the same.
        prompt = chain(PROMPT + list(range(200)), "acme", chunk_tokens=CHUNK)
        others = chain(PROMPT[:32], "other", chunk_tokens=CHUNK)
        store(engine, prompt, "acme")
        store(engine, others, "other")
        for number in range(40):
            store(engine, make.keys(40, number), "noise")
        assert engine.lookup(prompt) == 8, "the pinned chunks alone outlive the pressure"
        assert engine.lookup(others) == 0
        stats = data_plane.wait_stats(lambda stats: stats.pins[0].resident == 8, "the pin holds its blocks")
        assert (stats.pins[0].resolved, stats.pins[0].guaranteed) == (8, 8)
        blocks = (await governed.get("/api/v1/blocks?tenant=acme&limit=100"))["items"]
        pinned = [block["key"] for block in blocks if block["pins"] == ["p"]]
        assert sorted(pinned) == sorted(key.hex() for key in prompt[:8])
        await governed.until(lambda: any(s.pins and s.pins[0].resident == 8 for s in governed.app.parts.fleet.stats()))
        assert (await governed.get(P))["summary"] == "resolved 8 chunks, 8 resident, 32 KiB"

"""Tokenizers: what is taken, what is refused, and what they make of text."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from app.errors import Invalid
from app.services.base.principals import Principal
from app.services.records import tokenizing
from app.texts import jobs
from tests.app.plane import Plane
from tests.app.problems import is_problem
from tests.app.tokenizer_files import BOS, END, PUT, TEMPLATE, UNKNOWN, USER, T, put, text, words

pytestmark = pytest.mark.anyio
SYSTEM = [{"role": "system", "content": "w1 w2"}, {"role": "user", "content": " w3 "}]


async def test_a_tokenizer_is_stored_with_its_digest_and_listed_without_its_file(plane: Plane) -> None:
    made = await put(plane, chat_template=TEMPLATE, special_tokens={"bos_token": "<bos>"}, note="as vLLM has it")
    assert (made["name"], made["model"], made["digest"]) == ("llama", "m", sha256(words().encode()).hexdigest())
    assert (made["chat_template"], made["special_tokens"]) == (TEMPLATE, {"bos_token": "<bos>"})
    await put(plane, "/api/v1/tokenizers/other", model="other", tokenizer=json.loads(words()))
    assert await plane.get(T) == made
    listed = await plane.get("/api/v1/tokenizers")
    assert ([item["name"] for item in listed["items"]], listed["total"]) == (["llama", "other"], 2)
    assert all("tokenizer" not in item for item in listed["items"])
    entries = (await plane.get("/api/v1/audit?kind=tokenizer&limit=2"))["items"]
    assert [(entry["action"], entry["kind"], entry["name"]) for entry in entries] == [
        ("create", "tokenizer", "other"),
        ("create", "tokenizer", "llama"),
    ]
    assert "version" not in json.dumps(entries[1]["after"]), "the audit keeps a digest of the file"


async def test_a_model_has_one_tokenizer(plane: Plane) -> None:
    await put(plane)
    problem = is_problem(await plane.http.put("/api/v1/tokenizers/second", json=PUT), 409)
    assert problem["errors"][0]["path"] == "model"
    assert "'llama'" in problem["detail"]


async def encoded(plane: Plane, **options: Any) -> list[int]:
    found = await plane.app.parts.records.tokenizers.encode(
        "m", options.pop("text", None), options.pop("messages", None), Principal(), **options
    )
    assert found.by.name == "llama"
    return list(found.tokens)


async def test_a_text_gets_the_special_tokens_of_the_tokenizer_by_default(plane: Plane) -> None:
    await put(plane, tokenizer=words(bos=True))
    assert await encoded(plane, text="w7 w8 what") == [BOS, 7, 8, UNKNOWN]
    assert await encoded(plane, text="") == [BOS]
    await put(plane, tokenizer=words(bos=True), add_special_tokens=False)
    assert await encoded(plane, text="w7 w8") == [7, 8]


async def test_messages_are_rendered_by_the_template_alone(plane: Plane) -> None:
    await put(plane, tokenizer=words(bos=True), chat_template=TEMPLATE, special_tokens={"bos_token": "<bos>"})
    tokens = await encoded(plane, messages=SYSTEM)
    assert tokens == [BOS, 1, 2, END, USER, 3, END]
    assert await encoded(plane, messages=SYSTEM, add_generation_prompt=True) == [*tokens, USER]


async def test_a_tokenizer_file_cannot_truncate_a_text(plane: Plane) -> None:
    await put(plane, tokenizer=words(cut=4))
    assert await encoded(plane, text=text(list(range(1000)))) == list(range(1000))


async def refusal(plane: Plane, **options: Any) -> tuple[str, str]:
    with pytest.raises(Invalid) as raised:
        await encoded(plane, **options)
    (error,) = raised.value.errors
    return error.path, error.message


async def test_a_model_without_a_tokenizer_is_named_with_those_that_have_one(plane: Plane) -> None:
    path, message = await refusal(plane, text="w1")
    assert path == "text"
    assert "'m' (no tokenizer is registered)" in message
    await put(plane, model="another")
    path, message = await refusal(plane, messages=SYSTEM)
    assert path == "messages"
    assert "'m' (there are tokenizers for 'another')" in message


async def test_messages_that_the_template_does_not_take_are_refused(plane: Plane) -> None:
    await put(plane)
    assert (await refusal(plane, messages=SYSTEM))[0] == "messages"
    for template, expected in (
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.more }}", "nothing"),
        ("{{ 1 // 0 }}", "zero"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for x in range(10 ** 9) %}{% endfor %}", "MAX_RANGE"),
        ("{% for x in range(99999) %}{{ 'a' * 1000 }}{% endfor %}", "characters"),
    ):
        await put(plane, chat_template=template)
        path, message = await refusal(plane, messages=SYSTEM)
        assert path == "messages"
        assert expected.lower() in message.lower()


async def test_a_template_that_never_ends_or_fills_the_memory_costs_its_job_alone(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = "{% for x in range(99999) %}{% for y in range(99999) %}{% set z = 1 %}{% endfor %}{% endfor %}"
    await put(plane, chat_template=loop)
    monkeypatch.setattr(tokenizing, "WALL_S", 1.0)
    assert "took longer" in (await refusal(plane, messages=SYSTEM))[1]
    monkeypatch.undo()
    await put(plane, chat_template="{{ 'a' * 10 ** 10 }}")
    assert (await refusal(plane, messages=SYSTEM))[0] == "messages"
    await put(plane, chat_template=None)
    assert await encoded(plane, text="w1") == [1]


async def test_too_much_text_is_refused_before_anything_is_started(plane: Plane) -> None:
    await put(plane)
    path, message = await refusal(plane, text="x" * (jobs.MAX_CHARACTERS + 1))
    assert path == "text"
    assert str(jobs.MAX_CHARACTERS) in message


@pytest.mark.full
async def test_a_large_file_is_accepted_above_the_limit_of_other_bodies(plane: Plane) -> None:
    large = json.loads(words())
    large["model"]["vocab"] |= {f"filler-{number:06}" + "x" * 200: 10_000 + number for number in range(90_000)}
    made = await put(plane, tokenizer=json.dumps(large))
    assert made["digest"] == sha256(json.dumps(large).encode()).hexdigest()
    assert await encoded(plane, text="w1 w2") == [1, 2]
    response = await plane.http.put(T, json={**PUT, "tokenizer": "x" * (70 << 20)})
    assert response.status_code == 413

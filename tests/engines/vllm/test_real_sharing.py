"""Engines that share prefixes through Larder: tokens are the same as without it, and salts share no prefixes."""

from __future__ import annotations

import pytest

from tests.dataplane.plane import Plane
from tests.engines.vllm.engine import ANSWER_S, Engine, MakeEngine, prompt

CHUNK = 128
Make = MakeEngine


@pytest.fixture(scope="module")
def bare(make_engine: Make) -> Engine:
    """Start an engine without a connector, whose tokens are the expected ones."""
    return make_engine(None)


@pytest.fixture(scope="module")
def first(make_engine: Make, pool: Plane, bare: Engine) -> Engine:
    bare.ready()
    return make_engine(pool.socket, chunk_tokens=CHUNK, min_load_tokens=0).ready()


@pytest.fixture(scope="module")
def second(make_engine: Make, pool: Plane, first: Engine) -> Engine:
    return make_engine(pool.socket, chunk_tokens=CHUNK, min_load_tokens=0, verify="always").ready()


def test_a_second_engine_loads_blocks_of_the_first(bare: Engine, first: Engine, second: Engine) -> None:
    tokens = prompt(1000, 1)
    right = bare.generate(tokens)["tokens"]
    assert first.generate(tokens, "acme")["cached"] == 0
    found = second.generate(tokens, "acme")
    assert (found["cached"], found["tokens"]) == (1000 // CHUNK * CHUNK, right)
    fields = {"loaded_tokens": 896, "missed_tokens": 0, "loaded_from": {"host": 896}}
    assert found["transfer_params"] == {"larder": fields}
    rival = second.generate(tokens, "rival")
    assert (rival["cached"], rival["tokens"], rival["finish"]) == (0, right, "length")
    assert rival["transfer_params"]["larder"] == {
        "loaded_tokens": 0, "missed_tokens": 896, "reason": "never_stored",
    }  # fmt: skip


def test_a_prompt_that_is_cached_whole_is_loaded_up_to_its_last_block(bare: Engine, first: Engine) -> None:
    tokens = prompt(512, 2)
    right = bare.generate(tokens)["tokens"]
    assert first.generate(tokens)["tokens"] == right
    first.forget()
    again = first.generate(tokens)
    assert again["tokens"] == right
    assert 512 - 128 <= again["cached"] < 512, "the last token is always computed"


def test_tokens_in_the_engines_own_cache_are_not_loaded(bare: Engine, first: Engine) -> None:
    start, more = prompt(512, 3), prompt(400, 4)
    right = bare.generate(start + more)["tokens"]
    first.generate(start + more)
    first.forget()
    first.generate(start, new=1)
    again = first.generate(start + more)
    assert again["tokens"] == right
    assert again["cached"] == 912 // CHUNK * CHUNK
    assert again["transfer_params"]["larder"]["loaded_tokens"] < again["cached"]


def test_many_requests_at_once_get_the_tokens_that_they_get_alone(bare: Engine, first: Engine) -> None:
    shared = prompt(448, 6)
    requested = [shared + prompt(50 + 7 * at, 100 + at) for at in range(12)]
    right = [bare.generate(each)["tokens"] for each in requested]
    prompts = [{"tokens": each, "salt": "abc"[at % 3]} for at, each in enumerate(requested)]
    first.do("generate", prompts=prompts)
    first.forget()
    outputs = first.do("generate", prompts=prompts)["outputs"]
    assert [each["tokens"] for each in outputs] == right
    assert all(each["cached"] >= 384 for each in outputs)


def test_a_request_may_ask_not_to_be_saved_or_loaded(first: Engine) -> None:
    tokens = prompt(512, 7)
    first.generate(tokens, params={"larder.skip_save": True})
    first.forget()
    assert first.generate(tokens)["cached"] == 0
    first.forget()
    assert first.generate(tokens, params={"larder.skip_load": True})["cached"] == 0
    first.forget()
    assert first.generate(tokens)["cached"] > 0


def test_hints_of_both_forms_reach_the_data_plane(first: Engine, pool: Plane) -> None:
    before = pool.describe().totals
    first.generate(prompt(512, 70), params={"larder.ttl": 600, "larder.pin": 60})
    assert first.do("hint", tokens=prompt(512, 71), action="larder.pin", payload={"seconds": 60})["idle"]
    assert first.do("hint", tokens=prompt(512, 72), action="larder.ttl", payload={"seconds": "soon"})["idle"]
    first.forget()
    blocks = before.stored_blocks + 3 * 4
    stats = pool.wait_stats(lambda stats: stats.totals.stored_blocks >= blocks, "all blocks are stored", ANSWER_S)
    now = stats.totals
    assert now.hinted_ttl_blocks - before.hinted_ttl_blocks == 4
    assert now.hinted_pin_blocks - before.hinted_pin_blocks == 8


def test_a_salt_that_larder_refuses_costs_the_request_nothing(bare: Engine, first: Engine) -> None:
    tokens = prompt(300, 8)
    right = bare.generate(tokens)["tokens"]
    for _ in range(2):
        answer = first.generate(tokens, "a/b")
        first.forget()
        assert (answer["tokens"], answer["finish"]) == (right, "length")
        assert answer["transfer_params"]["larder"]["reason"] == "unkeyed"


def test_an_abort_during_a_load_leaves_the_engine_working(bare: Engine, first: Engine) -> None:
    tokens = prompt(1024, 9)
    right = bare.generate(tokens)["tokens"]
    first.generate(tokens)
    for steps in (0, 1, 2, 3):
        first.forget()
        assert first.do("abort", tokens=tokens, steps=steps) == {"idle": True}
    first.forget()
    assert first.generate(tokens)["tokens"] == right


def test_a_reset_of_the_connector_makes_everything_a_miss(first: Engine, second: Engine) -> None:
    tokens = prompt(256, 10)
    first.generate(tokens)
    second.forget()
    assert second.generate(tokens)["cached"] > 0
    assert second.do("forget", all=True)["done"]
    assert second.generate(tokens)["cached"] == 0
    second.forget()
    assert second.generate(tokens)["cached"] > 0, "blocks stored after the reset are found"
    first.forget()
    assert first.generate(tokens)["cached"] > 0, "the reset does not affect other engines"

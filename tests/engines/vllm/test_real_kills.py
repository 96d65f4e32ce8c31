"""Kills of Larder and of engines: every request ends with the right tokens, and hits resume after a restart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.dataplane.plane import Plane, wait_for
from tests.engines.vllm.conftest import POOL
from tests.engines.vllm.engine import Engine, MakeEngine, prompt
from tests.run_marks import short_folder

CHUNK = 128
TOKENS = 1000
FOUND = TOKENS // CHUNK * CHUNK


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    """A data plane that this file's tests kill and start again."""
    with short_folder() as folder:
        plane = Plane(folder, POOL).start()
        yield plane
        plane.kill()


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["beside-steps", "inside-steps"])
def engine(make_engine: MakeEngine, plane: Plane, request: pytest.FixtureRequest) -> Engine:
    return make_engine(
        plane.socket,
        chunk_tokens=CHUNK,
        min_load_tokens=0,
        timeout_s=0.25,
        load_timeout_s=1.0,
        step_load_s=request.param,
    ).ready()


@pytest.fixture(scope="module")
def right(make_engine: MakeEngine) -> Callable[[list[int]], list[int]]:
    """Return the tokens of an engine without a connector, by prompt."""
    bare = make_engine(None).ready()
    return lambda tokens: bare.generate(tokens)["tokens"]


Right = Callable[[list[int]], list[int]]


def hits_again(engine: Engine, tokens: list[int]) -> int:
    """Wait until saves have ended, and return how many tokens of the prompt come from Larder."""
    engine.forget()
    engine.generate(tokens)
    engine.forget()
    return int(engine.generate(tokens)["cached"])


def test_an_engine_reads_on_after_a_kill_and_attaches_to_the_next_data_plane(
    engine: Engine, plane: Plane, right: Right
) -> None:
    tokens, other = prompt(TOKENS, 20), prompt(TOKENS, 21)
    engine.generate(tokens)
    engine.forget()
    plane.kill()
    found = engine.generate(tokens)
    assert (found["tokens"], found["cached"]) == (right(tokens), FOUND), "its memory is still mapped"
    missed = engine.generate(other)
    assert (missed["tokens"], missed["cached"], missed["finish"]) == (right(other), 0, "length")
    plane.start()
    wait_for(lambda: hits_again(engine, other) == FOUND, "the engine attaches and hits again", 60)


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.05, 0.2])
def test_a_kill_during_saves_and_loads_gives_no_wrong_token(
    engine: Engine, plane: Plane, right: Right, delay_s: float
) -> None:
    saved, loaded = prompt(TOKENS, int(1000 * delay_s) + 30), prompt(TOKENS, 22)
    engine.generate(loaded)
    engine.forget()
    engine.send("generate", prompts=[{"tokens": saved}, {"tokens": loaded}, {"tokens": loaded[:700]}])
    time.sleep(delay_s)
    plane.kill()
    outputs = engine.answer()["outputs"]
    assert [each["tokens"] for each in outputs] == [right(saved), right(loaded), right(loaded[:700])]
    plane.start()
    engine.forget()
    for tokens in (saved, loaded):
        assert engine.generate(tokens)["tokens"] == right(tokens)


def test_requests_end_while_larder_is_gone_or_does_not_answer(engine: Engine, plane: Plane, right: Right) -> None:
    """The first data plane is killed. The second one is stopped by a signal: it keeps its socket and never answers."""
    tokens = [prompt(600, 40 + at) for at in range(6)]
    expected = [right(each) for each in tokens]
    plane.kill()
    assert [engine.generate(each)["tokens"] for each in tokens[:3]] == expected[:3]
    plane.start()
    wait_for(lambda: hits_again(engine, tokens[0]) > 0, "the engine hits again", 60)
    engine.forget()
    with plane.frozen():
        assert [engine.generate(each)["tokens"] for each in tokens] == expected
    wait_for(lambda: hits_again(engine, tokens[1]) > 0, "the engine hits again", 60)


@pytest.mark.parametrize("delay_s", [0.05, 0.3])
def test_an_engine_that_is_killed_leaves_nothing_wrong_and_nothing_reserved(
    make_engine: MakeEngine, engine: Engine, plane: Plane, right: Right, delay_s: float
) -> None:
    dead = make_engine(plane.socket, chunk_tokens=CHUNK, min_load_tokens=0).ready()
    tokens = [prompt(TOKENS, 60 + at + int(100 * delay_s)) for at in range(6)]
    dead.send("generate", prompts=[{"tokens": each} for each in tokens])
    time.sleep(delay_s)
    dead.kill()
    engine.forget()
    assert [engine.generate(each)["tokens"] for each in tokens] == [right(each) for each in tokens]
    plane.wait_stats(lambda stats: stats.pool.reserved_bytes == 0, "its reservations are given back", 30)

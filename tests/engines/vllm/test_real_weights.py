"""Engines whose weights change behind a name: other weights share no blocks, and copies of the same weights do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from benchmarks.peers.vllm_model import MODEL, write_model
from tests.dataplane.plane import Plane
from tests.engines.model_folder import llama_shapes, write_weights
from tests.engines.vllm.engine import Engine, MakeEngine, prompt

TOKENS = prompt(400, 60)
LOADED = 384
REAL = {"options": {"load_format": "auto"}}
Make = MakeEngine


def write(folder: Path, seed: int) -> Path:
    """Write the tiny model with weights into a folder; weights of the same shape replace others."""
    folder.mkdir(exist_ok=True)
    write_weights(folder / "model.safetensors", llama_shapes(MODEL), seed)  # type: ignore[arg-type]
    return write_model(folder)


@pytest.fixture(scope="module")
def expected(make_engine: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[int]]:
    """Return the tokens of vLLM without Larder, by the seed of the weights."""
    found = {}
    for seed in (1, 2):
        engine = make_engine(None, write(tmp_path_factory.mktemp("bare"), seed), **REAL).ready()
        found[seed] = engine.generate(TOKENS)["tokens"]
        engine.close()
    assert found[1] != found[2]
    return found


def start(make_engine: Make, pool: Plane, folder: Path) -> Engine:
    return make_engine(pool.socket, folder, model="", chunk_tokens=128, min_load_tokens=0, **REAL).ready()


def test_other_weights_in_the_same_folder_are_a_miss_and_copies_of_the_same_are_a_hit(
    make_engine: Make, pool: Plane, tmp_path: Path, expected: dict[int, list[int]]
) -> None:
    folder = write(tmp_path / "m", 1)
    first = start(make_engine, pool, folder)
    assert first.generate(TOKENS)["tokens"] == expected[1]
    first.forget()
    assert first.generate(TOKENS)["cached"] == LOADED
    first.close()
    copy = Path(shutil.copytree(folder, tmp_path / "elsewhere"))
    for path in copy.iterdir():
        os.utime(path, (5, 5))

    write(folder, 2)
    other = start(make_engine, pool, folder)
    answer = other.generate(TOKENS)
    assert (answer["cached"], answer["tokens"]) == (0, expected[2])
    other.close()

    again = start(make_engine, pool, copy)
    answer = again.generate(TOKENS)
    assert (answer["cached"], answer["tokens"]) == (LOADED, expected[1])
    again.close()


def test_weights_that_are_replaced_while_the_engine_runs_share_nothing_with_the_earlier_ones(
    make_engine: Make, pool: Plane, tmp_path: Path, expected: dict[int, list[int]]
) -> None:
    folder, other = write(tmp_path / "m", 1), write(tmp_path / "other", 2)
    engine = start(make_engine, pool, folder)
    assert engine.generate(TOKENS)["tokens"] == expected[1]

    engine.do("reload", path=str(other))
    engine.forget()
    for _ in range(3):
        answer = engine.generate(TOKENS)
        assert answer["tokens"] == expected[2]
        engine.forget()
    assert answer["cached"] == LOADED, "blocks of the new weights are found again"

    write(other, 1)  # weights that change in their place are noticed by the call
    engine.do("reload")
    engine.forget()
    answer = engine.generate(TOKENS)
    assert (answer["cached"], answer["tokens"]) == (0, expected[1])
    engine.close()

    fresh = start(make_engine, pool, folder)
    answer = fresh.generate(TOKENS)
    assert (answer["cached"], answer["tokens"]) == (LOADED, expected[1]), "no block has the values of other weights"
    fresh.close()

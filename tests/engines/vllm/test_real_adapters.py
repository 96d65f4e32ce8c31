"""Adapters whose files change: an engine gets the tokens that it computes without Larder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.dataplane.plane import Plane
from tests.engines.vllm.engine import Engine, MakeEngine, prompt
from tests.engines.vllm.models import write_adapter

CHUNK = 128
CACHED = 384
TOKENS = prompt(400, 340)
OPTIONS = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1, "max_cpu_loras": 4}


def run(engine: Engine, *adapter: Any) -> tuple[int, list[int]]:
    """Run a request of an adapter that finds nothing in the engine's own cache. Return cached and new tokens."""
    engine.forget()
    answer = engine.generate(TOKENS, lora=adapter)
    return answer["cached"], answer["tokens"]


def test_an_adapter_that_changes_gets_its_own_tokens(make_engine: MakeEngine, pool: Plane, tmp_path: Path) -> None:
    old, new = (str(write_adapter(tmp_path / name, seed)) for seed, name in enumerate(("old", "new"), 1))
    served, late = (str(shutil.copytree(old, tmp_path / name)) for name in ("served", "late"))
    settings: dict[str, Any] = {"options": OPTIONS, "chunk_tokens": CHUNK, "min_load_tokens": 0, "model": "adapters"}

    def train(folder: str) -> None:
        shutil.copytree(new, folder, dirs_exist_ok=True)

    bare = make_engine(None, options=OPTIONS).ready()
    right = [run(bare, name, number, name)[1] for number, name in enumerate((old, new), 1)]
    assert right[0] != right[1]
    bare.close()

    engine = make_engine(pool.socket, **settings).ready()
    assert run(engine, "a", 1, served) == (0, right[0])
    assert run(engine, "a", 1, served) == (CACHED, right[0])
    train(served)
    assert run(engine, "a", 1, served) == (0, right[0]), "the engine still computes with the contents before"
    assert engine.do("add_lora", lora=["a", 1, served, None, True])["added"]
    assert run(engine, "a", 1, served) == (0, right[1])
    assert run(engine, "a", 1, served) == (CACHED, right[1])
    assert run(engine, "a", 1, served, None, True) == (CACHED, right[1])
    assert engine.do("add_lora", lora=["b", 2, late])["added"]
    train(late)
    assert run(engine, "b", 2, late) == (0, right[0]), "overwritten before the first request"
    engine.close()

    engine = make_engine(pool.socket, **settings).ready()
    assert run(engine, "a", 1, served) == (CACHED, right[1]), "a restart"
    assert run(engine, "other", 2, old) == (CACHED, right[0]), "neither name nor path counts"
    assert run(engine, "b", 3, late) == (CACHED, right[1])
    engine.close()


def test_an_engine_that_applies_a_part_of_an_adapter_shares_only_what_is_computed_without_it(
    make_engine: MakeEngine, pool: Plane, tmp_path: Path
) -> None:
    adapter = ["a", 1, str(write_adapter(tmp_path / "a", 1))]
    settings: dict[str, Any] = {"chunk_tokens": CHUNK, "min_load_tokens": 0, "model": "parts"}
    whole = make_engine(pool.socket, options=OPTIONS, **settings).ready()
    part = make_engine(pool.socket, options={**OPTIONS, "lora_target_modules": ["o_proj"]}, **settings).ready()
    whole.generate(TOKENS)
    run(whole, *adapter)
    assert run(part, *adapter)[0] == 0
    assert part.generate(TOKENS)["cached"] == CACHED
    whole.close()
    part.close()


def test_the_engines_own_cache_of_the_contents_before_is_not_stored(
    make_engine: MakeEngine, pool: Plane, tmp_path: Path
) -> None:
    """vLLM's prefix cache names an adapter by name and path, and keeps its blocks after `load_inplace`."""
    served, new = str(write_adapter(tmp_path / "served", 1)), str(write_adapter(tmp_path / "new", 2))
    settings: dict[str, Any] = {"options": OPTIONS, "chunk_tokens": CHUNK, "min_load_tokens": 0, "model": "own"}
    engine = make_engine(pool.socket, **settings).ready()
    engine.generate(TOKENS, lora=["a", 1, served])
    shutil.copytree(new, served, dirs_exist_ok=True)
    assert engine.do("add_lora", lora=["a", 1, served, None, True])["added"]
    assert engine.generate([*TOKENS, *prompt(200, 341)], lora=["a", 1, served])["cached"] > 0, "of the contents before"
    assert run(engine, "a", 1, served)[0] == 0
    engine.forget()
    assert engine.generate([*TOKENS, *prompt(200, 341)], lora=["a", 1, served])["cached"] == CACHED
    engine.close()


def test_requests_that_never_load_count_no_hit(make_engine: MakeEngine, pool: Plane) -> None:
    engine = make_engine(pool.socket, chunk_tokens=CHUNK, min_load_tokens=0, model="logprobs").ready()
    tokens = prompt(512, 342)
    engine.generate(tokens)
    engine.forget()
    before = engine.do("counters"), pool.describe().totals.hit_blocks
    for _ in range(3):
        assert engine.generate(tokens, logprobs=1)["cached"] == 0
        engine.forget()
    after = engine.do("counters"), pool.describe().totals.hit_blocks
    assert after[1] == before[1]
    assert [after[0][name] - before[0][name] for name in ("lookups", "lookup_tokens", "hit_tokens")] == [0, 0, 0]
    engine.close()

"""Engines of other shapes: preemption, tensor parallel, windows, adapters, producers and consumers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.dataplane.plane import Plane
from tests.engines.vllm.engine import ANSWER_S, Engine, MakeEngine, prompt
from tests.engines.vllm.models import write_adapter, write_hybrid

CHUNK = 128
Make = MakeEngine


def both(engine: Engine, prompts: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """Return the outputs of the same requests before and after the engine's own prefix cache is emptied."""
    first = engine.do("generate", prompts=prompts)["outputs"]
    engine.forget()
    return first, engine.do("generate", prompts=prompts)["outputs"]


def tokens_of(outputs: list[Any]) -> list[list[int]]:
    return [each["tokens"] for each in outputs]


def test_a_cache_too_small_for_its_requests_preempts_them_and_saves_nothing_wrong(
    make_engine: Make, pool: Plane
) -> None:
    options = {"block_size": 32, "num_gpu_blocks_override": 48, "max_num_seqs": 8, "max_model_len": 1024}
    prompts = [{"tokens": prompt(200 + 20 * at, 200 + at), "new": 160} for at in range(8)]
    bare = make_engine(None, options=options).ready()
    right = [tokens_of(bare.do("generate", prompts=[each])["outputs"])[0] for each in prompts]
    bare.close()
    engine = make_engine(
        pool.socket, options=options, chunk_tokens=64, min_load_tokens=0, save_decode=True, model="small"
    ).ready()
    first, second = both(engine, prompts)
    assert tokens_of(first) == right
    assert tokens_of(second) == right
    assert sum(each["cached"] for each in second) > 0
    assert engine.do("preemptions")["count"] > 0
    other = make_engine(
        pool.socket, options=options, chunk_tokens=64, min_load_tokens=0, verify="always", model="small"
    ).ready()
    assert tokens_of(other.do("generate", prompts=prompts)["outputs"]) == right
    assert tokens_of(other.do("generate", prompts=prompts[::-1])["outputs"]) == right[::-1]
    assert other.do("preemptions")["count"] > 0
    other.close()
    engine.close()


def test_two_ranks_store_and_load_their_halves(make_engine: Make, pool: Plane) -> None:
    tokens = prompt(600, 300)
    options = {"tensor_parallel_size": 2}
    first = make_engine(pool.socket, options=options, chunk_tokens=CHUNK, min_load_tokens=0).ready()
    right = first.generate(tokens)["tokens"]
    first.forget()
    again = first.generate(tokens)
    assert (again["tokens"], again["cached"]) == (right, 512)
    first.close()
    second = make_engine(pool.socket, options=options, chunk_tokens=CHUNK, min_load_tokens=0).ready()
    found = second.generate(tokens)
    assert (found["tokens"], found["cached"]) == (right, 512)
    second.close()


def test_a_model_with_windows_loads_only_its_windows(make_engine: Make, pool: Plane, tmp_path: Path) -> None:
    model = write_hybrid(tmp_path)
    settings = {"chunk_tokens": CHUNK, "min_load_tokens": 0, "model": "hybrid"}
    bare = make_engine(None, model).ready()
    prompts = [{"tokens": prompt(1000 - 90 * at, 310 + at)} for at in range(4)]
    right = [tokens_of(bare.do("generate", prompts=[each])["outputs"])[0] for each in prompts]
    bare.close()
    first = make_engine(pool.socket, model, **settings).ready()
    stored, loaded = both(first, prompts)
    assert tokens_of(stored) == right
    assert tokens_of(loaded) == right
    assert all(each["cached"] > 0 for each in loaded)
    first.close()


def test_requests_of_different_adapters_share_nothing(make_engine: Make, pool: Plane, tmp_path: Path) -> None:
    one, other = (str(write_adapter(tmp_path / name, seed)) for seed, name in enumerate(("one", "other")))
    options = {"enable_lora": True, "max_lora_rank": 8}
    engine = make_engine(pool.socket, options=options, chunk_tokens=CHUNK, min_load_tokens=0, model="lora").ready()
    tokens = prompt(400, 320)
    plain = engine.generate(tokens)["tokens"]
    engine.forget()
    adapted = engine.generate(tokens, lora=one)
    assert adapted["cached"] == 0
    engine.forget()
    again = engine.generate(tokens, lora=one)
    assert (again["cached"], again["tokens"]) == (384, adapted["tokens"])
    engine.forget()
    assert engine.generate(tokens)["tokens"] == plain
    engine.close()
    engine = make_engine(pool.socket, options=options, chunk_tokens=CHUNK, min_load_tokens=0, model="lora").ready()
    assert engine.generate(tokens, lora=other)["cached"] == 0, "an adapter of the same name is another adapter"
    engine.close()


def test_a_consumer_loads_blocks_of_a_producer_and_stores_nothing(make_engine: Make, pool: Plane) -> None:
    settings = {"chunk_tokens": CHUNK, "min_load_tokens": 0, "model": "split"}
    producer = make_engine(pool.socket, role="kv_producer", **settings).ready()
    consumer = make_engine(pool.socket, role="kv_consumer", **settings).ready()
    tokens, other = prompt(700, 330), prompt(700, 331)
    saved = pool.describe().totals.stored_blocks + 640 // CHUNK
    right = producer.generate(tokens, new=1)["tokens"]
    pool.wait_stats(lambda stats: stats.totals.stored_blocks >= saved, "the producer has saved", ANSWER_S)
    found = consumer.generate(tokens)
    assert (found["cached"], found["tokens"][:1]) == (640, right)
    consumer.generate(other)
    consumer.forget()
    assert consumer.generate(other)["cached"] == 0
    producer.forget()
    assert producer.generate(tokens)["cached"] == 0
    producer.close()
    consumer.close()

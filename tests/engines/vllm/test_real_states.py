"""Models with recurrent state beside attention: gated delta nets, Mamba 2, short convolutions. Every request has the
tokens of an engine without a connector."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.plane import Plane, wait_for
from tests.engines.vllm.engine import MakeEngine, prompt
from tests.engines.vllm.models import STATEFUL, write_hybrid
from tests.run_marks import short_folder

Right = Callable[[list[int]], list[int]]
MODEL = "short_conv"
"""Kind of the tests that are not about the kind."""
OPTIONS = {
    "gdn": {"max_num_batched_tokens": 512, "max_num_seqs": 8},
    # vLLM 0.32's kernels of Mamba 2 for CPU leave no state within a step, so a step must not be longer than a block. It
    # has 128 tokens on processors without AVX-512.
    "mamba2": {"max_num_batched_tokens": 128, "max_num_seqs": 8},
    "short_conv": {"max_num_batched_tokens": 512, "max_num_seqs": 8},
}


@pytest.fixture(scope="module", params=STATEFUL)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of the models by kind."""
    folder = tmp_path_factory.mktemp("stateful")
    return {kind: write_hybrid(folder / kind, config) for kind, config in STATEFUL.items()}


@pytest.fixture(scope="module")
def make_bare(make_engine: MakeEngine, folders: dict[str, Path]) -> Callable[..., Right]:
    """Return a function that returns the tokens of an engine without a connector, by prompt."""
    made: dict[str, Right] = {}

    def right(kind: str) -> Right:
        if kind not in made:
            bare = make_engine(None, folders[kind], options=OPTIONS[kind]).ready()
            known: dict[tuple[int, ...], list[int]] = {}

            def tokens_of(tokens: list[int]) -> list[int]:
                if tuple(tokens) not in known:
                    bare.forget()
                    known[tuple(tokens)] = bare.generate(tokens)["tokens"]
                return known[tuple(tokens)]

            made[kind] = tokens_of
        return made[kind]

    return right


def test_hits_partial_hits_and_hits_of_another_engine_have_the_right_tokens(
    make_engine: MakeEngine, pool: Plane, folders: dict[str, Path], make_bare: Callable[..., Right], kind: str
) -> None:
    """Steps are shorter than the prompts: between their ends there are no states."""
    right, options = make_bare(kind), OPTIONS[kind]
    settings: dict[str, Any] = {"min_load_tokens": 0, "verify": "always", "model": kind}
    first = make_engine(pool.socket, folders[kind], options=options, **settings).ready()
    tokens = prompt(1500, 400)
    assert first.generate(tokens)["tokens"] == right(tokens)
    first.forget()
    again = first.generate(tokens)
    assert again["tokens"] == right(tokens)
    assert again["cached"] >= 1024
    branched = [*tokens[:1200], *prompt(200, 401)]
    first.forget()
    partial = first.generate(branched)
    assert partial["tokens"] == right(branched)
    assert 512 <= partial["cached"] <= 1200
    second = make_engine(pool.socket, folders[kind], options=options, **settings).ready()
    for each in (tokens, branched, tokens[:700], prompt(300, 402)):
        found = second.generate(each)
        assert found["tokens"] == right(each)
        assert bool(found["cached"]) == (each != prompt(300, 402))
    together = [tokens, branched, [*tokens[:700], 5], prompt(900, 403)]
    second.forget()
    outputs = second.do("generate", prompts=[{"tokens": each} for each in together])["outputs"]
    assert [each["tokens"] for each in outputs] == [right(each) for each in together]
    first.close()
    second.close()


def test_a_cache_too_small_for_its_requests_preempts_them_and_saves_nothing_wrong(
    make_engine: MakeEngine, pool: Plane, folders: dict[str, Path]
) -> None:
    options = {"num_gpu_blocks_override": 32, "max_num_seqs": 8, "max_model_len": 1024}
    prompts = [{"tokens": prompt(200 + 40 * at, 420 + at), "new": 160} for at in range(8)]
    bare = make_engine(None, folders[MODEL], options=options).ready()
    right = [bare.do("generate", prompts=[each])["outputs"][0]["tokens"] for each in prompts]
    bare.close()
    settings: dict[str, Any] = {"min_load_tokens": 0, "save_decode": True, "model": "preempted"}
    engine = make_engine(pool.socket, folders[MODEL], options=options, verify="always", **settings).ready()
    for _ in range(2):
        outputs = engine.do("generate", prompts=prompts)["outputs"]
        assert [each["tokens"] for each in outputs] == right
        engine.forget()
    assert sum(each["cached"] for each in outputs) > 0
    assert engine.do("preemptions")["count"] > 0
    engine.close()


def test_a_kill_of_the_data_plane_costs_hits_but_no_tokens(
    make_engine: MakeEngine, folders: dict[str, Path], make_bare: Callable[..., Right], make_plane: Callable[..., Plane]
) -> None:
    right = make_bare(MODEL)
    plane = make_plane(pool_bytes="256MiB", dataplane__segment_bytes="64MiB").start()
    engine = make_engine(
        plane.socket, folders[MODEL], options=OPTIONS[MODEL], min_load_tokens=0, model="killed"
    ).ready()
    stored = prompt(1000, 440)
    assert engine.generate(stored)["tokens"] == right(stored)
    engine.forget()
    others = [prompt(700, 441 + at) for at in range(4)]
    engine.send("generate", prompts=[{"tokens": each} for each in (*others, stored)])
    plane.kill()
    outputs = engine.answer()["outputs"]
    assert [each["tokens"] for each in outputs] == [right(each) for each in (*others, stored)]
    plane.start()

    def hits_again() -> bool:
        engine.forget()
        found = engine.generate(stored)
        assert found["tokens"] == right(stored)
        return bool(found["cached"])

    wait_for(hits_again, "the engine hits again", 120)
    engine.close()


def test_random_requests_have_the_right_tokens_while_data_planes_are_killed(
    make_engine: MakeEngine, folders: dict[str, Path], make_bare: Callable[..., Right], make_plane: Callable[..., Plane]
) -> None:
    right, chance = make_bare(MODEL), random.Random(450)
    plane = make_plane(pool_bytes="16MiB", dataplane__segment_bytes="2MiB").start()
    engine = make_engine(
        plane.socket, folders[MODEL], options=OPTIONS[MODEL],
        min_load_tokens=0, verify="always", save_decode=True, model="random",
    ).ready()  # fmt: skip
    shared = [prompt(1500, 451 + at) for at in range(3)]
    cached = 0
    for number in range(20):
        requests = [
            [*chance.choice(shared)[: chance.randrange(1, 1500)], *prompt(chance.randrange(1, 300), 1000 + number)]
            for _ in range(chance.randrange(1, 4))
        ]
        engine.forget()
        engine.send("generate", prompts=[{"tokens": each} for each in requests])
        killed = number % 4 == 3
        if killed:
            time.sleep(chance.random())
            plane.kill()
        outputs = engine.answer()["outputs"]
        assert [each["tokens"] for each in outputs] == [right(each) for each in requests]
        cached += sum(each["cached"] for each in outputs)
        if killed:
            plane.start()
    assert cached > 0
    engine.close()


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A data plane with memory for a few prompts, and a disk."""
    with short_folder() as folder:
        plane = Plane(
            folder,
            {
                "pool_bytes": "8MiB",
                "dataplane__segment_bytes": "2MiB",
                "dataplane__disk_tier_directories": str(tmp_path_factory.mktemp("tier") / "disk"),
                "dataplane__disk_tier_bytes": "256MiB",
            },
        ).start()
        yield plane
        plane.kill()


def test_states_that_others_pushed_out_of_memory_are_loaded_from_the_disk(
    make_engine: MakeEngine, folders: dict[str, Path], make_bare: Callable[..., Right], tiered: Plane
) -> None:
    right = make_bare(MODEL)
    engine = make_engine(
        tiered.socket, folders[MODEL], options=OPTIONS[MODEL],
        min_load_tokens=0, tier_timeout_s=60.0, load_timeout_s=60.0, model="tiered",
    ).ready()  # fmt: skip
    tokens = prompt(1000, 460)

    def on_disk() -> bool:
        stats = tiered.describe()
        return stats.tiers[0].spilled_blocks >= stats.totals.stored_blocks

    for each in (tokens, *(prompt(1000, 461 + number) for number in range(20))):
        engine.generate(each)
        wait_for(on_disk, "its blocks are on disk")
    loaded = tiered.describe().tiers[0].loaded_blocks
    engine.forget()
    found = engine.generate(tokens)
    assert found["tokens"] == right(tokens)
    assert found["cached"] > 0, found["transfer_params"]
    assert found["transfer_params"]["larder"]["loaded_from"] == {"disk": found["cached"]}
    assert tiered.describe().tiers[0].loaded_blocks > loaded
    engine.close()


def test_an_engine_without_prefix_caching_says_so_and_runs_without_larder(
    make_engine: MakeEngine, pool: Plane, folders: dict[str, Path]
) -> None:
    engine = make_engine(
        pool.socket, folders[MODEL], options={"enable_prefix_caching": False}, min_load_tokens=0
    ).ready()
    engine.generate(prompt(600, 480))
    assert engine.generate(prompt(600, 480))["cached"] == 0
    assert "only with mamba_cache_mode 'align' (--enable" in engine.log.read_text()
    engine.close()

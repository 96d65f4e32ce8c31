"""A real engine and a data plane with little memory and a disk tier: evicted prefixes come back from the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.protocol.control.scopes import Clear, Swept
from tests.dataplane.plane import Plane, wait_for
from tests.engines.vllm.engine import BY_SOURCE, Engine, MakeEngine, prompt
from tests.run_marks import short_folder

CHUNK = 128
TOKENS = 1000
CHUNKS = TOKENS // CHUNK


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A data plane with memory for two prompts."""
    tier: Path = tmp_path_factory.mktemp("tier") / "disk"
    with short_folder() as folder:
        plane = Plane(
            folder,
            {
                "pool_bytes": "4MiB",
                "dataplane__segment_bytes": "2MiB",
                "dataplane__disk_tier_directories": str(tier),
                "dataplane__disk_tier_bytes": "256MiB",
            },
        ).start()
        yield plane
        plane.kill()


@pytest.fixture(scope="module")
def engine(make_engine: MakeEngine, tiered: Plane) -> Engine:
    return make_engine(
        tiered.socket, chunk_tokens=CHUNK, min_load_tokens=0, tier_timeout_s=60.0, load_timeout_s=60.0
    ).ready()


def push_out(engine: Engine, plane: Plane, first: int) -> None:
    """Let the engine compute prompts that fill the memory of the data plane several times."""
    for number in range(first, first + 6):
        before = plane.describe().tiers[0].spilled_blocks
        engine.generate(prompt(TOKENS, number))
        wait_for(lambda at=before + CHUNKS: plane.describe().tiers[0].spilled_blocks >= at, "it is on disk")  # type: ignore[misc]


def test_a_prefix_that_others_pushed_out_of_memory_is_loaded_from_the_disk(engine: Engine, tiered: Plane) -> None:
    tokens = prompt(TOKENS, 1)
    right = engine.generate(tokens)
    assert right["cached"] == 0
    push_out(engine, tiered, 100)
    assert tiered.describe().tiers[0].loaded_blocks == 0
    engine.forget()
    found = engine.generate(tokens)
    assert found["tokens"] == right["tokens"]
    assert found["cached"] == CHUNKS * CHUNK
    fields = {"loaded_tokens": CHUNKS * CHUNK, "loaded_from": {"disk": CHUNKS * CHUNK}, "missed_tokens": 0}
    assert found["transfer_params"] == {"larder": fields}
    assert tiered.describe().tiers[0].loaded_blocks >= CHUNKS


def test_an_abort_during_a_wait_leaves_the_engine_working(engine: Engine, tiered: Plane) -> None:
    tokens = prompt(TOKENS, 2)
    right = engine.generate(tokens)["tokens"]
    for steps in (0, 1, 2):
        push_out(engine, tiered, 200 + 10 * steps)
        engine.forget()
        assert engine.do("abort", tokens=tokens, steps=steps) == {"idle": True}
    engine.forget()
    found = engine.generate(tokens)
    assert (found["cached"], found["tokens"]) == (CHUNKS * CHUNK, right)


def test_responses_say_where_tokens_were_and_why_others_are_missing(engine: Engine, tiered: Plane) -> None:
    tokens, whole = prompt(TOKENS, 3), CHUNKS * CHUNK
    copied = tiered.describe().tiers[0].spilled_blocks + CHUNKS
    first = engine.generate(tokens)["transfer_params"]["larder"]
    assert first == {"loaded_tokens": 0, "missed_tokens": whole, "reason": "never_stored"}
    wait_for(lambda: tiered.describe().tiers[0].spilled_blocks >= copied, "its blocks are on disk")
    before = engine.do("sources")
    engine.forget()
    hit = engine.generate(tokens)["transfer_params"]["larder"]
    assert hit == {"loaded_tokens": whole, "missed_tokens": 0, "loaded_from": {"host": whole}}
    push_out(engine, tiered, 300)
    engine.forget()
    loaded = engine.generate(tokens)["transfer_params"]["larder"]
    assert loaded["loaded_from"] == {"disk": whole}
    if BY_SOURCE:
        now = engine.do("sources")
        assert {source: now[source] - before[source] for source in ("host", "disk")} == {"host": whole, "disk": whole}
    with tiered.manager() as manager:
        assert isinstance(manager.ask(Clear("n")), Swept)
    engine.forget()
    cleared = engine.generate(tokens)["transfer_params"]["larder"]
    assert (cleared["missed_tokens"], cleared["reason"], cleared["cause"]) == (whole, "invalidated", "invalidated")
    tiered.kill()
    engine.forget()
    away = engine.generate(prompt(TOKENS, 4))["transfer_params"]["larder"]
    assert away == {"loaded_tokens": 0, "missed_tokens": whole, "reason": "data_plane_away"}

"""Loads that fail, and an outage of the whole of Larder: every request ends with the right tokens."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

from dataplane.client import Client
from tests.dataplane.plane import Plane, wait_for
from tests.e2e.larder import START_S, Larder, start, until
from tests.engines.vllm.conftest import POOL
from tests.engines.vllm.engine import LOADS_IN_STEP, MakeEngine, prompt
from tests.engines.vllm.stored_blocks import flip, stored_blocks
from tests.free_port import free_port
from tests.run_marks import short_folder

CHUNK = 128
TOKENS = 1000
FOUND = TOKENS // CHUNK * CHUNK
OUTAGE_S = 60.0
Make = MakeEngine


@pytest.fixture(scope="module")
def right(make_engine: Make) -> Callable[[list[int]], list[int]]:
    """Return the tokens of an engine without a connector, by prompt."""
    bare = make_engine(None).ready()
    return lambda tokens: bare.generate(tokens)["tokens"]


Right = Callable[[list[int]], list[int]]


@pytest.mark.parametrize("inside", [False, True])
def test_a_load_that_fails_is_computed_from_the_failed_block_on_and_is_a_miss_afterwards(
    make_engine: Make, pool: Plane, observer: Client, right: Right, inside: bool
) -> None:
    """One bit of the fifth chunk's block changes. Its checksum does not match, so the load fails after four chunks."""
    engine = make_engine(
        pool.socket, chunk_tokens=CHUNK, min_load_tokens=0, verify="always", step_load_s=1.0 if inside else 0.0
    ).ready()
    tokens = prompt(TOKENS, 80 + inside)
    stored = pool.wait_stats(lambda stats: True, "it answers").totals.stored_blocks
    engine.generate(tokens[: 4 * CHUNK])
    pool.wait_stats(lambda stats: stats.totals.stored_blocks == stored + 4, "four blocks are stored")
    before = stored_blocks(observer)
    engine.forget()
    engine.generate(tokens[: 5 * CHUNK])
    pool.wait_stats(lambda stats: stats.totals.stored_blocks == stored + 5, "the fifth block is stored")
    (fifth,) = stored_blocks(observer).items() - before.items()
    engine.forget()
    engine.generate(tokens)
    pool.wait_stats(lambda stats: stats.totals.stored_blocks == stored + 7, "seven blocks are stored")
    flip(pool, *fifth[1])
    engine.forget()
    failed = engine.generate(tokens)
    engine.forget()
    after = engine.generate(tokens)
    assert [failed["tokens"], after["tokens"]] == [right(tokens)] * 2
    fields = {"loaded_tokens": 4 * CHUNK, "missed_tokens": 3 * CHUNK, "loaded_from": {"host": 4 * CHUNK}}
    assert failed["transfer_params"] == {"larder": {**fields, "reason": "load_failed"}}
    assert after["cached"] >= 4 * CHUNK

    counts: dict[str, int] = {}

    def all_loads_counted() -> bool:
        engine.generate(prompt(40))
        counts.update(engine.do("counters"))
        return counts["loaded_tokens"] >= 13 * CHUNK

    wait_for(all_loads_counted, "vLLM has reported all loads")
    assert bool(counts["step_loaded_tokens"]) == (inside and LOADS_IN_STEP)

    def found_again() -> bool:
        engine.forget()
        again = engine.generate(tokens)
        assert again["tokens"] == right(tokens)
        return bool(again["cached"] == FOUND)

    wait_for(found_again, "the failed block was computed and stored again, and is loaded again")


def family(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    found = [pid]
    for each in found:
        with suppress(FileNotFoundError):
            found += map(int, Path(f"/proc/{each}/task/{each}/children").read_text().split())
    return found


def test_an_engine_outlives_a_minute_without_larder(make_engine: Make, right: Right) -> None:
    """Every process of `larder up` is killed: management plane, data plane and standby. A minute later it is started
    again on the same folder."""
    with short_folder() as folder, httpx.Client(trust_env=False, timeout=60) as api:
        port = free_port()
        settings = {"LARDER_APP__STANDBY": "true", **{f"LARDER_{name.upper()}": value for name, value in POOL.items()}}
        api.base_url = f"http://127.0.0.1:{port}"
        larder = Larder(folder, port, start(folder, port, **settings), api)
        try:
            until(larder.ready, "ready", START_S)
            engine = make_engine(
                larder.socket, chunk_tokens=CHUNK, min_load_tokens=0, timeout_s=0.25, load_timeout_s=1.0
            ).ready()
            shared, own = prompt(TOKENS, 90), [prompt(300, 91 + at) for at in range(20)]
            expected, expected_own = right(shared), [right(each) for each in own]

            def hits_again() -> bool:
                engine.forget()
                engine.generate(shared)
                engine.forget()
                answer = engine.generate(shared)
                assert answer["tokens"] == expected
                return bool(answer["cached"] == FOUND)

            wait_for(hits_again, "the engine hits", 60)
            up = [engine.generate(each)["seconds"] for each in own]
            engine.forget()
            processes = until(
                lambda: found if len(found := family(larder.process.pid)) >= 3 else None, "the standby waits"
            )
            for pid in processes:
                os.kill(pid, signal.SIGKILL)
            larder.process.wait(60)
            gone = time.monotonic()
            down: list[float] = []
            while time.monotonic() < gone + OUTAGE_S:
                for tokens, own_tokens in zip(own, expected_own, strict=True):
                    answer = engine.generate(tokens)
                    assert (answer["tokens"], answer["finish"]) == (own_tokens, "length")
                    down.append(answer["seconds"])
                assert engine.generate(shared)["tokens"] == expected
                engine.forget()
            print(f"medians: {np.median(up):.3f} s with Larder, {np.median(down):.3f} s without, {len(down)} requests")
            print(f"largest: {max(up):.3f} s with Larder, {max(down):.3f} s without")
            larder.process = start(folder, port, **settings)
            until(larder.ready, "ready again", START_S)

            wait_for(hits_again, "the engine attaches and hits again", 60)
        finally:
            for pid in family(larder.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            larder.process.wait(60)

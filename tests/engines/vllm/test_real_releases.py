"""Earlier releases of vLLM: hits have the right tokens, loads that fail are computed, and blocks become free."""

from __future__ import annotations

import pytest

from benchmarks.peers.environment import VLLM_RELEASES, python
from dataplane.client import Client
from tests.dataplane.plane import Plane, wait_for
from tests.engines.vllm.engine import MakeEngine, prompt
from tests.engines.vllm.stored_blocks import flip, stored_blocks

CHUNK = 128
TOKENS = 1000
FOUND = TOKENS // CHUNK * CHUNK


@pytest.mark.parametrize("release", VLLM_RELEASES)
def test_a_release_loads_what_another_engine_has_stored_and_computes_what_it_cannot_load(
    make_engine: MakeEngine, pool: Plane, observer: Client, release: str
) -> None:
    program = python(VLLM_RELEASES[release])
    if program is None:
        pytest.skip(f"vLLM {release} is not built: run `make engines`")
    settings = {"chunk_tokens": CHUNK, "min_load_tokens": 0, "verify": "always", "program": program}
    tokens, salt = prompt(TOKENS, 1), f"acme-{release}"
    missed = {"larder": {"loaded_tokens": 0, "missed_tokens": FOUND, "reason": "never_stored"}}
    bare = make_engine(None, program=program).ready()
    right = bare.generate(tokens)["tokens"]
    bare.close()
    before = stored_blocks(observer)
    stored = pool.wait_stats(lambda stats: True, "it answers").totals.stored_blocks
    first = make_engine(pool.socket, **settings).ready()
    assert first.generate(tokens, salt) | {"seconds": 0} == {
        "cached": 0, "tokens": right, "finish": "length", "transfer_params": missed, "seconds": 0,
    }  # fmt: skip
    pool.wait_stats(lambda stats: stats.totals.stored_blocks == stored + FOUND // CHUNK, "the prompt is stored")
    assert {space.revision for space in pool.wait_stats(lambda stats: True, "it answers").spaces} == {""}, (
        "an engine without options shares with other releases"
    )
    first.generate(prompt(TOKENS, 2), salt, new=1)
    first.forget()  # the blocks of a request that ended before its saves are free in an engine without other requests
    first.close()
    second = make_engine(pool.socket, **settings).ready()
    found = second.generate(tokens, salt)
    assert (found["cached"], found["tokens"]) == (FOUND, right)
    fields = {"loaded_tokens": FOUND, "missed_tokens": 0, "loaded_from": {"host": FOUND}}
    assert found["transfer_params"] == {"larder": fields}
    for place in stored_blocks(observer).items() - before.items():
        flip(pool, *place[1])
    second.forget()
    failed = second.generate(tokens, salt)
    assert failed["tokens"] == right
    assert failed["transfer_params"]["larder"]["reason"] == "load_failed"

    def is_counted() -> bool:
        second.generate(prompt(40))
        return bool(second.do("counters")["failed_loads"] == 1)

    wait_for(is_counted, "vLLM has reported the load")

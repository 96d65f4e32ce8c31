"""Prefill and decode on one node: a decode engine asks as soon as the prefill engine has answered."""

from __future__ import annotations

from tests.dataplane.plane import Plane
from tests.engines.vllm.engine import MakeEngine, prompt

CHUNK = 128
TOKENS = 1000
WHOLE = 896
"""Tokens in whole chunks, without the last token."""
HANDOFFS = 20


def test_a_decode_engine_that_asks_at_once_loads_the_whole_prompt(
    make_engine: MakeEngine, pool: Plane, plugins: dict[str, str]
) -> None:
    options = {"chunk_tokens": CHUNK, "min_load_tokens": 0, "model": "handoff", "environ": plugins}
    prefill = make_engine(pool.socket, role="kv_producer", **options).ready()
    decode = make_engine(pool.socket, role="kv_consumer", **options).ready()
    handed_over = []
    for seed in range(HANDOFFS):
        first = prefill.generate(prompt(TOKENS, 700 + seed), new=1)
        answer = decode.generate(prompt(TOKENS, 700 + seed))
        handed_over.append((answer["cached"], answer["tokens"][:1] == first["tokens"]))
    assert handed_over == [(WHOLE, True)] * HANDOFFS
    decode.forget()
    computed = decode.generate(prompt(TOKENS, 700 + HANDOFFS - 1), params={"larder.skip_load": True})
    assert (computed["cached"], computed["tokens"]) == (0, answer["tokens"])
    for engine in (prefill, decode):
        engine.close()

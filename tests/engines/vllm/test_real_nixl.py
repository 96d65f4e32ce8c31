"""Prefill and decode with NIXL and Larder in a MultiConnector: NIXL hands prompts over, Larder keeps them."""

from __future__ import annotations

import pytest

from benchmarks.peers.environment import NIXL, python
from tests.dataplane.plane import Plane
from tests.engines.vllm.engine import ANSWER_S, Engine, MakeEngine, prompt
from tests.free_port import free_port

CHUNK = 128
TOKENS = 400
IN_LARDER = 384
"""Tokens in whole chunks."""
CONNECTOR = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu"}


@pytest.mark.parametrize("larder_first", [True, False])
def test_a_prompt_is_handed_over_and_kept(
    make_engine: MakeEngine, pool: Plane, plugins: dict[str, str], larder_first: bool
) -> None:
    program = python(NIXL)
    if program is None:
        pytest.skip("NIXL is not installed beside vLLM: run `make engines`")

    def make(role: str) -> Engine:
        return make_engine(
            pool.socket,
            role=role,
            children=[None, CONNECTOR] if larder_first else [CONNECTOR, None],
            environ={**plugins, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())},
            program=program,
            chunk_tokens=CHUNK,
            min_load_tokens=0,
            model=f"nixl-{larder_first}",
        )

    engines = prefill, decode = make("kv_producer"), make("kv_consumer")
    for engine in engines:
        engine.ready()
    tokens = prompt(TOKENS, 90 + larder_first)
    stored = pool.describe().totals.stored_blocks
    first = prefill.generate(tokens, new=1, params={"do_remote_decode": True})
    assert first["transfer_params"]["larder"]["loaded_tokens"] == 0
    assert first["transfer_params"]["do_remote_prefill"]
    pool.wait_stats(lambda stats: stats.totals.stored_blocks >= stored + 3, "blocks stored", ANSWER_S)

    handed_over = decode.generate(tokens, params=first["transfer_params"])
    assert handed_over["tokens"][:1] == first["tokens"]
    loaded = (handed_over["transfer_params"] or {}).get("larder", {}).get("loaded_tokens", 0)
    assert loaded == (IN_LARDER if larder_first else 0), "the first connector with the prompt loads it"

    decode.forget()
    kept = decode.generate(tokens)
    assert (kept["cached"], kept["tokens"]) == (IN_LARDER, handed_over["tokens"])
    assert kept["transfer_params"]["larder"]["loaded_tokens"] == IN_LARDER
    decode.forget()
    computed = decode.generate(tokens, params={"larder.skip_load": True})
    assert (computed["cached"], computed["tokens"]) == (0, kept["tokens"])
    for engine in engines:
        assert not engine.do("counters")["errors"]
        assert "Larder is not used" not in engine.log.read_text(errors="replace")
        engine.close()

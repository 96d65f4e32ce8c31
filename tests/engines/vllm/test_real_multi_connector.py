"""Larder beside another of vLLM's connectors, in a MultiConnector."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from tests.dataplane.plane import Plane
from tests.engines.vllm.engine import ANSWER_S, Engine, MakeEngine, prompt

CHUNK = 128
TOKENS = 400
IN_LARDER = 384
ON_DISK = 384
"""Tokens in whole blocks of vLLM of 32 tokens or more."""


def counted(engine: Engine, loaded_tokens: int) -> dict[str, float]:
    """Return the connector's counters when all loads are counted. Each side reports with a step, once a second."""
    deadline = time.monotonic() + ANSWER_S
    while True:
        engine.generate(prompt(8))
        counters: dict[str, float] = engine.do("counters")
        if counters["loaded_tokens"] >= loaded_tokens:
            assert counters["loaded_tokens"] == loaded_tokens
            return counters
        assert time.monotonic() < deadline, counters


@pytest.mark.parametrize("larder_first", [True, False])
def test_both_connectors_of_a_multi_connector_hit_with_the_right_tokens(
    make_engine: MakeEngine, pool: Plane, plugins: dict[str, str], tmp_path: Path, larder_first: bool
) -> None:
    disk = {
        "kv_connector": "ExampleConnector",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "disk")},
    }
    engine = make_engine(
        pool.socket,
        children=[None, disk] if larder_first else [disk, None],
        environ=plugins,
        chunk_tokens=CHUNK,
        min_load_tokens=0,
        model=f"multi-{larder_first}",
    ).ready()
    tokens = prompt(TOKENS, 50 + larder_first)
    stored = pool.describe().totals.stored_blocks
    right = engine.generate(tokens)
    assert right["cached"] == 0
    pool.wait_stats(lambda stats: stats.totals.stored_blocks >= stored + 3, "blocks stored", ANSWER_S)

    engine.forget()
    both = engine.generate(tokens, params={"do_remote_prefill": True, "remote_block_ids": [[1]]})
    assert (both["cached"], both["tokens"]) == (IN_LARDER, right["tokens"])
    loaded = (both["transfer_params"] or {}).get("larder", {}).get("loaded_tokens", 0)
    assert loaded == (IN_LARDER if larder_first else 0), "the first connector with a hit loads"

    engine.forget()
    disk_alone = engine.generate(tokens, params={"larder.skip_load": True})
    assert (disk_alone["cached"], disk_alone["tokens"]) == (ON_DISK, right["tokens"])
    assert disk_alone["transfer_params"]["larder"]["reason"] == "not_used"

    shutil.rmtree(tmp_path / "disk")
    engine.forget()
    larder_alone = engine.generate(tokens)
    assert (larder_alone["cached"], larder_alone["tokens"]) == (IN_LARDER, right["tokens"])
    assert larder_alone["transfer_params"]["larder"]["loaded_tokens"] == IN_LARDER

    counters = counted(engine, IN_LARDER * (2 if larder_first else 1))
    assert not counters["errors"]
    log = engine.log.read_text(errors="replace")
    assert "Larder is not used" not in log
    assert "the engine continues without" not in log
    engine.close()

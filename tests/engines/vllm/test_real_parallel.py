"""Several engines of several processes: tensor parallel engines side by side, and data parallel in one vLLM."""

from __future__ import annotations

from pathlib import Path

import httpx

from examples.vllm.model import write_model
from examples.vllm.processes import vllm
from tests.dataplane.plane import Plane
from tests.engines.vllm.engine import ANSWER_S, PATIENT, MakeEngine, prompt
from tests.run_marks import short_folder

CHUNK = 128
Make = MakeEngine


def test_two_tensor_parallel_engines_at_once_share_a_prefix(make_engine: Make, pool: Plane) -> None:
    tokens = [prompt(400, 340), prompt(400, 341)]
    options = {"tensor_parallel_size": 2}
    engines = [  # one after the other: while ranks start, each of them keeps a core busy
        make_engine(pool.socket, options=options, chunk_tokens=CHUNK, min_load_tokens=0, model="tp").ready()
        for _ in range(2)
    ]
    for engine, own in zip(engines, tokens, strict=True):
        engine.send("generate", prompts=[{"tokens": own}])
    right = [engine.answer()["outputs"][0]["tokens"] for engine in engines]
    for engine in engines:
        engine.forget()
    for engine, other in zip(engines, tokens[::-1], strict=True):
        engine.send("generate", prompts=[{"tokens": other}])
    found = [engine.answer()["outputs"][0] for engine in engines]
    assert [(each["cached"], each["tokens"]) for each in found] == [(384, each) for each in right[::-1]]
    stats = pool.describe()
    readers = [each for each in stats.engines if each.read_bytes]
    assert len(readers) == 4, "each rank of each engine reads its part"
    assert sorted(each.read_tokens for each in readers) == [0, 0, 384, 384]
    assert all(each.stored_bytes == each.read_bytes for each in readers)
    for engine in engines:
        engine.close()


def test_the_data_parallel_ranks_of_one_server_share_prefixes(pool: Plane, tmp_path: Path) -> None:
    transfer = {
        "kv_connector": "LarderConnector",
        "kv_connector_module_path": "dataplane.engines.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "larder.socket": pool.socket, "larder.min_load_tokens": 0, "larder.model": "dp",
            **{f"larder.{name}": value for name, value in PATIENT.items()},
        },
    }  # fmt: skip
    model = write_model(tmp_path / "model")
    with (
        short_folder() as folder,
        vllm("server", folder / "server", model, transfer, ["--data-parallel-size", "2"]) as server,
    ):
        server.wait_for("/health")
        before = pool.describe().totals.stored_blocks
        answers = []
        with httpx.Client(base_url=server.url, timeout=ANSWER_S, trust_env=False) as http:
            for rank in (0, 1):
                request = {
                    "model": "tiny", "prompt": prompt(1000, 350), "max_tokens": 8, "temperature": 0,
                    "ignore_eos": True,
                }  # fmt: skip
                answer = http.post("/v1/completions", json=request, headers={"X-data-parallel-rank": str(rank)})
                assert answer.status_code == 200, answer.text
                answers.append(answer.json())
                pool.wait_stats(lambda stats: stats.totals.stored_blocks >= before + 3, "blocks stored", ANSWER_S)
        loaded = [(each["kv_transfer_params"] or {}).get("larder", {}).get("loaded_tokens", 0) for each in answers]
        assert loaded == [0, 768]
        assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]
        groups = {each.group for each in pool.describe().engines if each.connected and "_dp" in each.group}
        assert len(groups) == 2, "each rank is an engine"

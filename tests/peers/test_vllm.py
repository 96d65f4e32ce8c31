"""An unmodified vLLM with LMCache's connector: only host and port say whose server it is."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.peers.servers import Server
from tests.peers.scripting import ran

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FULL_CHUNKS = 1024
"""Of a prompt of 1,200 tokens."""
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model without weights, which vLLM makes up."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


def _generated(python: Path, server: Server, model: Path) -> Any:
    return ran(python, "generate", server.rpc_port, model, timeout_s=420)


def test_a_second_vllm_takes_what_the_first_computed(vllm_python: Path, server: Server, model: Path):
    first = _generated(vllm_python, server, model)
    assert first["cached"] == 0
    second = _generated(vllm_python, server, model)
    assert second == {"cached": FULL_CHUNKS, "tokens": first["tokens"]}


def test_a_vllm_takes_what_was_computed_before_the_data_plane_was_killed(
    vllm_python: Path, larder: Server, model: Path
):
    first = _generated(vllm_python, larder, model)
    with httpx.Client(base_url=larder.http_url, trust_env=False, timeout=10) as api:
        (node,) = api.get("/api/v1/nodes").json()["items"]
        os.kill(node["pid"], signal.SIGKILL)
    second = _generated(vllm_python, larder, model)
    assert second == {"cached": FULL_CHUNKS, "tokens": first["tokens"]}

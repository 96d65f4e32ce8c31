"""An unmodified vLLM with LMCache's connector: only host and port say whose server it is."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.peers.servers import Server
from tests.peers.scripting import ran
from tests.peers.vllm_model import FULL_CHUNKS, write_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


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

"""An unmodified vLLM with LMCache's connector: only host and port say whose server it is."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.peers.servers import Server
from benchmarks.peers.vllm_model import FULL_CHUNKS, write_model
from tests.dataplane.plane import wait_for
from tests.lmcache.planes import gateway_plane
from tests.peers.scripting import ran
from tests.run_marks import short_folder

CHUNK_TOKENS = 256
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def _generated(python: Path, server: Server, model: Path) -> Any:
    return ran(python, "generate", server.rpc_port, model, timeout_s=420)


def test_a_second_vllm_loads_blocks_of_the_first(vllm_python: Path, server: Server, model: Path):
    first = _generated(vllm_python, server, model)
    assert first["cached"] == 0
    second = _generated(vllm_python, server, model)
    assert second == {"cached": FULL_CHUNKS, "tokens": first["tokens"]}


def test_a_vllm_loads_blocks_stored_before_the_data_plane_was_killed(vllm_python: Path, larder: Server, model: Path):
    first = _generated(vllm_python, larder, model)
    with httpx.Client(base_url=larder.http_url, trust_env=False, timeout=60) as api:
        (session,) = api.get("/api/v1/sessions").json()["items"]
        stored = FULL_CHUNKS // CHUNK_TOKENS
        assert {name: session[name] for name in ("session", "tenant", "chunks")} == {
            "session": "talk", "tenant": "acme", "chunks": stored,
        }  # fmt: skip
        (node,) = api.get("/api/v1/nodes").json()["items"]
        os.kill(node["pid"], signal.SIGKILL)
    second = _generated(vllm_python, larder, model)
    assert second == {"cached": FULL_CHUNKS, "tokens": first["tokens"]}


def test_a_vllm_takes_chunks_from_disk_after_the_memory_was_lost(vllm_python: Path, model: Path, tmp_path: Path):
    settings = {
        "pool_bytes": "256MiB",
        "dataplane__disk_tier_directories": str(tmp_path / "tier"),
        "dataplane__disk_tier_bytes": "256MiB",
    }
    with short_folder() as folder, gateway_plane(folder, **settings) as plane:
        port = plane.settings["lmcache_port"]
        first = ran(vllm_python, "generate", port, model, timeout_s=420)
        assert first["cached"] == 0
        wait_for(lambda: plane.describe().tiers[0].blocks >= FULL_CHUNKS // CHUNK_TOKENS, "the chunks are on disk")
        plane.kill()
        plane.start()
        assert plane.describe().totals.stored_blocks == 0
        second = ran(vllm_python, "generate", port, model, timeout_s=420)
        assert plane.describe().tiers[0].loaded_blocks > 0
    assert second == {"cached": FULL_CHUNKS, "tokens": first["tokens"]}

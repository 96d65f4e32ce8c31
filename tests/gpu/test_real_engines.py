"""Engines as they are, on a GPU, where this interpreter has them: LMCache's own workers on the gateway, and vLLM with
Larder's connector."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.peers.vllm_model import write_model
from tests.dataplane.plane import Plane
from tests.engines.vllm.engine import REPOSITORY, Engine, prompt
from tests.free_port import free_port
from tests.peers.scripting import ran

HERE = Path(sys.executable)
CHUNK = 128
OPTIONS = {
    "gpu_memory_utilization": 0.3,
    "kv_cache_memory_bytes": 1 << 30,
    **json.loads(os.environ.get("LARDER_TEST_VLLM_OPTIONS", "{}")),
}
"""Of `vllm.LLM`: a fixed KV cache, because engines that start together count each other's memory. Some builds need
others, such as `{"attention_backend": "TRITON_ATTN"}`."""


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(module) is None, reason=f"this interpreter has no {module}")


@pytest.fixture
def plane(socket_dir: Path) -> Iterator[Plane]:
    """One that finds the GPU by itself."""
    settings = {"pool_bytes": "1GiB", "dataplane__segment_bytes": "64MiB", "lmcache_port": str(free_port())}
    made = Plane(socket_dir, settings).start()
    yield made
    made.kill()


@pytest.mark.gpu
@needs("lmcache")
@pytest.mark.parametrize("mode", ["lmcache_driven", "engine_driven"])
def test_lmcache_s_workers_get_their_own_bytes_back(plane: Plane, mode: str) -> None:
    found = ran(HERE, "adapters", f"tcp://127.0.0.1:{plane.settings['lmcache_port']}", mode, "cuda")
    assert found["bytes_are_right"] == [True, True]
    assert (found["miss"], found["hit"], found["load_errors"]) == (0, 1024, [])


@pytest.mark.gpu
@needs("vllm")
@pytest.mark.timeout(600)
def test_an_engine_loads_blocks_of_another_and_makes_the_same_tokens(plane: Plane, tmp_path: Path) -> None:
    model = write_model(tmp_path)
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    engines = [
        Engine(
            model,
            socket,
            tmp_path / f"{number}.log",
            environ={"PYTHONPATH": path},
            options=OPTIONS,
            program=HERE,
            chunk_tokens=CHUNK,
            min_load_tokens=0,
        )
        for number, socket in enumerate((None, plane.socket, plane.socket))
    ]
    try:
        bare, first, second = (engine.ready() for engine in engines)
        for seed in range(3):
            tokens = prompt(1000, seed)
            expected = bare.generate(tokens)["tokens"]
            one = first.generate(tokens, "acme")
            first.forget()  # after its saves have ended
            other = second.generate(tokens, "acme")
            assert [each["tokens"] for each in (one, other)] == [expected, expected]
            assert (one["cached"], other["cached"]) == (0, 1000 // CHUNK * CHUNK)
            assert second.generate(tokens, "rival")["cached"] == 0
    finally:
        for engine in engines:
            engine.close()

"""vLLM's interface: what its own store promises, the replacement promises, too, and more about death."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.engines.vllm.engine import PYTHON

REPOSITORY = Path(__file__).parents[3]
SCRIPT = Path(__file__).parent / "scripts" / "object_store_checks.py"
OF_LARDER = {
    "a_dead_reader_blocks_nothing",
    "no_name_is_left_in_dev_shm",
    "inputs_of_refused_requests_are_freed",
    "inputs_of_waiting_requests_are_kept_and_those_of_aborted_ones_freed",
}
MIN_CHECKS = 16


@pytest.mark.parametrize("kind", ["larder", "vllm"])
def test_the_replacement_keeps_the_contract_of_vllms_store(kind: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(PYTHON), str(SCRIPT), kind],
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "LARDER_SHIM": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
            "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME": f"larder-test-{os.getpid()}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.splitlines()[-1])
    failed = {name for name, result in results.items() if result != "ok"}
    assert failed == (OF_LARDER if kind == "vllm" else set()), (results, done.stderr[-2000:])
    assert len(results) == MIN_CHECKS + len(OF_LARDER)

"""The object store beside vLLM's: 9 MB objects, four readers. Without vLLM's environment, Larder's alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import QUICK, Setting
from benchmarks.peers.environment import CONNECTOR, python

REPOSITORY = Path(__file__).parents[2]
ROUNDS = 40
QUICK_ROUNDS = 3
LIMIT_S = 900
TARGETS = {"put_over_memcpy": 1.2, "hit": 50.0}


def run(setting: Setting) -> list[Result]:
    """Baseline: vLLM's classes, measured by the same interpreter right after."""
    interpreter = python(CONNECTOR)
    rounds = QUICK_ROUNDS if setting.effort is QUICK else ROUNDS
    larder = _measure(interpreter or Path(sys.executable), "larder", rounds)
    vllm = {} if interpreter is None else _measure(interpreter, "vllm", rounds)
    return [
        at_most(
            f"object_store_{name}",
            value,
            "ratio" if name.endswith("_over_memcpy") else "us",
            TARGETS.get(name.partition("_")[2]),
            vllm.get(name),
        )
        for name, value in larder.items()
    ]


def _measure(interpreter: Path, kind: str, rounds: int) -> dict[str, float]:
    done = subprocess.run(
        [str(interpreter), "-m", "benchmarks.ipc.store_process", kind, f"{rounds}"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "VLLM_LOGGING_LEVEL": "ERROR"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{kind}: {done.stderr.strip().splitlines()[-1]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures

"""The comparison with LMCache's server runs, and writes what scripts expect."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


def test_a_quick_run_writes_a_result_file_and_nothing_is_dropped_unseen(lmcache_python: Path, tmp_path: Path):
    command = [sys.executable, "-m", "benchmarks.peers", "--quick", "--output", str(tmp_path), "burst"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.iterdir()
    assert path.name.endswith("-peers.json")
    results = {result["name"]: result for result in json.loads(path.read_text())["results"]}
    assert results["burst_dropped_unseen"]["value"] == 0
    assert results["burst_dropped_unseen"]["baseline"] > 0
    for result in results.values():
        assert result.keys() == {"name", "value", "unit", "target", "direction", "met", "baseline"}

"""The benchmark of GPUs runs to its end on the emulated device, and writes a file that is not taken for a GPU's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.forked import run


@pytest.mark.full
def test_a_quick_run_on_the_emulated_device_writes_every_figure(tmp_path: Path) -> None:
    options = ["--emulated", "--quick", "--output", str(tmp_path)]
    done = run("benchmarks", "gpu", *options, env=dict(os.environ), timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.iterdir()
    assert path.name.endswith("-gpu-emulated.json")
    report = json.loads(path.read_text())
    assert report["machine"]["gpu"] == "none: the emulated device, on host memory"
    names = {result["name"] for result in report["results"]}
    for way in ("out", "in"):
        assert f"gpu_{way}_contiguous" in names
        assert f"gpu_{way}_products_slowed" in names
        for page in (16, 32, 64):
            assert {
                f"gpu_{way}_{page}KiB{end}" for end in ("", "_ratio", "_page_by_page", "_cpu_per_page")
            } <= names
    for page in (16, 32, 64):
        assert {f"gpu_copy_{page}KiB{end}" for end in ("", "_times", "_pool", "_cpu_per_page")} <= names
    assert not any(result["target"] for result in report["results"])

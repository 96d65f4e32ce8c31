"""The benchmark of GPUs runs to its end on the emulated device, and writes a file that is not taken for a GPU's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.gpu.pages import FORMS, SPLIT
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
        assert {f"gpu_{way}_plain", f"gpu_{way}_products_slowed"} <= names
        for form in FORMS:
            assert {f"gpu_{way}_{form.name}{end}" for end in ("", "_ratio", "_cpu_per_page")} <= names
    for form in SPLIT:
        assert {f"gpu_copy_{form.name}{end}" for end in ("", "_times", "_pool", "_cpu_per_page")} <= names
        assert {f"gpu_layers_{form.name}_{copy}_hidden" for copy in ("store", "load")} <= names
    assert {"gpu_register_256MiB", "gpu_unregister_read_only_256MiB", "gpu_ipc_open", "gpu_ipc_left"} <= names
    assert not any(result["target"] for result in report["results"])

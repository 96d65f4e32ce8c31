"""What `larder doctor` reports of devices: tried by its own process, and explained in sentences when that fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app.cli.support.machine import gpus
from app.cli.support.machine.checkup import CheckResult
from tests.gpu.machines import Machine

DEVICES = (sys.executable, "-m", "dataplane.devices")
EMULATED = (sys.executable, "-m", "tests.emulator")


def test_copies_and_memory_of_other_processes_are_tried(machine: Machine) -> None:
    results = gpus.tried(EMULATED if machine.kind == "emulated" else DEVICES)
    assert all(each.state != "failure" for each in results), results
    if machine.kind == "emulated":
        found = {each.name: each for each in results}
        assert list(found) == ["GPU 0", "pinned memory", "GPU 0 copies", "GPU memory of other processes"]
        assert found["GPU 0 copies"].state == found["GPU memory of other processes"].state == "ok"
        assert "GB/s" in found["GPU 0 copies"].message


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
        ("raise SystemExit('broken')", "broken"),
        ("print('nothing of sense')", "exit code 0"),
        ("import sys; sys.stderr.write('no driver'); sys.exit(3)", "no driver"),
    ],
)
def test_a_failing_check_process_is_reported(code: str, message: str) -> None:
    (found,) = gpus.tried([sys.executable, "-c", code])
    assert found.state == "failure"
    assert message in found.message
    assert found.fix


def test_without_a_gpu_nothing_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = [str(tmp_path / "no such program")]
    assert gpus.look([CheckResult("GPU", "ok", "none seen")], never) == []
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.look([CheckResult("GPU", "warning", "torch is built without CUDA")], never) == []
    (found,) = gpus.look([CheckResult("GPU", "ok", "H200")], never)
    assert found.state == "failure"

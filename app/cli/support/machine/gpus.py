"""GPU checks for `larder doctor`. A separate process tests the GPUs, so that this process creates no context on any of
them."""

import shutil
import subprocess
from collections.abc import Sequence

import msgspec

from app.cli.support.machine.checkup import CheckResult
from dataplane.base.child_command import module_command
from dataplane.base.units import format_size

COMMAND = tuple(module_command("dataplane.devices"))
TIMEOUT_S = 180
_NEEDED = ("GPU", "CUDA")
"""Checks that must pass before a GPU can keep copies."""


def look(checked: Sequence[CheckResult], command: Sequence[str] = COMMAND) -> list[CheckResult]:
    """Return one result per tested item; none without a GPU, or if an earlier check reports the problem."""
    before = [check for check in checked if check.name == "GPU"]
    if not before or before[0].state != "ok" or shutil.which("nvidia-smi") is None:
        return []
    return tried(command)


def tried(command: Sequence[str]) -> list[CheckResult]:
    """Run the test process and return its results. Raises nothing."""
    fix = "look at the driver (dmesg)"
    try:
        completed = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [CheckResult("GPU copies", "failure", f"trying them failed: {error}", fix)]
    try:
        results = [msgspec.json.decode(line, type=CheckResult) for line in completed.stdout.splitlines()]
    except (msgspec.DecodeError, RecursionError):
        results = []
    if completed.returncode > 1 or completed.returncode < 0 or not results:
        reason = completed.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {completed.returncode}"]
        results.append(CheckResult("GPU copies", "failure", f"trying them failed: {reason[-1][:200]}", fix))
    return results


def gpu_copies(requested_bytes: int, checked: Sequence[CheckResult] = ()) -> list[CheckResult]:
    """Check whether GPUs have the memory that GPU copies of pinned blocks may take (`dataplane.gpu_pool_bytes`); return
    no result if that is 0. `checked` holds the results of earlier GPU checks. Raises nothing."""
    if requested_bytes <= 0:
        return []
    name, requested = "GPU copies", format_size(requested_bytes)
    unusable = next((check for check in checked if check.name in _NEEDED and check.state != "ok"), None)
    if unusable is not None:
        problem = f"pins of the tier gpu have no GPU copies: see {unusable.name}"
        return [CheckResult(name, "warning", problem, unusable.fix)]
    program = shutil.which("nvidia-smi")
    if program is None:
        fix = "set dataplane.gpu_pool_bytes to 0, or run where GPUs are"
        return [
            CheckResult(
                name,
                "warning",
                f"no GPU was found that could provide {requested}: pins of the tier gpu have no GPU copies",
                fix,
            )
        ]
    query = [program, "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        completed = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
        sizes = [[int(number) << 20 for number in line.split(",")] for line in completed.stdout.splitlines()]
    except (OSError, subprocess.TimeoutExpired, ValueError):
        sizes = []
    if not sizes or any(len(size) != 2 for size in sizes):
        return [
            CheckResult(
                name,
                "warning",
                f"nvidia-smi did not report whether GPUs have {requested}",
                "look at the driver (dmesg)",
            )
        ]
    smallest, number = min((total, number) for number, (total, _) in enumerate(sizes))
    if smallest < requested_bytes:
        problem = f"{requested} are more than GPU {number} has ({format_size(smallest)})"
        return [CheckResult(name, "warning", problem, "lower dataplane.gpu_pool_bytes")]
    free_bytes, number = min((free, number) for number, (_, free) in enumerate(sizes))
    free = format_size(free_bytes)
    if free_bytes < requested_bytes:
        problem = f"GPU {number} has {free} free now, and GPU copies may take {requested} of it"
        fix = "lower dataplane.gpu_pool_bytes, or leave it room: engines take less (--gpu-memory-utilization of vLLM)"
        return [CheckResult(name, "warning", problem, fix)]
    return [CheckResult(name, "ok", f"up to {requested} of each GPU once an engine asks; at least {free} are free now")]

"""What `larder doctor` says of GPUs: a process of its own tries them, so that this one gets no context on any."""

import shutil
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from app.cli.machine import Found

COMMAND = (sys.executable, "-m", "dataplane.devices")
TIMEOUT_S = 180


def look(checked: Sequence[Found], command: Sequence[str] = COMMAND) -> list[Found]:
    """One line for each thing that was tried; none without a GPU, or where the check before says what is wrong."""
    before = [each for each in checked if each.name == "GPU"]
    if not before or before[0].state != "ok" or shutil.which("nvidia-smi") is None:
        return []
    return tried(command)


def tried(command: Sequence[str]) -> list[Found]:
    """What the process found. Raises nothing."""
    fix = "look at the driver (dmesg)"
    try:
        told = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Found("GPU copies", "failure", f"trying them failed: {error}", fix)]
    try:
        found = [msgspec.json.decode(line, type=Found) for line in told.stdout.splitlines()]
    except msgspec.DecodeError:
        found = []
    if told.returncode > 1 or told.returncode < 0 or not found:
        reason = told.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {told.returncode}"]
        found.append(Found("GPU copies", "failure", f"trying them failed: {reason[-1][:200]}", fix))
    return found

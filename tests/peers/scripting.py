"""Runs a script of tests/peers/scripts with a peer's interpreter; it tells what it found as JSON on its last line."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import QUIET

SCRIPTS = Path(__file__).parent / "scripts"
TAIL = 3000


def ran(python: Path, script: str, *arguments: object, timeout_s: float = 100) -> Any:
    """What the script says. A script that fails fails the test, with the end of what it wrote."""
    __tracebackhide__ = True
    done = completed(python, SCRIPTS / f"{script}.py", *arguments, timeout_s=timeout_s)
    assert done.returncode == 0, f"{script} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-TAIL:]}"
    return json.loads(done.stdout.splitlines()[-1])


def completed(program: Path, *arguments: object, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    """A program of a peer, run to its end."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LARDER_", "PYTEST_"))}
    return subprocess.run(
        [program, *map(str, arguments)],
        env=environ | QUIET,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )

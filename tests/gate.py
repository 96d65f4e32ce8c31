"""Run pytest, and each test that failed ALONE times more, alone in a process: `python -m tests.gate [arguments of
pytest]`.

A test that fails once more fails the gate. A test that passes each time alone is listed as FLAKY, in the last lines and
in build/flaky.txt; more than MAX_FLAKY of them fail the gate.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ALONE = 5
"""Times that a test that failed has to pass alone: a wrong product passes once or twice by chance."""
MAX_FLAKY = 3
MAX_AGAIN = 10
"""With more failures the change is wrong, and not a single test."""
TESTS_FAILED = 1
"""pytest's exit code when it ran to its end and tests failed."""


def main(arguments: list[str], folder: Path = Path("build")) -> int:
    cache = folder / "gate"
    shutil.rmtree(cache, ignore_errors=True)
    code = _pytest(cache, *arguments)
    failed = _failed(cache)
    if code != TESTS_FAILED or not 0 < len(failed) <= MAX_AGAIN:
        return code
    print(f"gate: {len(failed)} tests failed; each runs {ALONE} times more, alone", flush=True)
    left = [test for test in failed if any(_pytest(cache, test) for _ in range(ALONE))]
    flaky = [f"FLAKY {test}" for test in failed if test not in left]
    with (folder / "flaky.txt").open("a", encoding="utf-8") as listed:
        listed.writelines(f"{line}\n" for line in flaky)
    print(*flaky, *(f"FAILED {test}, also alone" for test in left), sep="\n", flush=True)
    if not left and len(flaky) > MAX_FLAKY:
        print(f"gate: more than {MAX_FLAKY} tests are flaky")
    return TESTS_FAILED if left or len(flaky) > MAX_FLAKY else 0


def _pytest(cache: Path, *arguments: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments], check=False
    ).returncode


def _failed(cache: Path) -> list[str]:
    path = cache / "v" / "cache" / "lastfailed"
    return list(json.loads(path.read_text())) if path.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A test run ends, whatever hangs in it: small runs of pytest with a test that hangs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.run_marks import MARK
from tests.run_processes import of_run

ROOT = Path(__file__).parents[1]
BOUND_S = 200.0
RUN_TIMEOUT_S = 25
"""Of a run whose test hangs; the test must have begun by then on a busy machine."""
HANGS_IN_C = "mutex = ctypes.create_string_buffer(64); [libc.pthread_mutex_lock(mutex) for _ in range(2)]"
"""Waits in C with the interpreter's lock: no signal handler of Python's runs, and no other thread."""
HEAD = "import ctypes, threading, time, pytest\nlibc = ctypes.PyDLL(None)\n"
PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    *(["-p", "tests.run_limits", "-p", "pytest_timeout", "-p", "xdist"]),
]
ENVIRON = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run pytest on a file with this text; its standard error is part of the output."""

    def start(
        text: str, *arguments: str, timeout: float = 1, run_timeout: float = 0, grace_s: float = 2
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "pytest.ini").write_text(
            f"[pytest]\ntimeout = {timeout}\ntimeout_method = signal\nrun_timeout = {run_timeout}\n"
        )
        (tmp_path / "test_small.py").write_text(HEAD + text)
        return subprocess.run(
            [*PYTEST, *arguments],
            cwd=tmp_path,
            env=os.environ | ENVIRON | {"PYTEST_RUN_GRACE_S": str(grace_s)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BOUND_S,
            check=False,
        )

    return start


WORKERS = pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
FIXTURE = """
@pytest.fixture
def around{number}():
    {before}
    yield
    {after}

def test_{number}(around{number}):
    {call}
"""
PASSES = "def test_passes(): pass\n"


def small(number: int = 1, before: str = "pass", call: str = "pass", after: str = "pass") -> str:
    return FIXTURE.format(number=number, before=before, call=call, after=after)


@WORKERS
def test_each_phase_is_interrupted(run: Run, workers: tuple[str, ...]) -> None:
    """Also the teardown of a test that was interrupted, and of one that failed by itself."""
    hangs = "time.sleep(99)"
    tests = (
        small(1, before=hangs),
        small(2, call=hangs, after=hangs),
        small(3, call="assert not 1", after=hangs),
    )
    ran = run("".join(tests) + PASSES, *workers)
    assert (ran.returncode, "2 failed, 1 passed, 3 errors in" in ran.stdout) == (1, True), ran.stdout


def test_a_phase_that_hangs_again_in_its_finally_is_interrupted_again(run: Run) -> None:
    text = (
        "def test_it():\n  try:\n    time.sleep(99)\n  finally:\n    time.sleep(99)\ndef test_after(): pass\n"
    )
    ran = run(text)
    assert (ran.returncode, "1 failed, 1 passed in" in ran.stdout) == (1, True), ran.stdout


def test_phases_have_the_limit_each_and_not_together(run: Run) -> None:
    ran = run(small(1, "time.sleep(1)", "time.sleep(1)", "time.sleep(1)"), timeout=2)
    assert (ran.returncode, "1 passed in" in ran.stdout) == (0, True), ran.stdout


@pytest.mark.parametrize("phase", ["call", "after"])
def test_what_no_signal_reaches_ends_its_process_with_stacks(run: Run, phase: str) -> None:
    ran = run(small(1, **{phase: HANGS_IN_C}), timeout=0.5)
    assert ran.returncode == 1, ran.stdout
    assert "Timeout (0:00:01.500000)!" in ran.stdout
    assert re.search(r'test_small.py", line \d+ in (test_1|around1)', ran.stdout), ran.stdout


@pytest.mark.parametrize("phase", ["call", "after"])
def test_a_worker_that_no_signal_reaches_is_reported_and_replaced(run: Run, phase: str) -> None:
    ran = run(small(1, **{phase: HANGS_IN_C}) + PASSES, "-n", "1", timeout=0.5)
    assert ran.returncode == 1, ran.stdout
    assert re.search(r'test_small.py", line \d+ in (test_1|around1)', ran.stdout), (
        "the worker prints its stacks"
    )
    assert "crashed while running 'test_small.py::test_1'" in ran.stdout
    assert "1 failed, 1 passed" in ran.stdout or "1 failed, 2 passed" in ran.stdout, (
        "the next worker runs the rest"
    )


@pytest.mark.parametrize(
    ("workers", "hangs"),
    [((), "time.sleep(99)"), ((), HANGS_IN_C), (("-n", "1"), HANGS_IN_C)],
    ids=["alone", "alone in C", "xdist in C"],
)
def test_a_run_that_lasts_too_long_is_ended_with_the_stacks_of_all_its_processes(
    run: Run, workers: tuple[str, ...], hangs: str
) -> None:
    child_code = f"import time; time.sleep({98 + len(workers)}.{len(hangs)})"
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child_code!r}])"
    text = f"def test_fails(): assert not 1\ndef test_it():\n  {child}\n  {hangs}\n"
    ran = run(text, *workers, timeout=0, run_timeout=RUN_TIMEOUT_S, grace_s=12)
    assert ran.returncode not in (0, 1), ran.stdout
    said = f"===== the test run has not ended after {RUN_TIMEOUT_S} s (run_timeout): stacks of its processes ====="
    assert said in ran.stdout, ran.stdout
    assert "test_it (test_small.py:" in ran.stdout, ran.stdout
    assert "<module> (<string>:1)" in ran.stdout, "its child too"
    if workers or hangs != HANGS_IN_C:
        assert "1 failed" in ran.stdout, "what was found before is reported"
    left = [each for each in of_run(os.environ[MARK], os.getpid()) if each.command.endswith(child_code)]
    assert left == []


def test_a_run_that_cannot_exit_is_ended(run: Run) -> None:
    """A thread that is no daemon keeps the interpreter after the last test."""
    ran = run("def test_it():\n  threading.Thread(target=time.sleep, args=(99,)).start()\n")
    assert "1 passed" in ran.stdout
    assert "pytest has not exited 2 s after its last test" in ran.stdout
    assert ran.returncode != 0


def test_a_run_in_time_prints_nothing(run: Run) -> None:
    ran = run("def test_it(): pass\n", run_timeout=50)
    assert (ran.returncode, "=====\n-----" in ran.stdout, "stacks" in ran.stdout) == (0, False, False)

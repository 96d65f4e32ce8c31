"""Fail a test run that leaves a process, or a file in /dev/shm or /tmp, and list the leftovers.

Marks (`tests.run_marks`) and descent identify what belongs to the run, so that other programs and other runs on this
machine do not matter. Leftovers are killed and removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from tests.run_marks import SHARED_MEMORY, run_folder, run_id
from tests.run_processes import Found, of_run

ENDS_S = float(os.environ.get("PYTEST_RUN_ENDS_S", 60))
"""Time in which processes end that the last tests asked to end."""
OF_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Processes that an interpreter starts for itself and ends at its exit."""
_left = pytest.StashKey[list[str]]()
_of_workers = pytest.StashKey[list[Found]]()
_before = pytest.StashKey[dict[str, str | None]]()


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        tempfile.tempdir = None  # the environment is the controller's
        return
    config.stash[_before] = {name: os.environ.get(name) for name in ("TMPDIR", "PYTEST_DEBUG_TEMPROOT")}
    os.environ.setdefault(
        "PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir()
    )  # where pytest keeps tmp_path of some runs
    run_folder().mkdir(mode=0o711)  # a PostgreSQL that root starts runs as another user
    os.environ["TMPDIR"] = str(run_folder())
    tempfile.tempdir = None  # read TMPDIR again


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        living = [astuple(each) for each in of_run(run_id(), os.getpid())]
        session.config.workeroutput["living"] = living  # type: ignore[attr-defined]
        return
    session.config.stash[_left] = left = _processes(session.config) + _files()
    if left and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist ends. Its children lose their parent: remember those whose environment has no mark."""
    living = getattr(node, "workeroutput", {}).get("living", [])
    node.config.stash.setdefault(_of_workers, []).extend(Found(*each) for each in living)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """List the leftovers in the last lines, so that they are in a log of which only the end is kept."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if (left := config.stash.get(_left, [])) and reporter is not None:
        reporter.section("left behind by this run, and removed", red=True)
        for each in left:
            reporter.line(each)
    for name, value in config.stash.get(_before, {}).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    tempfile.tempdir = None


def _processes(config: pytest.Config) -> list[str]:
    from tests.run_limits import watchdog_pid

    def living() -> list[str]:
        known = {each.pid: each for each in config.stash.get(_of_workers, []) if each.lives()}
        known |= {each.pid: each for each in of_run(run_id(), os.getpid())}
        found = [
            each
            for each in known.values()
            if each.pid != watchdog_pid(config)
            and not (each.parent == os.getpid() and any(name in each.command for name in OF_PYTHON))
        ]
        if time.monotonic() > end:
            for each in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(each.pid, signal.SIGKILL)
        return [f"process {each.pid}: {each.command[:300]}" for each in found]

    end = time.monotonic() + ENDS_S
    while (left := living()) and time.monotonic() <= end:
        time.sleep(0.1)
    return left


def _files() -> list[str]:
    left: list[Path] = [each for each in SHARED_MEMORY.iterdir() if f"larder-{run_id()}" in each.name]
    left += run_folder().iterdir()
    for each in left:
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)
    shutil.rmtree(run_folder(), ignore_errors=True)
    return sorted(str(each) for each in left)

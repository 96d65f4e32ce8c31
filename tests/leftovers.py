"""List and remove the processes and files with the mark of a test run (`tests.run_marks`) that it leaves behind. They
fail a full run (`make full`)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tests.run_marks import MARK, SHARED_MEMORY, run_folder, run_id
from tests.sizes import FULL

ENDS_S = float(os.environ.get("PYTEST_RUN_ENDS_S", 60))
"""Time in which processes end that the last tests asked to end."""
OF_PYTHON = re.compile(r"multiprocessing\.(resource_tracker|forkserver)")
"""Processes that an interpreter starts for itself and ends at its exit."""
_left = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # where pytest keeps tmp_path
        outer = os.environ.get(MARK)
        os.environ[MARK] = f"{outer}.{uuid4().hex[:8]}" if outer else uuid4().hex[:8]
        run_folder().mkdir(mode=0o711)  # a PostgreSQL that root starts runs as another user
        os.environ["TMPDIR"] = str(run_folder())
    tempfile.tempdir = None  # read TMPDIR again


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    session.config.stash[_left] = left = _processes() + _files()
    if left and FULL and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """List the leftovers in the last lines, so that they are in a log of which only the end is kept."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if (left := config.stash.get(_left, [])) and reporter is not None:
        reporter.section("left behind by this run, and removed", red=True)
        for each in left:
            reporter.line(each)


def processes_of(run: str) -> dict[int, str]:
    """Return the living processes whose environment has the mark of a run or names its folder: their command lines and
    the tests that started them, by PID. Without this process and its parent."""
    mark = re.escape(f"{MARK}={run}".encode())
    folder = re.escape(bytes(run_folder().with_name(f"larder-{run}")))
    belongs = re.compile(rb"(?:\A|\0)" + mark + rb"[.\0]|" + folder + rb"[./\0]")
    found = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with suppress(OSError):
            environ = Path(f"/proc/{pid}/environ").read_bytes()  # empty for a zombie
            if pid not in (os.getpid(), os.getppid()) and belongs.search(environ):
                command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
                test = re.search(rb"\0PYTEST_CURRENT_TEST=([^\0]*)", b"\0" + environ)
                if not OF_PYTHON.search(command):
                    found[pid] = f"{command[:300].strip()} ({test[1].decode() if test else 'of an unknown test'})"
    return found


def _processes() -> list[str]:
    end = time.monotonic() + ENDS_S
    while (left := processes_of(run_id())) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in left:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return [f"process {pid}: {text}" for pid, text in left.items()]


def _files() -> list[str]:
    folder = run_folder()
    named = [path for path in SHARED_MEMORY.iterdir() if f"larder-{run_id()}" in path.name and path != folder]
    left = [*named, *folder.iterdir()]
    for path in named:
        if path.is_dir():  # of a run inside this one
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    return sorted(map(str, left))

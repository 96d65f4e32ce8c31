"""Time limits: each phase of a test has one, and so has the whole run (`run_timeout` in pyproject.toml).

pytest-timeout has one timer for set-up, call and teardown together, stops it when a test fails, and interrupts only
Python code of the main thread. Here each phase has a timer of its own that goes off again after each further
`timeout` seconds, so that a `finally` that hangs is interrupted too. A phase that lasts LAST times `timeout` ends its
process with the stacks of all threads: pytest-xdist reports the test as crashed and goes on with a new worker.
`tests.run_watchdog` limits the run from outside.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.run_marks import MARK
from tests.run_watchdog import STACKS

LAST = 3
ROOT = Path(__file__).parents[1]
_settings = pytest.StashKey[Any]()
_stderr = pytest.StashKey[int]()
_watchdog = pytest.StashKey["subprocess.Popen[bytes]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("run_timeout", "seconds that the whole run may last, 0 for no limit", default="5400")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(2)  # before a test's output is captured
    faulthandler.register(STACKS, file=config.stash[_stderr], all_threads=True)
    if hasattr(config, "workerinput"):
        return
    outer = os.environ.get(MARK)
    run = os.environ[MARK] = f"{outer}.{uuid4().hex[:8]}" if outer else uuid4().hex[:8]
    limit_s = float(config.getini("run_timeout"))
    if not config.getoption("usepdb"):
        config.stash[_watchdog] = subprocess.Popen(
            [sys.executable, "-m", "tests.run_watchdog", str(os.getpid()), run, str(limit_s)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=config.stash[_stderr],
            start_new_session=True,  # a Ctrl-C at the terminal is pytest's
        )


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    watchdog = config.stash.get(_watchdog, None)
    if watchdog is not None and watchdog.stdin is not None:
        with suppress(BrokenPipeError):
            watchdog.stdin.write(b"\n")  # what keeps this process from its exit now has the watchdog's grace
            watchdog.stdin.close()
        watchdog.returncode = 0  # it ends after this process: do not warn that it still runs
    faulthandler.unregister(STACKS)
    os.close(config.stash[_stderr])


def watchdog_pid(config: pytest.Config) -> int | None:
    watchdog = config.stash.get(_watchdog, None)
    return None if watchdog is None else watchdog.pid


def pytest_enter_pdb(config: pytest.Config) -> None:
    """A person in a debugger has no time limit."""
    faulthandler.cancel_dump_traceback_later()
    watchdog = config.stash.get(_watchdog, None)
    if watchdog is not None:
        watchdog.kill()
        watchdog.wait(10)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Remember the settings; pytest-timeout goes on and sets its timer."""
    item.stash[_settings] = settings


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _limited(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _limited(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _limited(item))


def _limited(item: pytest.Item) -> Generator[None, Any, Any]:
    settings = item.stash.get(_settings, None)
    if settings is None:  # `timeout` is 0
        return (yield)
    hook = item.config.hook
    hook.pytest_timeout_cancel_timer(item=item)
    hook.pytest_timeout_set_timer(item=item, settings=settings)
    if settings.method == "signal" and threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, settings.timeout)
    faulthandler.dump_traceback_later(LAST * settings.timeout, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        hook.pytest_timeout_cancel_timer(item=item)

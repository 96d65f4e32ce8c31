"""A data plane that `larder up` starts before its own imports: its end is noticed, and it does not stay behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from app.cli.commands.machine import up
from app.supervisor.node_process import NodeProcess, start
from dataplane.base.settings import SettingsError
from dataplane.protocol.signals import SETTINGS_EXIT_CODE

CLOSES_AND_THEN_EXITS = """
import os, sys, time
connection = int(sys.argv[-1])
os.close(connection)
time.sleep(0.3)
sys.exit({code})
"""
"""As an interpreter does that frees its sockets before its process has ended."""
HANGS = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").close()
time.sleep(600)
"""


def started(program: str, *arguments: str) -> NodeProcess:
    early = start((sys.executable, "-c", program, *arguments), os.environ, survives=True)
    early.begin()
    return early


def is_child(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def test_invalid_settings_are_reported_even_if_the_process_takes_long_to_end() -> None:
    early = started(CLOSES_AND_THEN_EXITS.format(code=SETTINGS_EXIT_CODE))
    with pytest.raises(SettingsError, match="a setting of the data plane is invalid"):
        up._await_early(early)
    early.end(10)
    assert not is_child(early.pid)


def test_invalid_settings_are_reported_by_a_process_that_ended_before_its_begin_message() -> None:
    early = start((sys.executable, "-c", f"raise SystemExit({SETTINGS_EXIT_CODE})"), os.environ, survives=True)
    os.waitid(os.P_PID, early.pid, os.WEXITED | os.WNOWAIT)
    early.begin()
    with pytest.raises(SettingsError, match="a setting of the data plane is invalid"):
        up._await_early(early)
    early.end(10)


def test_a_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    early = started(HANGS, str(ready))
    while not ready.exists():
        assert not early.exit_code(0.01)
    early.end(0.1)
    assert not is_child(early.pid), "neither a process nor a zombie stays behind"

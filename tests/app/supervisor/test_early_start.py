"""A data plane that `larder up` starts before its own imports: its end is noticed, and it does not stay behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from app.cli.commands.machine import up
from app.supervisor import node_process
from app.supervisor.fd_store import FdStore
from app.supervisor.node_process import NodeProcess, start_early
from app.supervisor.supervisor import Supervisor
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
KEPT_THEN_KILLED = """
import os, signal, socket, sys
from dataplane.protocol.codec import encode
from dataplane.protocol.engine import HeldMemory, MemoryHeld

connection = socket.socket(fileno=int(sys.argv[-1]))
connection.recv(4096)
memory = [HeldMemory(kind, 0, 4096) for kind in ("index", "books")]
fds = [os.memfd_create(each.kind) for each in memory]
socket.send_fds(connection, [encode(MemoryHeld(0, 0, memory))], fds)
os.kill(os.getpid(), signal.SIGKILL)
"""


def started(program: str, *arguments: str) -> NodeProcess:
    return start_early((sys.executable, "-c", program, *arguments), os.environ, survives=True)


def is_child(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def test_invalid_settings_are_reported_even_if_the_process_takes_long_to_end() -> None:
    early = started(CLOSES_AND_THEN_EXITS.format(code=SETTINGS_EXIT_CODE))
    with pytest.raises(click.ClickException, match="a setting of the data plane is invalid"):
        up._await_early(early)
    early.end(10)
    assert not is_child(early.pid)


def test_invalid_settings_are_reported_by_a_process_that_ended_before_it_was_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Late(FdStore):
        def messages(self) -> Iterator[tuple[bytes, list[int]]]:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            return super().messages()

    monkeypatch.setattr(node_process, "FdStore", Late)
    early = started(f"raise SystemExit({SETTINGS_EXIT_CODE})")
    with pytest.raises(click.ClickException, match="a setting of the data plane is invalid"):
        up._await_early(early)
    early.end(10)


def test_a_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    early = started(HANGS, str(ready))
    while not ready.exists():
        assert not early.exit_code(0.01)
    early.end(0.1)
    assert not is_child(early.pid), "neither a process nor a zombie stays behind"


@pytest.mark.anyio
async def test_the_memory_of_one_that_was_killed_before_it_served_goes_to_the_next() -> None:
    codes: asyncio.Queue[int | None] = asyncio.Queue()
    supervisor = Supervisor(
        os.environ,
        on_exit=lambda code, _: codes.put_nowait(code),
        command=(sys.executable, "-c", "import time; time.sleep(600)"),
        standby=False,
    )
    early = started(KEPT_THEN_KILLED)
    up._await_early(early)
    supervisor.begin_with(early)
    task = asyncio.create_task(supervisor.run())
    try:
        async with asyncio.timeout(60):
            assert await codes.get() == -signal.SIGKILL
        assert len(supervisor._store) == 2
    finally:
        task.cancel()
        await asyncio.wait([task])
        await supervisor.stop(0.1)

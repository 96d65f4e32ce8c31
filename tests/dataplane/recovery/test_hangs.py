"""Processes that hang or end instead of taking over: the memory stays, and another process serves it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.supervisor import supervisor as supervisor_module
from app.supervisor.supervisor import CannotReplace, Supervisor
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect, read, store
from tests.dataplane.plane import Plane, wait_for
from tests.dataplane.recovery.support.harness import supervised as supervised_process

HANGS, ENDS = "TEST_HANGS", "TEST_ENDS"
PROGRAM = f"""
import os, sys, time
if os.environ.get("{HANGS}") or os.environ.get("{ENDS}"):
    from dataplane.recovery.supervision import SupervisorConnection
    SupervisorConnection.wait(int(sys.argv[sys.argv.index("--supervisor-fd") + 1]))
    time.sleep(600 if os.environ.get("{HANGS}") else 0)
    sys.exit(1)
from dataplane.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
WAIT_S = 60.0


@asynccontextmanager
async def supervised(plane: Plane, *, standby: bool) -> AsyncIterator[tuple[Supervisor, list[int]]]:
    """A supervisor whose data plane serves, and the PIDs of all that it starts."""
    pids: list[int] = []
    supervisor = Supervisor(
        plane.environ,
        on_exit=lambda *_: None,
        command=(sys.executable, "-c", PROGRAM),
        on_start=pids.append,
        engine_socket=plane.socket,
        state_dir=plane.folder,
        survives=False,
        standby=standby,
    )
    running = asyncio.create_task(supervisor.run())
    try:
        async with asyncio.timeout(WAIT_S):
            await supervisor._serving.wait()
        yield supervisor, pids
    finally:
        running.cancel()
        await asyncio.wait({running})
        await supervisor.stop(10.0)


@pytest.mark.anyio
@pytest.mark.parametrize("standby", [True, False])
async def test_a_successor_that_hangs_is_killed_and_the_old_settings_serve_with_the_memory(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch, standby: bool
) -> None:
    monkeypatch.setattr(supervisor_module, "SERVES_S", 5.0)
    plane = Plane(socket_dir)
    async with supervised(plane, standby=standby) as (supervisor, pids):
        chain = make.keys(4)
        with connect(plane) as client:
            assert store(client, chain) == 4
            with pytest.raises(CannotReplace, match=r"did not serve within 5 s\. One with the old settings"):
                await supervisor.replace({**plane.environ, HANGS: "1"}, keep=True, grace_s=10.0)
            assert supervisor._serving.is_set()
            assert read(client, chain) == 4
            await asyncio.to_thread(
                wait_for, lambda: store(client, make.keys(1, "after")) == 1, "stores are served again"
            )
            await supervisor.replace(plane.environ, keep=True, grace_s=10.0)
            assert read(client, chain) == 4
            assert len(pids) == len(set(pids)) == 4


@pytest.mark.anyio
async def test_a_restart_fails_if_the_old_settings_serve_before_its_standby_is_ready(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data plane dies at once, its successor with the new settings ends, and the next one has the old settings."""
    plane = Plane(socket_dir)
    async with supervised(plane, standby=False) as (supervisor, pids):
        new_standby = supervisor._new_standby

        async def slow() -> None:
            os.kill(pids[0], signal.SIGKILL)
            async with asyncio.timeout(WAIT_S):
                while len(pids) < 3 or not supervisor._serving.is_set():
                    await asyncio.sleep(0.01)
            await new_standby()

        monkeypatch.setattr(supervisor, "_new_standby", slow)
        with connect(plane) as client:
            chain = make.keys(4)
            assert store(client, chain) == 4
            with pytest.raises(CannotReplace, match=r"exit code 1\. One with the old settings serves again"):
                await supervisor.replace({**plane.environ, ENDS: "1"}, keep=True, grace_s=10.0)
            assert supervisor._standby is None, "a standby with the new settings would take over"
            assert read(client, chain) == 4
        assert len(pids) == 3


def test_a_standby_that_does_not_answer_is_given_up_and_nothing_is_lost(tmp_path: Path) -> None:
    with supervised_process(tmp_path) as plane, connect(plane) as client:
        assert store(client, make.keys(8)) == 8
        wait_for(plane.standby_waits, "a standby waits")
        hung, before = int(plane.logged("dataplane.standby_ready")[-1]["pid"]), plane.plane_pid
        os.kill(hung, signal.SIGSTOP)
        plane.kill_plane()
        wait_for(lambda: plane.plane_pid != before, "another process serves")
        assert plane.plane_pid != hung
        assert [each["pid"] for each in plane.wait_logged("dataplane.standby_timed_out")] == [hung]
        assert plane.describe().pool.blocks == 8
        wait_for(lambda: not Path(f"/proc/{hung}").exists(), "it is killed")
        wait_for(plane.standby_waits, "the next standby waits")

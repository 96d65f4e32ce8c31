"""The supervisor's stop has a bound, whatever state its processes are in."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app import runtime
from app.supervisor import supervisor as module
from app.supervisor.supervisor import Supervisor

pytestmark = pytest.mark.anyio


async def test_a_frozen_standby_is_killed_after_the_grace() -> None:
    supervisor = Supervisor(
        os.environ,
        on_exit=lambda *_: None,
        on_start=lambda _: None,
        command=(sys.executable, "-c", "import time; time.sleep(600)"),
    )
    supervisor._prepare()
    standby = supervisor._standby
    assert standby is not None
    standby.signal(signal.SIGSTOP)
    with capture_logs() as lines:
        async with asyncio.timeout(60):
            await supervisor.stop(0.1)
    assert not Path(f"/proc/{standby.pid}").exists()
    assert [(line["event"], line["pid"]) for line in lines] == [("dataplane.standby_killed", standby.pid)]


async def test_a_standby_with_settings_that_failed_leaves_no_descriptor() -> None:
    supervisor = Supervisor(
        os.environ,
        on_exit=lambda *_: None,
        on_start=lambda _: None,
        command=(sys.executable, "-c", "import time; time.sleep(600)"),
    )
    supervisor._prepare()
    standby = supervisor._standby
    assert standby is not None
    standby.signal(signal.SIGKILL)
    supervisor._environ_before = dict(os.environ)
    supervisor._restore_environ()
    assert supervisor._dropping is not None
    async with asyncio.timeout(60):
        await supervisor._dropping
    assert standby._pidfd < 0


async def test_a_task_that_is_cancelled_again_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver of Postgres ends a connection that hangs in good order when it is cancelled, and at once when it is
    cancelled again."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    monkeypatch.setattr(runtime, "CANCEL_S", 0.01)
    async with asyncio.timeout(60):
        tasks = runtime.TaskLoops(lambda: False)
        tasks.keep("test", work)
        await began.wait()
        await tasks.end()
    assert ended.is_set()


async def test_a_process_that_the_kernel_does_not_end_is_logged_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        pid = 7
        signals: list[int] = []  # noqa: RUF012 (of one test)

        async def wait(self) -> int:
            await asyncio.Event().wait()
            return 0

        def signal(self, number: int) -> None:
            self.signals.append(number)

    monkeypatch.setattr(module, "KILLED_S", 0.05)
    supervisor = Supervisor(os.environ, on_exit=lambda *_: None, on_start=lambda _: None)
    stuck: Any = Stuck()
    with capture_logs() as lines:
        async with asyncio.timeout(60):
            assert await supervisor._end(stuck, 0.05) is None
    assert stuck.signals == [signal.SIGKILL]
    assert [line["event"] for line in lines] == ["dataplane.killed", "dataplane.not_ended"]

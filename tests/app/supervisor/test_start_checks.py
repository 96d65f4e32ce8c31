"""The processes that check whether a restart would succeed may fail to start, and end with the request."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from app.errors import Conflict, ServerBusy
from app.services.base.principals import PLANE
from app.services.fleet.restarts import Restarts
from app.services.records.tokenizing import EncodeService
from app.supervisor.supervisor import CannotReplace, Supervisor
from app.texts.jobs import EncodeJob

pytestmark = pytest.mark.anyio
MISSING = "/nonexistent/python"
ENDLESS = "import time; time.sleep(600)"


def check_memory(*command: str) -> Coroutine[Any, Any, str]:
    """Check with `command` whether a new data plane would adopt the memory of one that serves."""
    supervisor = Supervisor(os.environ, on_exit=lambda *_: None, on_start=lambda _: None, command=command)
    supervisor._serving.set()
    return supervisor.why_not_adoptable(os.environ)


def check_command(*module: str) -> Coroutine[Any, Any, None]:
    unused = cast(Any, None)
    return Restarts(unused, unused, unused, unused, "")._check_command(*module)


async def test_an_interpreter_that_was_removed_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotReplace, match="would not start: No such file or directory"):
        await check_memory(MISSING)
    monkeypatch.setattr(sys, "executable", MISSING)
    with pytest.raises(Conflict, match="would not start: No such file or directory"):
        await check_command("app", "--help")
    with pytest.raises(ServerBusy, match="cannot be started: No such file or directory"):
        await EncodeService().run(EncodeJob(b""), "tokenizer", PLANE)


@pytest.mark.parametrize("check", ["memory", "command"])
async def test_a_check_ends_with_the_request_that_began_it(monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    started: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
    start = asyncio.create_subprocess_exec

    async def endless(*_: str, **options: Any) -> Process:
        process = await start(sys.executable, "-c", ENDLESS, **options)
        started.set_result(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", endless)
    task = asyncio.create_task(check_memory("python") if check == "memory" else check_command("app"))
    async with asyncio.timeout(60):
        process = await started
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert process.returncode == -signal.SIGKILL

"""A data plane under the real supervisor alone: `python -m tests.dataplane.recovery.support.supervised`.

Prints a line for each start and exit, as JSON; ends in good order on SIGTERM, and replaces the data plane by a new
process on SIGHUP. Data planes are forked from this process, which has their imports: these are most of what a start
costs, and each kill has a start, and one of a standby.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dataplane.run  # noqa: F401 (loaded ahead of the forks)
from app.supervisor.supervisor import COMMAND, Supervisor
from dataplane.base.log import configure
from dataplane.settings import load
from tests.forked import Forked, serve_from_here


def tell(event: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"event": event, "at": time.time(), **fields}) + "\n")
    sys.stdout.flush()


def fork(command: Sequence[str], *, start_new_session: bool, preexec_fn: Callable[[], None], **options: Any) -> Forked:
    """Start a data plane like `Popen`."""
    assert tuple(command[: len(COMMAND)]) == COMMAND
    assert start_new_session
    arguments = [str(os.getpid()), *command[len(COMMAND) :]]
    return Forked("tests.dataplane.recovery.support.forked_plane", *arguments, **options)


async def main() -> None:
    configure()
    common = load().common
    supervisor = Supervisor(
        os.environ,
        lambda code, pause_s: tell("exit", code=code, pause_s=pause_s),
        on_start=lambda pid: tell("start", pid=pid),
        engine_socket=common.engine_socket,
        state_dir=Path(common.state_dir),
        standby=True,
        survives=False,
        popen=fork,
    )
    done = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, done.set)
    replacing: list[asyncio.Task[None]] = []

    async def replace() -> None:
        reason = await supervisor.why_not_adoptable(os.environ)
        await supervisor.replace(os.environ, keep=not reason, grace_s=3.0)
        tell("replaced", reason=reason)

    asyncio.get_running_loop().add_signal_handler(
        signal.SIGHUP, lambda: replacing.append(asyncio.create_task(replace()))
    )
    running = asyncio.create_task(supervisor.run())
    ending = asyncio.create_task(done.wait())
    await asyncio.wait({running, ending}, return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    await asyncio.wait({running})
    await supervisor.stop(3.0)


if __name__ == "__main__":
    serve_from_here("dataplane")
    asyncio.run(main())

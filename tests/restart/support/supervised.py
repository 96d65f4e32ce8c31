"""A data plane under the real supervisor alone: `python -m tests.restart.support.supervised`.

Prints a line for each start and exit, as JSON; ends in good order on SIGTERM, and replaces the data plane by a new
process on SIGHUP.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

from app.supervisor.supervisor import Supervisor
from dataplane.observe.log import configure
from dataplane.settings import load


def tell(event: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"event": event, "at": time.time(), **fields}) + "\n")
    sys.stdout.flush()


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
    asyncio.run(main())

"""Processes of the tests that answer each JSON line with one: their loop, data planes and short-lived engines."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataplane.devices.runtime import DeviceRuntime
from tests.gpu.machines import Machine


def tell(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def run_command(commands: object, line: str) -> dict[str, Any]:
    """Run the method that a line names, and return its result; a method may return None."""
    message = json.loads(line)
    return getattr(commands, message.pop("do"))(**message) or {}


def serve(commands: object) -> None:
    """Answer each line with the result of its command."""
    tell(ready=True)
    for line in sys.stdin:
        tell(**run_command(commands, line))


def run_plane(
    environ: dict[str, str],
    find_devices: Callable[[], DeviceRuntime],
    beside: Callable[[], None],
    *,
    has_holder: bool = False,
) -> None:
    """Run a data plane; call `beside` when it is made."""
    from dataplane.base.log import configure
    from dataplane.compose import DataPlane
    from dataplane.holding.connection import HolderConnection
    from dataplane.settings import load

    os.environ.update(environ)
    log = configure()
    settings = load()
    holder = HolderConnection(Path(settings.common.state_dir)) if has_holder else None
    made = DataPlane(settings, holder=holder, find_devices=find_devices)
    signal.signal(signal.SIGTERM, lambda *_: made.stop())
    beside()
    made.run()
    log.close()


def in_children(arguments: dict[str, Any], live: Callable[[Machine, int], None]) -> None:
    """Let engines live one after another, `together` at a time, and kill each. CUDA does not survive a fork: each has a
    machine of its own, and this process has none."""
    tell(ready=True)
    json.loads(sys.stdin.readline())
    left, failed = int(arguments["count"]), 0
    running: set[int] = set()
    while left or running:
        while left and len(running) < int(arguments.get("together", 4)):
            left -= 1
            child = os.fork()
            if not child:
                live(Machine(arguments["kind"], arguments["uuid"]), left)
                os.kill(os.getpid(), signal.SIGKILL)
            running.add(child)
        child, status = os.wait()
        running.discard(child)
        failed += os.WIFEXITED(status)
    tell(failed=failed)
    sys.stdin.readline()

"""Processes that read and write queues, for tests that kill them."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peers.line_process import LineProcess
from dataplane.ipc.processes import runs, start_time
from dataplane.ipc.queue import QueueHandle

SCRIPT = Path(__file__).parent / "scripts" / "peers.py"
ANSWER_S = 60.0


class Peers(LineProcess):
    """Forks readers and writers; `close` ends them."""

    def __init__(self, log: Path) -> None:
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        super().__init__([sys.executable, str(SCRIPT)], environ, log, ANSWER_S)
        self.pids: dict[int, int] = {}

    def start(self, role: str, **fields: Any) -> dict[str, Any]:
        """Fork a process and return its first event."""
        self._command(role, **fields)
        event = self.answer()
        assert event["event"] in ("joined", "ready"), event
        self.pids[event["pid"]] = start_time(event["pid"])
        return event

    def _command(self, role: str, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode({"role": role, **fields}) + b"\n")
        self.process.stdin.flush()

    def kill_peer(self, *pids: int) -> None:
        """Kill processes at whatever instruction they are."""
        for pid in pids:
            with suppress(ProcessLookupError):  # a reader ends when its writer is killed
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            started = self.pids.pop(pid)
            while runs(pid, started):
                os.sched_yield()

    def close(self) -> None:
        self.kill_peer(*[pid for pid, started in self.pids.items() if runs(pid, started)])
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        rest = self.process.stdout.read()
        super().close()
        assert b"wrong" not in rest, rest


def handle_of(event: dict[str, Any]) -> QueueHandle:
    """Return the handle that a writer announced."""
    return msgspec.convert(event["handle"], QueueHandle)

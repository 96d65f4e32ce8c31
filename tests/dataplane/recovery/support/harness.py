"""`supervised` in a folder of its own, its data plane killed and waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.dataplane.plane import START_TIMEOUT_S, Plane, wait_for
from tests.forked import Forked


@dataclass
class Supervised(Plane):
    """A data plane that is started again when it ends. `plane_pid` is the one that serves, or is about to."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def start(self) -> Supervised:
        with (self.folder / "log").open("ab") as log:
            self.process = Forked(
                "tests.dataplane.recovery.support.supervised", env=self.environ, stdout=subprocess.PIPE, stderr=log
            )
        self._follow()
        wait_for(lambda: self._accepts() or not self.alive, "the data plane starts", START_TIMEOUT_S)
        assert self.alive, self.log()
        return self

    def _follow(self) -> None:
        """Read what the supervisor tells, in a thread that ends with it."""
        process = self.process
        assert process is not None
        assert process.stdout is not None
        stream = process.stdout

        def read() -> None:
            for line in stream:
                self.events.append(json.loads(line))
            stream.close()

        threading.Thread(target=read, daemon=True).start()

    @property
    def plane_pid(self) -> int:
        starts = [each for each in self.events if each["event"] == "start"]
        return int(starts[-1]["pid"]) if starts else 0

    def kill_plane(self) -> float:
        """kill -9 of the data plane; when that was, on the monotonic clock."""
        os.kill(self.plane_pid, signal.SIGKILL)
        return time.monotonic()

    @property
    def replaced(self) -> list[dict[str, Any]]:
        """Replacements that have ended."""
        return [each for each in self.events if each["event"] == "replaced"]

    def replace(self) -> None:
        """A planned restart of the data plane."""
        before = len(self.replaced)
        self.signal(signal.SIGHUP)
        wait_for(lambda: len(self.replaced) > before or not self.alive, "the data plane is replaced", 90)
        assert self.alive, self.log()
        assert self.replaced[-1]["reason"] == ""

    def standby_waits(self) -> bool:
        """A process waits that has not begun to serve."""
        ready = [each["pid"] for each in self.logged("dataplane.standby_ready")]
        return bool(ready) and ready[-1] not in [each.get("pid") for each in self.events]


@contextmanager
def supervised(folder: Path, **settings: str) -> Iterator[Supervised]:
    """A supervised data plane, stopped in good order at the end, and never left behind."""
    plane = Supervised(folder, settings)
    try:
        yield plane.start()
        assert plane.stop() == 0, plane.log()
    finally:
        pid = plane.plane_pid
        if plane.alive:
            plane.kill()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

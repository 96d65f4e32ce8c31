"""Engines under load as processes of their own (`tests.dataplane.load.engine`), and what they report."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.dataplane.plane import Plane, wait_for
from tests.forked import Forked


@dataclass
class Engines:
    """Engines of one data plane by name, which is a role and a number. Each appends to a file of its own."""

    plane: Plane
    running: dict[str, Forked] = field(default_factory=dict)
    _number: int = 0

    def start(self, role: str) -> None:
        self._number += 1
        report = self.plane.folder / f"report-{self._number}.jsonl"
        self.running[f"{role}-{self._number}"] = Forked(
            "tests.dataplane.load.engine", role, self.plane.socket, str(self._number), str(report), env=dict(os.environ)
        )

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(60)

    def kill_all(self) -> None:
        for name in list(self.running):
            self.kill(name)

    def assert_alive(self) -> None:
        for name, process in self.running.items():
            assert process.poll() is None, f"{name} never fails by itself"

    def has_reported(self, name: str) -> bool:
        """Whether an engine has worked since its start."""
        report = self.plane.folder / f"report-{name.split('-')[1]}.jsonl"
        return report.exists() and report.stat().st_size > 0

    def lines(self) -> Iterator[dict[str, object]]:
        for path in self.plane.folder.glob("report-*.jsonl"):
            for line in path.read_text().splitlines():
                yield json.loads(line)

    def wrong(self) -> list[dict[str, object]]:
        return [line for line in self.lines() if "wrong" in line]

    def totals(self) -> dict[str, int]:
        """Blocks that all engines read, stored, gave up, and were refused."""
        last = {line["pid"]: line for line in self.lines() if "pid" in line}
        names = ("blocks", "stored", "aborted", "refused")
        return {name: sum(int(str(line[name])) for line in last.values()) for name in names}

    def worked(self, blocks: int) -> bool:
        """Whether more blocks than these were read, and stored."""
        totals = self.totals()
        return min(totals["blocks"], totals["stored"]) > blocks


@contextmanager
def holders(plane: Plane, count: int) -> Iterator[Callable[[], None]]:
    """Engines that work and hold blocks. The function ends them, and asserts that what they read was right, and what
    they held always there."""
    engines = Engines(plane)

    def end() -> None:
        engines.assert_alive()
        engines.kill_all()
        assert engines.wrong() == [], engines.wrong()[:5]
        assert engines.worked(0)

    try:
        for _ in range(count):
            engines.start("holder")
        wait_for(lambda: all(engines.has_reported(name) for name in engines.running), "all work")
        yield end
    finally:
        engines.kill_all()

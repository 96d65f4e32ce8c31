"""A gateway of the test's own process whose pool is page-aligned, and engines in other processes that talk to it."""

from __future__ import annotations

import mmap
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.bench_node import Bench
from tests.dataplane.plane import wait_for
from tests.gpu.machines import Machine, Other
from tests.lmcache import gateway as plain

POOL_BYTES = 64 << 20


class AlignedPool(plain.PlainPool):
    """As the real one: its memory begins at a page."""

    def __init__(self, bench: Bench, nbytes: int) -> None:
        super().__init__(bench, 0)
        self.memory = mmap.mmap(-1, nbytes)

    @property
    def nbytes(self) -> int:
        return len(self.memory)

    def view(self) -> memoryview:
        return memoryview(self.memory)


class Gateway(plain.Gateway):
    """A gateway that has a machine's devices."""

    def __init__(self, folder: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, pool: type) -> None:
        monkeypatch.setattr(plain, "PlainPool", pool)
        super().__init__(folder, POOL_BYTES, find_devices=lambda: machine.runtime)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Serve until something holds, which other processes and threads need their time for."""

        def served() -> object:
            self.turn()
            return condition()

        wait_for(served, what)

    def hear(self, other: Other) -> dict[str, Any]:
        """What another process says next; it is served until then."""
        stdout = other.process.stdout
        assert stdout is not None
        self.until(lambda: select.select([stdout], [], [], 0)[0], "the process answers")
        return other.hear()

    def ask(self, other: Other, **message: Any) -> dict[str, Any]:
        other.tell(**message)
        return self.hear(other)

    def heard(self, other: Other) -> dict[str, Any] | None:
        """What it said, if anything; it is served for a moment."""
        for _ in range(20):
            self.turn()
        assert other.process.stdout is not None
        return other.hear() if select.select([other.process.stdout], [], [], 0.001)[0] else None

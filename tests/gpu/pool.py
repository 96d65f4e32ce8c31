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
        self.machine = machine
        self._started: list[Other] = []
        self._registered: list[Other] = []

    def start(self, role: str = "engine", **arguments: Any) -> Other:
        """Another process on the machine, ready. It ends with the gateway."""
        self._started.append(self.machine.start(role, **arguments))
        assert self._started[-1].hear() == {"ready": True}
        return self._started[-1]

    def engine(self, seed: int = 1, **arguments: Any) -> Other:
        """An engine of a process of its own, its memory filled and registered. It unregisters when the gateway ends."""
        other = self.start(**arguments)
        other.ask(do="fill", seed=seed)
        assert self.connect(other) == {"registered": True}
        self._registered.append(other)
        return other

    def connect(self, other: Other, **changes: Any) -> dict[str, Any]:
        return self.ask(other, do="connect", url=self.server.url, **changes)

    def store(self, other: Other, blocks: list[int], **fields: Any) -> bool:
        """Whether an engine's blocks, 16 for each chunk, are stored."""
        return self.ask(other, do="store", chunks=len(blocks) // 16, blocks=blocks, **fields)["result"]

    def retrieve(self, other: Other, blocks: list[int], **fields: Any) -> bool:
        return self.ask(other, do="retrieve", chunks=len(blocks) // 16, blocks=blocks, **fields)["result"]

    def unregister_all(self) -> None:
        for other in self._registered:
            if other.process.poll() is None:
                self.ask(other, do="unregister")

    def is_unpinned(self) -> bool:
        return not self.devices.named_is_pinned

    def close(self) -> None:
        super().close()
        for other in self._started:
            if other.process.poll() is None:
                other.kill()

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

"""`kill -9` during copies of devices, at many bytes: the next data plane continues with the memory. No READY block is
lost, nothing half-written is ever read, whoever waits for a copy is told of its end, and nothing stays leased or open.

`LARDER_TEST_KILLS=200` (`make kills`) kills more often than CI has time for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dataplane.protocol.stats.engines import EngineStats
from dataplane.protocol.stats.node import NodeStats
from tests.dataplane.plane import wait_for
from tests.dataplane.recovery.support.relay import Relay
from tests.gpu.machine_fixtures import emulated
from tests.gpu.machines import Machine, Other
from tests.lmcache.planes import free_port, leased, url_of

__all__ = ["emulated"]

KILLS = int(os.environ.get("LARDER_TEST_KILLS", "6"))
CHUNKS = 2
OLD, NEW = list(range(1, 33)), list(range(40, 72))
FORM = {"page_bytes": 4096, "blocks": 80}
CHUNK_BYTES = 16 * 2 * 2 * 4096
COPIED = 2 * CHUNKS * CHUNK_BYTES
"""By the two copies of a round."""


class DeviceRelay(Relay):
    """Data planes with an emulated device, whose copies stop when the test says so."""

    other: Other
    machine: Machine

    def start(self) -> DeviceRelay:
        environ = {name: value for name, value in self.environ.items() if name.startswith("LARDER_")}
        self.other = self.machine.start("commanded_plane", environ=environ, holder=True)
        self.process = self.other.process
        assert self.other.hear() == {"ready": True}
        return self

    def kill(self) -> None:
        super().kill()
        self.other.end()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        return self.other.ask(do=do, **arguments)

    def mappings(self, name: str) -> int:
        """Return the number of shared files with this in their name that the data plane maps."""
        return sum(name in line for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines())


@pytest.fixture
def plane(emulated: Machine, socket_dir: Path) -> Iterator[DeviceRelay]:
    made = DeviceRelay(socket_dir, {"pool_bytes": f"{32 + 2 * KILLS}MiB", "lmcache_port": str(free_port())})
    made.machine = emulated
    made.start()
    yield made
    made.end()


@pytest.fixture
def workers(emulated: Machine, plane: DeviceRelay) -> Iterator[list[Other]]:
    """LMCache workers of processes of their own, registered."""
    made = [emulated.start("engine", **FORM) for _ in range(2)]
    for at, worker in enumerate(made):
        assert worker.hear() == {"ready": True}
        worker.ask(do="fill", seed=10 + at)
        assert worker.ask(do="connect", url=url_of(plane)) == {"registered": True}
    yield made
    for worker in made:
        worker.kill()


def of(stats: NodeStats, worker: Other) -> EngineStats:
    (engine,) = [engine for engine in stats.engines if engine.pid == worker.pid]
    return engine


@pytest.mark.full
@pytest.mark.timeout(120 + 15 * KILLS)
def test_many_kills_during_copies_lose_nothing_and_leave_nothing(
    emulated: Machine, plane: DeviceRelay, workers: Sequence[Other]
) -> None:
    storer, reader = workers
    own = emulated.runtime.memory_used(emulated.device)
    expected = reader.ask(do="blocks", numbers=OLD)["digest"]
    stored = storer.ask(do="blocks", numbers=OLD)["digest"]
    assert reader.ask(do="store", chunks=CHUNKS, blocks=OLD, name=0) == {"result": True}
    for kill in range(1, KILLS + 1):
        plane.ask("stop_after", nbytes=0)
        storer.tell(do="store", chunks=CHUNKS, blocks=OLD, name=kill)
        reader.tell(do="retrieve", chunks=CHUNKS, blocks=NEW, name=0)
        plane.wait_stats(
            lambda stats: (
                of(stats, storer).reserved_bytes == CHUNKS * CHUNK_BYTES and of(stats, reader).leased_blocks == CHUNKS
            ),
            "both are under way",
        )
        plane.ask("resume_for", nbytes=COPIED * 9 // 10 * (kill - 1) // KILLS)
        assert plane.ask("stopped") == {"stopped": True}
        plane.kill()
        assert emulated.runtime.memory_used(emulated.device) == own  # no other process has what engines exported
        plane.start()
        storer.hear()
        if reader.hear()["result"]:
            assert reader.ask(do="blocks", numbers=NEW)["digest"] == expected
        assert storer.ask(do="store", chunks=CHUNKS, blocks=OLD, name=kill) == {"result": True}
        assert reader.ask(do="retrieve", chunks=CHUNKS, blocks=NEW, name=0) == {"result": True}
        assert reader.ask(do="blocks", numbers=NEW)["digest"] == expected
        after = plane.wait_stats(lambda stats: not leased(stats), "nothing is leased")
        assert after.pool.used_bytes == after.pool.ready_bytes == (kill + 1) * CHUNKS * CHUNK_BYTES
    for kill in range(1, KILLS + 1):
        assert reader.ask(do="retrieve", chunks=CHUNKS, blocks=NEW, name=kill) == {"result": True}
        assert reader.ask(do="blocks", numbers=NEW)["digest"] == stored
    for worker in workers:
        worker.ask(do="unregister")
    wait_for(lambda: not plane.mappings(f"larder-emulated-{emulated.uuid}"), "no handle is open")
    wait_for(lambda: not plane.mappings("larder-segment"), "nothing of the pool is registered")


@pytest.mark.parametrize("do", ["store", "retrieve"])
def test_bytes_copied_for_a_dead_worker_are_freed_at_once(
    emulated: Machine, plane: DeviceRelay, workers: Sequence[Other], do: str
) -> None:
    dying, other = workers
    assert dying.ask(do="store", chunks=CHUNKS, blocks=OLD, name=0) == {"result": True}
    plane.ask("stop_after", nbytes=100_000)
    dying.tell(do=do, chunks=CHUNKS, blocks=OLD, name=1 if do == "store" else 0)
    assert plane.ask("stopped") == {"stopped": True}
    plane.kill()
    dying.kill()
    plane.start()
    plane.wait_stats(
        lambda stats: (
            all(engine.pid != dying.pid for engine in stats.engines)
            and stats.pool.used_bytes == stats.pool.ready_bytes == CHUNKS * CHUNK_BYTES
        ),
        "its bytes are free",
    )
    assert other.ask(do="retrieve", chunks=CHUNKS, blocks=NEW, name=0) == {"result": True}
    assert other.ask(do="store", chunks=CHUNKS, blocks=OLD, name=1) == {"result": True}

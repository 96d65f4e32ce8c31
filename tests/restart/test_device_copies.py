"""`kill -9` during copies of devices, at many bytes: the next data plane continues with the memory. No READY block is
lost, nothing half-written is ever read, whoever waits for a copy hears of its end, and nothing stays leased or open.

`LARDER_TEST_KILLS=200` (`make kills`) kills more often than CI has time for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dataplane.protocol.codes import Code
from dataplane.protocol.stats.engines import EngineStats
from dataplane.protocol.stats.node import NodeStats
from tests.dataplane import factories as make
from tests.dataplane.plane import wait_for
from tests.driven.engines import Engine, Process, done
from tests.driven.engines import make as make_engine
from tests.gpu.machine_fixtures import emulated
from tests.gpu.machines import Machine, Other
from tests.lmcache.planes import free_port, leased, url_of
from tests.restart.support.relay import Relay

__all__ = ["emulated"]

KILLS = int(os.environ.get("LARDER_TEST_KILLS", "6"))
CHUNKS = 2
OLD, NEW = list(range(1, 33)), list(range(40, 72))
FORM = {"page_bytes": 4096, "blocks": 80}
CHUNK_BYTES = 16 * 2 * 2 * 4096
COPIED = 4 * CHUNKS * CHUNK_BYTES
"""By the four copies of a round."""


class DeviceRelay(Relay):
    """Data planes with an emulated device, whose copies stop when the test says so."""

    other: Process
    machine: Machine

    def start(self) -> DeviceRelay:
        environ = {name: value for name, value in self.environ.items() if name.startswith("LARDER_")}
        arguments = {"kind": self.machine.kind, "uuid": self.machine.uuid, "environ": environ, "holder": True}
        self.other = Process("plane", arguments)
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
def engines(emulated: Machine, plane: DeviceRelay) -> Iterator[list[Engine]]:
    """In this process, as many as a round needs, registered."""
    made = [make_engine(emulated, plane.socket, FORM, group=f"driven-{at}", timeout_s=30.0) for at in range(3)]
    for at, engine in enumerate(made):
        engine.fill(at)
        assert engine.register() is None
    yield made
    for engine in made:
        engine.close()


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


def of(stats: NodeStats, group: str = "", pid: int = 0) -> EngineStats:
    (found,) = [each for each in stats.engines if (each.group == group if group else each.pid == pid)]
    return found


def keys(name: object) -> list[bytes]:
    return make.keys(CHUNKS, name)


@pytest.mark.full
@pytest.mark.timeout(120 + 15 * KILLS)
def test_many_kills_during_copies_lose_nothing_and_leave_nothing(
    emulated: Machine, plane: DeviceRelay, engines: Sequence[Engine], workers: Sequence[Other]
) -> None:
    storing, loading, other = engines
    storer, reader = workers
    own = emulated.runtime.memory_used(emulated.device)
    done(loading.client.store_from(keys("base"), OLD))
    based = loading.blocks(OLD)
    expected = reader.ask(do="blocks", numbers=OLD)["digest"]
    assert reader.ask(do="store", chunks=CHUNKS, blocks=OLD, name=0) == {"result": True}
    stored: list[list[bytes]] = [keys("base")]
    for kill in range(1, KILLS + 1):
        plane.ask("stop_after", nbytes=0)
        store = storing.client.store_from(keys(kill), OLD)
        load = loading.client.load_into(keys("base"), NEW)
        assert load.hits == CHUNKS
        storer.tell(do="store", chunks=CHUNKS, blocks=OLD, name=kill)
        reader.tell(do="retrieve", chunks=CHUNKS, blocks=NEW, name=0)
        plane.wait_stats(
            lambda stats: (
                of(stats, "driven-0").reserved_bytes == CHUNKS * CHUNK_BYTES
                and of(stats, pid=storer.pid).reserved_bytes == CHUNKS * CHUNK_BYTES
                and of(stats, pid=reader.pid).leased_blocks == CHUNKS
            ),
            "all are under way",
        )
        plane.ask("resume_for", nbytes=COPIED * 9 // 10 * (kill - 1) // KILLS)
        assert plane.ask("stopped") == {"stopped": True}
        plane.kill()
        assert emulated.runtime.memory_used(emulated.device) == own  # no other process has what engines exported
        plane.start()
        # The engine has said nothing yet: what it may have to leave alone is not reused.
        wait_for(lambda: other.client.lookup(keys("base")) == CHUNKS, "another one is attached")
        here = other.client.lookup(keys(kill))
        stats = plane.describe()
        assert stats.pool.reserved_bytes == 0
        assert stats.pool.quarantined_bytes == (0 if here else CHUNKS * CHUNK_BYTES)
        # Everybody hears what became of its copy.
        for copy in (store, load):
            done(copy)
            assert copy.ended is not None
            assert copy.ended.code in (None, Code.UNAVAILABLE)
        assert here == (CHUNKS if store.ended.blocks else here)
        if load.ended.blocks:
            assert loading.blocks(NEW) == based
        storer.hear()
        read = reader.hear()["result"]
        if read:
            assert reader.ask(do="blocks", numbers=NEW)["digest"] == expected
        # They go on.
        stored.append(keys(kill))
        wait_for(lambda: store_again(storing, stored[-1]), "it stores again")
        wait_for(lambda: done(loading.client.load_into(keys("base"), NEW)).ended.blocks, "it loads again")
        assert loading.blocks(NEW) == based
        assert storer.ask(do="store", chunks=CHUNKS, blocks=OLD, name=kill) == {"result": True}
        assert reader.ask(do="retrieve", chunks=CHUNKS, blocks=NEW, name=0) == {"result": True}
        assert reader.ask(do="blocks", numbers=NEW)["digest"] == expected
        assert [other.client.lookup(each) for each in stored] == [CHUNKS] * len(stored)
        after = plane.wait_stats(lambda stats: not leased(stats), "nothing is leased")
        assert after.pool.used_bytes == after.pool.ready_bytes == 2 * (kill + 1) * CHUNKS * CHUNK_BYTES
    for chain in stored:
        assert done(other.client.load_into(chain, NEW)).hits == CHUNKS
        assert other.blocks(NEW) == (based if chain == keys("base") else storing.blocks(OLD))
    for engine in engines:
        engine.client.unregister_cache()
    for worker in workers:
        worker.ask(do="unregister")
    wait_for(lambda: not plane.mappings(f"larder-emulated-{emulated.uuid}"), "no handle is open")
    wait_for(lambda: not plane.mappings("larder-segment"), "nothing of the pool is registered")


def store_again(engine: Engine, chain: list[bytes]) -> bool:
    """Whether all of a chain is there now, by this engine's word."""
    store = done(engine.client.store_from(chain, OLD))
    return engine.client.lookup(chain) == CHUNKS and store.ended is not None and store.ended.code is None


@pytest.mark.parametrize("do", ["begin_store", "load"])
def test_bytes_copied_for_a_dead_engine_are_freed_at_once(emulated: Machine, plane: DeviceRelay, do: str) -> None:
    arguments = {"kind": emulated.kind, "uuid": emulated.uuid, "socket": plane.socket, **FORM}
    dying = Process("engine", arguments)
    assert dying.hear() == {"ready": True}
    assert dying.ask(do="register") == {"code": None}
    assert dying.ask(do="store", keys=[each.hex() for each in keys("base")], blocks=OLD) == {"blocks": CHUNKS}
    plane.ask("stop_after", nbytes=100_000)
    name = "new" if do == "begin_store" else "base"
    dying.tell(do=do, keys=[each.hex() for each in keys(name)], blocks=OLD)
    assert plane.ask("stopped") == {"stopped": True}
    plane.kill()
    dying.kill()
    assert emulated.runtime.memory_used(emulated.device) == 0
    plane.start()
    stats = plane.wait_stats(lambda stats: not any(each.is_engine for each in stats.engines), "the engine is forgotten")
    assert stats.pool.used_bytes == stats.pool.ready_bytes == CHUNKS * CHUNK_BYTES
    other = make_engine(emulated, plane.socket, FORM, timeout_s=30.0)
    assert other.register() is None
    assert other.client.lookup(keys("new")) == 0
    assert done(other.client.load_into(keys("base"), NEW)).hits == CHUNKS
    wait_for(lambda: store_again(other, keys("new")), "its keys are free")
    other.close()

"""Pins of the tier `gpu`, a data plane that copies their blocks to the device, and engines that load them from there.

Where it matters that the bytes came from a GPU copy, the pool's are overwritten before the load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pins import GpuCopyPoolStats
from tests.dataplane import factories as make
from tests.dataplane.plane import wait_for
from tests.gpu.device_plane import DevicePlane
from tests.gpu.layouts import layout
from tests.gpu.machines import Bytes, Machine
from tests.gpu.paged_engine import BLOCKS, KEYS, KIND, PAGE_BYTES, PagedEngine, Process
from tests.gpu.paged_memory import NEW, OLD

MakePlane = Callable[..., DevicePlane]
MakeEngine = Callable[..., PagedEngine]
Start = Callable[..., Process]


@pytest.fixture
def make_plane(socket_dir: Path) -> Iterator[MakePlane]:
    """Data planes with room for GPU copies, in one folder; their accounts are consistent at the end."""
    made: list[DevicePlane] = []

    def new(machine: Machine, **settings: str) -> DevicePlane:
        expected = {
            "pool_bytes": "64MiB",
            "dataplane__segment_bytes": "16MiB",
            "dataplane__gpu_pool_bytes": "64MiB",
            "dataplane__pin_budget_ratio": "0.8",
            **settings,
        }
        made.append(DevicePlane(socket_dir, expected).begin(machine))
        return made[-1]

    yield new
    for each in made:
        if each.other.process.poll() is None:
            each.describe()
            each.kill()


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    made: list[PagedEngine] = []

    def new(
        plane: DevicePlane, name: str = KIND, dtype: str = "float16", page_bytes: int = PAGE_BYTES, **options: Any
    ) -> PagedEngine:
        kind = layout(name, dtype, page_bytes, blocks=BLOCKS)
        made.append(PagedEngine(plane.machine, plane.socket, kind, **options))
        return made[-1]

    yield new
    for each in made:
        each.close()


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Process] = []

    def new(plane: DevicePlane, **arguments: Any) -> Process:
        made.append(Process(plane.machine, plane.socket, **arguments))
        return made[-1]

    yield new
    for each in made:
        if each.process.poll() is None:
            each.kill()


def pin(plane: DevicePlane, *keys: bytes, generation: int = 1) -> None:
    """Have GPU copies of these blocks, and of no others."""
    snapshot, bodies = make.pins([make.pin("hot", keys, model="gpu", tier="gpu")] if keys else [], generation)
    with plane.manager() as manager:
        manager.push(snapshot, bodies)


def gpu_copies(plane: DevicePlane, count: int) -> NodeStats:
    """Wait until there are so many."""
    return plane.wait_stats(
        lambda stats: sum(pool.gpu_copies for pool in stats.gpu_copy_pools) == count,
        f"there are {count} GPU copies",
        30.0,
    )


def pool_of(stats: NodeStats) -> GpuCopyPoolStats:
    (pool,) = stats.gpu_copy_pools
    return pool


@dataclass
class Pinned:
    """An engine whose three chunks are pinned, and have GPU copies."""

    plane: DevicePlane
    engine: PagedEngine
    content: Bytes

    def loads_from_gpu_copies(self) -> bool:
        return loads_from_gpu_copies(self.engine, self.content)


@pytest.fixture
def pinned(emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine) -> Pinned:
    plane = make_plane(emulated)
    pin(plane, *KEYS)
    engine = make_engine(plane)
    content = engine.fill(1)
    assert engine.store() == 3
    gpu_copies(plane, 3)
    return Pinned(plane, engine, content)


def loads_from_gpu_copies(engine: PagedEngine, content: Bytes, chunks: int = 3) -> bool:
    """So many chunks come from there, and what is loaded is whole. The first loads may not wait for a busy node."""
    engine.fill(99)
    wait_for(lambda: engine.load() == (True, chunks), "it reads GPU copies")
    return engine.holds(content, OLD, NEW)


@pytest.mark.parametrize(
    "form",
    [
        ("keys and values first, NHD", "float16", 16 << 10),
        ("fused, BHLNC", "bfloat16", 32 << 10),
        ("latent attention", "float8_e4m3fn", 64 << 10),
    ],
    ids=lambda form: form[0],
)
def test_pinned_chunks_are_loaded_out_of_gpu_copies(
    machine: Machine, make_plane: MakePlane, make_engine: MakeEngine, form: tuple[str, str, int]
) -> None:
    plane = make_plane(machine)
    engine = make_engine(plane, *form)
    content = engine.fill(1)
    assert engine.store() == 3
    pin(plane, *KEYS)  # what is there already is copied as well
    gpu_copies(plane, 3)
    engine.poison()
    assert loads_from_gpu_copies(engine, content)


def test_chunks_without_gpu_copies_come_from_the_pool_in_the_same_load(
    machine: Machine, make_plane: MakePlane, make_engine: MakeEngine
) -> None:
    plane = make_plane(machine)
    pin(plane, KEYS[0], KEYS[2])
    engine = make_engine(plane)
    content = engine.fill(1)
    engine.store()
    gpu_copies(plane, 2)
    assert loads_from_gpu_copies(engine, content, 2)
    engine.poison()
    for low, high, chunks in ((0, 48, 2), (5, 37, 2), (0, 1, 1), (20, 48, 1), (17, 30, 0), (47, 48, 1)):
        engine.fill(3)
        before = engine.machine.download(engine.address, engine.kind.nbytes)
        assert engine.load(NEW[low:high], first=low) == (True, chunks)
        pinned = [at for at in range(low, high) if at // 16 != 1]
        assert engine.holds(content, [OLD[at] for at in pinned], [NEW[at] for at in pinned])
        assert engine.poisoned([NEW[at] for at in range(low, high) if at // 16 == 1])
        others = sorted(set(range(BLOCKS)) - set(NEW[low:high]))
        assert engine.holds(before, others, others)
    assert engine.load([], first=5) == (True, 0)


def test_two_engines_read_the_same_gpu_copies(
    machine: Machine, make_plane: MakePlane, make_engine: MakeEngine, start: Start
) -> None:
    plane = make_plane(machine)
    pin(plane, *KEYS)
    one = make_engine(plane)
    content = one.fill(1)
    one.store()
    two = start(plane)
    stats = gpu_copies(plane, 3)
    expected = one.digest(OLD)
    one.poison()
    assert two.ask(do="load_gpu_copies") == {"digest": expected}
    assert loads_from_gpu_copies(one, content)
    plane.wait_stats(lambda stats: pool_of(stats).readers == 2, "both read")
    assert pool_of(stats).copied_blocks == 3  # once for both
    two.kill()
    plane.wait_stats(lambda stats: pool_of(stats).readers == 1, "one is forgotten")
    assert loads_from_gpu_copies(one, content)


def test_a_node_without_room_for_gpu_copies_reports_it_once_and_serves_from_the_pool(
    machine: Machine, make_plane: MakePlane, make_engine: MakeEngine
) -> None:
    plane = make_plane(machine, dataplane__gpu_pool_bytes="0")
    pin(plane, *KEYS)
    engine = make_engine(plane)
    content = engine.fill(1)
    engine.store()
    for _ in range(3):
        engine.fill(2)
        assert engine.load() == (True, 0)
        assert engine.holds(content, OLD, NEW)
    stats = plane.describe()
    assert stats.gpu_copy_pools == []
    assert len(stats.engines) == 1


def test_an_engine_killed_during_a_load_holds_its_gpu_copies_until_it_is_gone(pinned: Pinned, start: Start) -> None:
    plane = pinned.plane
    dying = start(plane)
    dying.ask(do="load_gpu_copies")
    assert dying.ask(do="stop_during_load") == {"gpu_copies": 3}
    pin(plane, generation=2)
    stats = gpu_copies(plane, 0)
    assert pool_of(stats).leaving_bytes  # its lease keeps them
    assert pool_of(stats).used_bytes
    dying.kill()
    plane.wait_stats(lambda stats: not pool_of(stats).used_bytes, "the memory comes back with its death")
    pin(plane, *KEYS, generation=3)
    gpu_copies(plane, 3)
    assert pinned.loads_from_gpu_copies()


def test_a_load_survives_the_kill_of_the_data_plane_and_the_next_one_has_its_own_gpu_copies(
    pinned: Pinned, make_plane: MakePlane
) -> None:
    engine = pinned.engine
    assert pinned.loads_from_gpu_copies()
    engine.poison()
    engine.fill(2)
    load = engine.stopped_load()
    assert load.gpu_copies == 3
    pinned.plane.kill()
    engine.resume()
    assert load.finish()
    assert engine.holds(pinned.content, OLD, NEW)

    def missed() -> bool:
        engine.client.lookup(KEYS)
        return not engine.client.connected

    wait_for(missed, "the first one is missed")
    assert engine.load() == (True, 0)
    assert engine.poisoned(NEW)
    second = make_plane(engine.machine)
    wait_for(lambda: engine.client.lookup(KEYS) == 0 and engine.client.connected, "it attaches again")
    content = engine.fill(3)
    assert engine.store() == 3
    wait_for(lambda: engine.opened() == 0, "the copies of the first one are closed")
    pin(second, *KEYS)
    gpu_copies(second, 3)
    engine.poison()
    assert loads_from_gpu_copies(engine, content)
    assert engine.opened() > 0


def test_memory_that_is_given_up_comes_back_when_an_idle_engine_copies_again(pinned: Pinned, emulated: Machine) -> None:
    plane, engine = pinned.plane, pinned.engine
    assert pinned.loads_from_gpu_copies()
    taken = emulated.runtime.memory_used(emulated.device)
    pin(plane, generation=2)
    gpu_copies(plane, 0)
    stats = plane.wait_stats(lambda stats: pool_of(stats).leaving_bytes, "the extent is to go")
    assert pool_of(stats).used_bytes  # it is charged until then
    assert emulated.runtime.memory_used(emulated.device) == taken
    engine.fill(2)

    def copies() -> bool:
        assert engine.load() == (True, 0)
        return not pool_of(plane.describe()).used_bytes

    wait_for(copies, "the memory is back")
    assert engine.holds(pinned.content, OLD, NEW)
    wait_for(lambda: emulated.runtime.memory_used(emulated.device) < taken, "no process maps it")
    pin(plane, *KEYS, generation=3)
    gpu_copies(plane, 3)
    assert pinned.loads_from_gpu_copies()


def test_an_engine_that_is_taken_up_again_keeps_its_extents_and_tells_when_they_are_closed(pinned: Pinned) -> None:
    engine = pinned.engine
    assert pinned.loads_from_gpu_copies()
    link, opened = engine.client._link, engine.opened()

    def attach_again() -> None:
        with link.lock:
            link.drop("a test")
        wait_for(lambda: engine.client.lookup(KEYS) == 3 and engine.client.connected, "it is attached again")
        engine.cache.load(engine.client.acquire([]), []).finish()

    attach_again()
    assert (link.attachments, engine.client._memory.planes) == (2, 1)
    assert engine.opened() == opened > 0
    assert pinned.loads_from_gpu_copies()
    attach_again()
    pin(pinned.plane, generation=2)
    gpu_copies(pinned.plane, 0)

    def given_back() -> bool:
        engine.load()
        return pool_of(pinned.plane.wait_stats(lambda stats: True, "they come", 30.0)).used_bytes == 0

    wait_for(given_back, "the memory of GPU copies is given back")
    wait_for(lambda: engine.opened() == 0, "all is closed")

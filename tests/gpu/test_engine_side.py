"""Engines that copy by themselves: their paged memory to the pool and back, layer by layer, and what is left when
something fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dataplane.client import Code
from tests.dataplane.plane import Plane, wait_for
from tests.gpu.layouts import ORDERS, layout
from tests.gpu.machines import Machine
from tests.gpu.paged_engine import KEYS, KIND, PagedEngine, Process
from tests.gpu.paged_memory import NEW, OLD

Make = Callable[..., PagedEngine]


@pytest.fixture
def plane(socket_dir: Path) -> Iterator[Plane]:
    plane = Plane(socket_dir, {"pool_bytes": "64MiB", "dataplane__segment_bytes": "8MiB"}).start()
    yield plane
    plane.kill()


@pytest.fixture
def make_engine(plane: Plane, machine: Machine) -> Iterator[Make]:
    made: list[PagedEngine] = []

    def new(name: str = KIND, dtype: str = "float16", group: str = "", layers: int = 2) -> PagedEngine:
        made.append(PagedEngine(machine, plane.socket, layout(name, dtype, 16 << 10, layers, blocks=80), group))
        return made[-1]

    yield new
    for engine in made:
        engine.close()


@pytest.fixture
def engine(plane: Plane, emulated: Machine) -> Iterator[PagedEngine]:
    engine = PagedEngine(emulated, plane.socket, layout(KIND, "float16", 16 << 10, blocks=80))
    yield engine
    engine.close()


@pytest.mark.parametrize("name", ORDERS)
def test_chunks_come_back_into_other_blocks(make_engine: Make, name: str) -> None:
    engine = make_engine(name)
    content = engine.fill(1)
    assert engine.store() == 3
    engine.fill(2)
    assert engine.load() == (True, 0)
    assert engine.holds(content, OLD, NEW)
    assert not engine.cache.staged


def test_a_load_begins_and_ends_within_chunks(make_engine: Make) -> None:
    engine = make_engine()
    content = engine.fill(1)
    engine.store()
    engine.fill(2)
    before = engine.machine.download(engine.address, engine.kind.nbytes)
    assert engine.load(NEW[5:37], first=5) == (True, 0)
    assert engine.holds(content, OLD[5:37], NEW[5:37])
    others = sorted(set(range(80)) - set(NEW[5:37]))
    assert engine.holds(before, others, others)


def test_layers_go_one_by_one_behind_the_engine_s_events(make_engine: Make) -> None:
    engine = make_engine()
    content = engine.fill(1)
    compute = engine.machine.runtime.stream(engine.machine.device)
    with (
        engine.client.reserve(KEYS, engine.cache.chunk_bytes) as reservation,
        engine.cache.store(reservation, OLD) as store,
    ):
        for number in range(engine.cache.layers):
            computed = engine.cache.event()
            compute.record(computed)
            store.layer(number, computed)
        assert store.finish().blocks == 3
    engine.fill(2)
    load = engine.begin_load()
    for number in range(engine.cache.layers):
        assert load.wait_layer(number, compute)
    compute.synchronize()
    assert all(load.arrived(number) for number in range(engine.cache.layers))
    assert not load.wait_layer(engine.cache.layers, compute)
    assert load.finish()
    assert engine.holds(content, OLD, NEW)
    compute.close()


@pytest.mark.parametrize("waited", [0, 1, 7, 12])
def test_layers_that_are_enqueued_late_come_too_and_none_after_the_end(make_engine: Make, waited: int) -> None:
    engine = make_engine(layers=12)
    content = engine.fill(1)
    engine.store()
    engine.fill(2)
    compute = engine.machine.runtime.stream(engine.machine.device)
    load = engine.begin_load()
    for number in range(waited):
        assert load.wait_layer(number, compute)
    assert load.finish()
    assert engine.holds(content, OLD, NEW)
    after = engine.fill(3)
    assert not load.wait_layer(0, compute)
    assert not load.arrived(11)
    assert not load.finish()
    engine.cache.synchronize()
    assert np.array_equal(engine.machine.download(engine.address, engine.kind.nbytes), after)
    compute.close()


def test_two_engines_use_one_pool(make_engine: Make) -> None:
    one, two = make_engine(group="one"), make_engine(group="two")
    content = one.fill(1)
    assert one.store() == 3
    two.fill(2)
    assert two.cache.load(two.client.acquire(KEYS), NEW).finish()
    assert two.holds(content, OLD, NEW)
    assert two.store() == 0  # all there


def test_a_store_without_some_layer_publishes_nothing(make_engine: Make) -> None:
    engine = make_engine()
    store = engine.cache.store(engine.client.reserve(KEYS, engine.cache.chunk_bytes), OLD)
    store.layer(0)
    assert store.finish().code is Code.UNAVAILABLE
    assert engine.client.lookup(KEYS) == 0
    assert engine.store() == 3


@pytest.mark.parametrize("wrong", [[80], [-1], [1] * 49])
def test_block_numbers_that_cannot_be_are_refused(make_engine: Make, plane: Plane, wrong: list[int]) -> None:
    engine = make_engine()
    engine.store()
    lease = engine.client.acquire(KEYS)
    with pytest.raises(ValueError, match="blocks"):
        engine.cache.load(lease, wrong)
    with pytest.raises(ValueError, match="blocks"):
        engine.cache.store(engine.client.reserve(KEYS, engine.cache.chunk_bytes), wrong[:3])
    lease.release()
    with pytest.raises(ValueError, match="released"):
        engine.cache.load(lease, OLD)
    assert engine.cache.load(engine.client.acquire(KEYS), OLD).finish()


class TestFailures:
    @pytest.mark.parametrize("operation", ["copy", "copying"])
    def test_a_store_that_fails_ends_its_reservation(self, engine: PagedEngine, plane: Plane, operation: str) -> None:
        engine.fill(1)
        engine.machine.emulator.fail(operation)
        reservation = engine.client.reserve(KEYS, engine.cache.chunk_bytes)
        committed = engine.cache.store(reservation, OLD).all().finish()
        assert committed.code is Code.UNAVAILABLE
        wait_for(lambda: plane.describe().pool.used_bytes == 0, "the reservation is aborted")
        assert engine.client.lookup(KEYS) == 0
        assert engine.store() == 3

    @pytest.mark.parametrize("operation", ["copy", "copying", "event"])
    def test_a_load_that_fails_lets_its_lease_go(self, engine: PagedEngine, plane: Plane, operation: str) -> None:
        content = engine.fill(1)
        engine.store()
        engine.machine.emulator.fail(operation)
        load = engine.begin_load()
        assert not load.finish()
        wait_for(lambda: plane.describe().engines[0].leased_blocks == 0, "the lease is released")
        assert engine.load() == (True, 0)
        assert engine.holds(content, OLD, NEW)

    def test_a_pool_that_cannot_be_registered_is_staged_and_reported_once(
        self, engine: PagedEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        content = engine.fill(1)
        engine.machine.emulator.fail("register", "cudaErrorMemoryAllocation")
        with caplog.at_level(logging.WARNING, "larder.client"):
            assert engine.store() == 3
            assert engine.load() == (True, 0)
        assert engine.holds(content, OLD, NEW)
        assert engine.cache.staged
        assert [each for each in caplog.text.splitlines() if "staging" in each].__len__() == 1

    def test_leaving_a_store_waits_for_its_copies_and_ends_the_reservation(
        self, engine: PagedEngine, plane: Plane
    ) -> None:
        with engine.cache.store(engine.client.reserve(KEYS, engine.cache.chunk_bytes), OLD) as store:
            store.all()
        wait_for(lambda: plane.describe().pool.used_bytes == 0, "the reservation is aborted")

    def test_a_data_plane_killed_during_a_copy_fails_the_store_and_nothing_else(
        self, engine: PagedEngine, plane: Plane
    ) -> None:
        engine.fill(1)
        store = engine.stopped_store()
        plane.kill()
        engine.resume()
        assert store.finish().blocks == 0
        plane.start()
        wait_for(lambda: engine.client.lookup(KEYS) == 0 and engine.client.connected, "it attaches again")
        content = engine.fill(3)
        assert engine.store() == 3
        assert engine.load() == (True, 0)
        assert engine.holds(content, OLD, NEW)

    def test_an_engine_killed_during_its_copy_leaves_no_block(self, emulated: Machine, plane: Plane) -> None:
        other = Process(emulated, plane.socket)
        other.ask(do="stop_during_store")
        assert plane.describe().pool.used_bytes
        other.kill()
        wait_for(lambda: plane.describe().pool.used_bytes == 0, "its blocks come back with its death")
        assert emulated.runtime.memory_used(emulated.device) == 0

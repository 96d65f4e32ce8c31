"""Engines and data planes that end in the middle of a copy: nothing half-made is read, and nothing stays open."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dataplane.protocol.codes import Code, ReserveOutcome
from tests.dataplane import factories as make
from tests.dataplane.plane import wait_for
from tests.driven.conftest import DrivenPlane
from tests.driven.engines import Engine, Process, done
from tests.driven.roles import DYING, STORED, dying_keys
from tests.gpu.machines import Machine
from tests.gpu.test_gateway import CYCLES
from tests.sizes import size

MakePlane = Callable[..., DrivenPlane]
MakeEngine = Callable[..., Engine]
Start = Callable[..., Process]
OLD, NEW = list(range(16)), list(range(20, 36))
KEYS = make.keys(1)
HEX = [each.hex() for each in KEYS]


def opened(plane: DrivenPlane) -> int:
    """Bytes of device memory that the data plane maps."""
    with open(f"/proc/{plane.pid}/maps", encoding="utf-8") as maps:
        return sum(f"memfd:larder-emulated-{plane.machine.device.uuid}" in line for line in maps)


def mapped(plane: DrivenPlane) -> int:
    """Segments of the pool that it maps."""
    with open(f"/proc/{plane.pid}/maps", encoding="utf-8") as maps:
        return sum("memfd:larder-segment" in line for line in maps)


def test_nothing_is_published_for_an_engine_killed_during_its_store(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine, start: Start
) -> None:
    plane = make_plane(emulated)
    dying = start(emulated, "engine", plane)
    assert dying.ask(do="register") == {"code": None}
    plane.ask("stop_after", nbytes=100_000)
    assert dying.ask(do="begin_store", keys=HEX, blocks=OLD)["outcomes"] == [ReserveOutcome.WRITE]
    assert plane.ask("stopped") == {"stopped": True}
    dying.kill()
    # The copy still runs: its bytes are not reused, and the engine's memory is held.
    stats = plane.describe()
    assert stats.pool.used_bytes
    assert opened(plane)
    plane.ask("resume")
    plane.wait_stats(lambda stats: not stats.engines and not stats.pool.used_bytes, "the engine is forgotten")
    wait_for(lambda: not opened(plane) and not mapped(plane), "everything is closed")
    other = make_engine(emulated, plane)
    other.register()
    assert other.client.lookup(KEYS) == 0
    assert done(other.client.store_from(KEYS, OLD)).outcomes.tolist() == [ReserveOutcome.WRITE]
    assert other.client.lookup(KEYS) == 1


def test_leases_are_released_when_an_engine_is_killed_during_its_load(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine, start: Start
) -> None:
    plane = make_plane(emulated, pool_bytes="2MiB", dataplane__segment_bytes="2MiB")
    other = make_engine(emulated, plane)
    other.register()
    assert done(other.client.store_from(KEYS, OLD)).outcomes.tolist() == [ReserveOutcome.WRITE]
    dying = start(emulated, "engine", plane)
    assert dying.ask(do="register") == {"code": None}
    plane.ask("stop_after", nbytes=100_000)
    dying.tell(do="load", keys=HEX, blocks=NEW)
    assert plane.ask("stopped") == {"stopped": True}
    dying.kill()
    with other.client.reserve(make.keys(2, "others"), other.chunk_bytes) as reservation:
        assert len(reservation.writable) == 1  # the block that is being read is not evicted
    plane.ask("resume")
    plane.wait_stats(lambda stats: len(stats.engines) == 1, "the engine is forgotten")
    with other.client.reserve(make.keys(2, "others"), other.chunk_bytes) as reservation:
        assert len(reservation.writable) == 2


def test_an_engine_outlives_a_data_plane_that_is_killed_during_its_copies(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine
) -> None:
    first = make_plane(emulated)
    engine = make_engine(emulated, first)
    engine.register()
    engine.fill(1)
    expected = engine.blocks(OLD)
    first.ask("stop_after", nbytes=100_000)
    store = engine.client.store_from(KEYS, OLD)
    assert first.ask("stopped") == {"stopped": True}
    assert not store.poll()
    first.kill()
    done(store)
    assert store.ended is not None
    assert (store.ended.blocks, store.ended.code) == (0, Code.UNAVAILABLE)
    assert engine.client.store_from(KEYS, OLD).outcomes.tolist() == [Code.UNAVAILABLE]
    make_plane(emulated)
    # It attaches and registers again by itself.
    wait_for(lambda: done(engine.client.store_from(KEYS, OLD)).ended.blocks == 1, "the next one stores")
    assert done(engine.client.load_into(KEYS, NEW)).hits == 1
    assert engine.blocks(NEW) == expected


@pytest.mark.full
def test_a_copy_with_a_lost_connection_ends_once_no_copying_is_certain(plane: DrivenPlane, engine: Engine) -> None:
    done(engine.client.store_from(KEYS, OLD))
    plane.ask("stop_after", nbytes=100_000)
    load = engine.client.load_into(KEYS, NEW)
    assert plane.ask("stopped") == {"stopped": True}
    engine.client._link.drop("a test")
    assert not load.wait(0.2)
    plane.ask("resume")
    done(load)
    assert load.ended is not None
    assert load.ended.code is Code.UNAVAILABLE
    wait_for(lambda: done(engine.client.load_into(KEYS, NEW)).ended.blocks == 1, "it attaches and loads again")


def test_a_client_that_closes_during_a_copy_waits_for_it(plane: DrivenPlane, engine: Engine) -> None:
    event = engine.pending()
    store = engine.client.store_from(KEYS, OLD, event=event)
    engine.client.close()
    assert store.ended is not None
    assert store.ended.blocks == 0
    plane.wait_stats(lambda stats: not stats.engines and not stats.pool.used_bytes, "the engine is forgotten")
    wait_for(lambda: not opened(plane) and not mapped(plane), "everything is closed")


def test_memory_is_closed_when_an_engine_unregisters(plane: DrivenPlane, engine: Engine) -> None:
    done(engine.client.store_from(KEYS, OLD))
    assert opened(plane) == 1  # for all tensors together
    engine.client.unregister_cache()
    assert not opened(plane)
    wait_for(lambda: not mapped(plane), "the pool is no longer registered")
    with pytest.raises(ValueError, match="no cache is registered"):
        engine.client.store_from(KEYS, OLD)
    assert engine.register() is None
    assert done(engine.client.load_into(KEYS, NEW)).hits == 1


def test_a_copy_that_fails_publishes_nothing(plane: DrivenPlane, engine: Engine) -> None:
    for operation in ("copy", "copying", "open_event"):
        plane.ask("fail", operation=operation)
        store = done(engine.client.store_from(KEYS, OLD, event=engine.event()))
        assert store.ended is not None
        assert (store.ended.blocks, store.ended.code) == (0, Code.COPY_FAILED)
        assert "provoked" in store.ended.message
        assert engine.client.lookup(KEYS) == 0
        assert not plane.describe().pool.used_bytes
    done(engine.client.store_from(KEYS, OLD))
    plane.ask("fail", operation="copying")
    load = done(engine.client.load_into(KEYS, NEW))
    assert load.ended is not None
    assert load.ended.code is Code.COPY_FAILED
    assert done(engine.client.load_into(KEYS, NEW)).ended.blocks == 1


def test_copies_go_through_a_staging_buffer_where_the_pool_cannot_be_registered(
    plane: DrivenPlane, engine: Engine
) -> None:
    engine.fill(1)
    plane.ask("fail", operation="register", name="cudaErrorMemoryAllocation")
    done(engine.client.store_from(KEYS, OLD))
    assert done(engine.client.load_into(KEYS, NEW)).hits == 1
    assert engine.blocks(NEW) == engine.blocks(OLD)


def test_a_data_plane_stops_during_copies(plane: DrivenPlane, engine: Engine) -> None:
    store = engine.client.store_from(KEYS, OLD, event=engine.pending())
    plane.other.process.terminate()
    assert plane.other.process.wait(60) == 0
    done(store)
    assert store.ended is not None
    assert store.ended.blocks == 0


def cycles(emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine, start: Start, count: int) -> None:
    """So many engines attach, register, store and die; then nothing is left of them, as it was before."""
    plane = make_plane(emulated, pool_bytes="4MiB", dataplane__segment_bytes="2MiB")
    user = make_engine(emulated, plane)
    user.register()

    def state() -> tuple[int, int, int]:
        return plane.open_fds(), threads(plane), emulated.runtime.memory_used(emulated.device)

    def die(number: int) -> None:
        role = start(emulated, "short_lived_engines", plane, count=number)
        assert role.ask() == {"failed": 0}
        role.kill()
        plane.wait_stats(lambda stats: len(stats.engines) == 1, "engines are forgotten")
        wait_for(lambda: opened(plane) == 1, "memory is closed")

    die(20)
    before = state()
    die(count)
    wait_for(lambda: all(now <= then for now, then in zip(state(), before, strict=True)), "nothing has grown")


def test_engines_killed_during_copies_leave_whole_chunks_and_nothing_else(
    machine: Machine, make_plane: MakePlane, make_engine: MakeEngine, start: Start
) -> None:
    plane = make_plane(machine, pool_bytes="256MiB")
    witness = make_engine(machine, plane, **DYING)
    witness.register()
    dying = start(machine, "dying_engines", plane, count=CYCLES, together=8)
    used = machine.runtime.memory_used(machine.device)
    assert dying.ask(go=True) == {"failed": 0}
    stats = plane.wait_stats(lambda stats: len(stats.engines) == 1, "engines are forgotten")
    assert stats.pool.quarantined_bytes == 0
    wait_for(
        lambda: machine.runtime.memory_used(machine.device) <= used + machine.slack_bytes,
        "the memory of all of them is closed",
    )
    whole = 0
    for number in range(CYCLES):
        loaded = done(witness.client.load_into(dying_keys(number), STORED)).hits
        assert loaded in (0, len(dying_keys(number)))  # a store publishes all of its chunks, or none
        if loaded:
            whole += 1
            content = np.random.default_rng(number).integers(0, 256, witness.kind.nbytes, np.uint8)
            assert witness.blocks(STORED) == witness.blocks(STORED, content)
    assert whole  # engines with odd numbers were killed after their stores had ended


def threads(plane: DrivenPlane) -> int:
    with open(f"/proc/{plane.pid}/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_thousand_engines_come_and_die(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine, start: Start
) -> None:
    cycles(emulated, make_plane, make_engine, start, size(1000, 100))


def test_a_registration_that_is_answered_late_counts(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine
) -> None:
    """A new connection's registration waits for what is copied for the one before it."""
    plane = make_plane(emulated)
    engine = make_engine(emulated, plane, timeout_s=2.0)
    engine.register()
    engine.fill(1)
    plane.ask("stop_after", nbytes=100_000)
    store = engine.client.store_from(KEYS, OLD)
    assert plane.ask("stopped") == {"stopped": True}
    engine.client._link.drop("a test")
    refused = wait_for(lambda: late(engine), "it attaches again")
    assert refused is Code.TIMEOUT
    plane.ask("resume")
    done(store)
    assert store.ended is not None
    assert store.ended.blocks == 0
    wait_for(lambda: done(engine.client.store_from(KEYS, OLD)).ended.blocks == 1, "it stores again")
    assert done(engine.client.load_into(KEYS, NEW)).hits == 1
    assert engine.blocks(NEW) == engine.blocks(OLD)
    wait_for(lambda: opened(plane) == 1, "the first registration is closed")


def late(engine: Engine) -> Code | None:
    """Why a store is refused, once it is not for want of a connection."""
    ended = engine.client.store_from(KEYS, OLD).ended
    assert ended is not None
    return None if ended.code is Code.UNAVAILABLE else ended.code

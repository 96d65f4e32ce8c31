"""Stores and loads that the data plane makes: every byte, for every layout, and the outcome of each chunk."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dataplane.protocol.codes import Code, ReserveOutcome
from tests.dataplane import factories as make
from tests.driven.conftest import DrivenPlane
from tests.driven.engines import PER_CHUNK, Engine, done
from tests.gpu.layouts import ORDERS
from tests.gpu.machines import Machine

MakePlane = Callable[..., DrivenPlane]
MakeEngine = Callable[..., Engine]
OLD = [*range(1, 17), 20, 19, *range(21, 35)]
NEW = [*reversed(range(40, 72))]


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_chunks_come_back_into_other_blocks(
    machine: Machine, make_plane: MakePlane, make_engine: MakeEngine, name: str, dtype: str
) -> None:
    plane = make_plane(machine)
    engine = make_engine(machine, plane, layout=name, dtype=dtype, blocks=80)
    assert engine.register() is None
    engine.fill(1)
    keys = make.keys(2)
    expected, others = engine.blocks(OLD), engine.others(NEW)
    store = done(engine.client.store_from(keys, OLD, event=engine.event()))
    assert store.outcomes.tolist() == [ReserveOutcome.WRITE] * 2
    assert store.ended is not None
    assert (store.ended.blocks, store.ended.code) == (2, None)
    assert engine.client.lookup(keys) == 2
    load = done(engine.client.load_into(keys, NEW, event=engine.event()))
    assert load.ended is not None
    assert (load.hits, load.ended.blocks, load.ended.code) == (2, 2, None)
    assert engine.blocks(NEW) == expected
    assert engine.others(NEW) == others


def test_leading_blocks_are_skipped(machine: Machine, make_plane: MakePlane, make_engine: MakeEngine) -> None:
    engine = make_engine(machine, make_plane(machine), blocks=80)
    engine.register()
    engine.fill(1)
    keys = make.keys(2)
    done(engine.client.store_from(keys, OLD))
    skip = PER_CHUNK + 3
    expected, others = engine.blocks(OLD[skip:]), engine.others(NEW[skip:])
    assert done(engine.client.load_into(keys, NEW, skip_blocks=skip)).hits == 2
    assert engine.blocks(NEW[skip:]) == expected
    assert engine.others(NEW[skip:]) == others


@pytest.mark.parametrize("name", ["keys and values first, HND", "fused, BLHNC", "latent attention"])
def test_a_load_may_begin_and_end_within_a_chunk(
    machine: Machine, make_plane: MakePlane, make_engine: MakeEngine, name: str
) -> None:
    engine = make_engine(machine, make_plane(machine), layout=name, blocks=80)
    engine.register()
    engine.fill(1)
    keys = make.keys(2)
    done(engine.client.store_from(keys, OLD))
    for skip, count in ((0, PER_CHUNK + 1), (5, PER_CHUNK + 7), (PER_CHUNK + 1, PER_CHUNK + 2)):
        engine.fill(1)
        expected, others = engine.blocks(OLD[skip:count]), engine.others(NEW[skip:count])
        assert done(engine.client.load_into(keys, NEW[:count], skip_blocks=skip)).hits == 2
        assert engine.blocks(NEW[skip:count]) == expected
        assert engine.others(NEW[skip:count]) == others


def test_blocks_beyond_the_hit_are_reported_and_left_unchanged(engine: Engine) -> None:
    engine.fill(1)
    keys = make.keys(2)
    done(engine.client.store_from(keys[:1], OLD[:PER_CHUNK]))
    others = engine.others(NEW[:PER_CHUNK])
    load = done(engine.client.load_into(keys, NEW))
    assert load.hits == 1
    assert engine.blocks(NEW[:PER_CHUNK]) == engine.blocks(OLD[:PER_CHUNK])
    assert engine.others(NEW[:PER_CHUNK]) == others
    nothing = engine.client.load_into(make.keys(1, "others"), NEW[:PER_CHUNK])
    assert nothing.ended is not None
    assert (nothing.hits, nothing.ended.blocks, nothing.ended.code) == (0, 0, None)


def test_blocks_already_in_the_tier_are_not_copied_again(engine: Engine) -> None:
    keys = make.keys(2)
    done(engine.client.store_from(keys[:1], OLD[:PER_CHUNK]))
    again = done(engine.client.store_from(keys, OLD))
    assert again.outcomes.tolist() == [ReserveOutcome.PRESENT, ReserveOutcome.WRITE]
    assert again.ended is not None
    assert again.ended.blocks == 1
    whole = engine.client.store_from(keys, OLD)
    assert whole.outcomes.tolist() == [ReserveOutcome.PRESENT] * 2
    assert whole.ended is not None


def test_two_engines_share_one_pool(emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine) -> None:
    plane = make_plane(emulated)
    one = make_engine(emulated, plane, blocks=40)
    other = make_engine(emulated, plane, blocks=80)  # more blocks, and the same chunks
    assert one.space == other.space
    assert one.register() is None
    assert other.register() is None
    one.fill(1)
    other.fill(2)
    keys = make.keys(2)
    assert done(one.client.store_from(keys, OLD)).outcomes.tolist() == [ReserveOutcome.WRITE] * 2
    assert done(other.client.load_into(keys, NEW)).hits == 2
    assert other.blocks(NEW) == one.blocks(OLD)


def test_blocks_of_the_data_planes_copies_are_those_of_clients(engine: Engine) -> None:
    """Their checksums hold, and a client that copies by itself reads the same bytes."""
    engine.fill(1)
    keys = make.keys(1)
    done(engine.client.store_from(keys, OLD[:PER_CHUNK]))
    with engine.client.acquire(keys) as lease:
        loaded = np.array(lease.array(0))
    with engine.client.reserve(make.keys(1, "again"), engine.chunk_bytes) as reservation:
        reservation.array(0)[:] = loaded
        assert reservation.commit().blocks == 1
    new = list(range(24, 40))
    done(engine.client.load_into(make.keys(1, "again"), new))
    assert engine.blocks(new) == engine.blocks(OLD[:PER_CHUNK])


def test_nothing_is_readable_before_the_copy_is_done(plane: DrivenPlane, engine: Engine) -> None:
    engine.fill(1)
    keys = make.keys(1)
    plane.ask("stop_after", nbytes=100_000)
    store = engine.client.store_from(keys, OLD[:PER_CHUNK])
    assert plane.ask("stopped") == {"stopped": True}
    assert not store.poll()
    assert engine.client.lookup(keys) == 0
    assert plane.describe().pool.reserved_bytes
    plane.ask("resume")
    done(store)
    assert engine.client.lookup(keys) == 1


def test_nothing_is_copied_before_the_engines_event(emulated: Machine, engine: Engine) -> None:
    engine.fill(1)
    keys = make.keys(1)
    store = engine.client.store_from(keys, OLD[:PER_CHUNK], event=engine.pending())
    assert not store.poll()
    emulated.emulator.pace.resume()
    engine.fill(2)
    done(store)


def test_a_load_holds_its_blocks(emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine) -> None:
    plane = make_plane(emulated, pool_bytes="4MiB", dataplane__segment_bytes="2MiB")
    engine = make_engine(emulated, plane, blocks=80)
    engine.register()
    engine.fill(1)
    keys = make.keys(2)
    done(engine.client.store_from(keys, OLD))
    plane.ask("stop_after", nbytes=100_000)
    load = engine.client.load_into(keys, NEW)
    assert load.hits == 2
    plane.ask("stopped")
    with engine.client.reserve(make.keys(4, "others"), engine.chunk_bytes) as reservation:
        assert len(reservation.writable) < 4
        reservation.commit()
    assert engine.client.lookup(keys) == 2
    plane.ask("resume")
    done(load)
    assert engine.blocks(NEW) == engine.blocks(OLD)
    with engine.client.reserve(make.keys(4, "more"), engine.chunk_bytes) as reservation:
        assert len(reservation.writable) == 4


def test_a_full_pool_refuses_part_of_a_driven_store(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine
) -> None:
    engine = make_engine(emulated, make_plane(emulated, pool_bytes="2MiB", dataplane__segment_bytes="2MiB"), blocks=80)
    engine.register()
    store = done(engine.client.store_from(make.keys(5), [*OLD, *OLD, *OLD[:PER_CHUNK]]))
    outcomes = store.outcomes.tolist()
    assert outcomes[0] == ReserveOutcome.WRITE
    assert outcomes[-1] == Code.POOL_FULL
    assert store.ended is not None
    assert store.ended.blocks == outcomes.count(ReserveOutcome.WRITE)


def test_copies_count_as_uses_and_traffic(plane: DrivenPlane, engine: Engine) -> None:
    keys = make.keys(2)
    done(engine.client.store_from(keys, OLD, tenant="team-a"))
    done(engine.client.load_into(keys, NEW))
    stats = plane.describe()
    assert stats.totals.stored_bytes == stats.totals.read_bytes == 2 * engine.chunk_bytes
    (tenant,) = stats.tenants
    assert (tenant.tenant, tenant.stored_blocks, tenant.blocks) == ("team-a", 2, 2)

"""Input that is legal and absurd: each has an outcome that is defined, reported, and ends.

At the size that the names say in a full run (`make full`); otherwise at an eighth of it.
"""

from __future__ import annotations

import numpy as np
import pytest

from dataplane.core.engines.storing import MAX_OPEN_RESERVATIONS
from dataplane.core.stats import node_stats
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.records import QuotaSpec
from dataplane.protocol.layout import A_RING_DROPPED, RING_KIND_SHIFT, pack_keys
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench
from tests.sizes import size
from tests.work import lines_run

PAGE = 4096
SHARE = size(1, 8)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_hundred_thousand_tenants_with_one_block_each() -> None:
    count = 100_000 // SHARE
    bench = Bench(count * PAGE, segment_bytes=64 * make.MIB, max_blocks=1 << 17)
    engine = bench.attach()
    for number in range(count):
        assert engine.store([make.key(number)], PAGE, tenant=f"t{number}").written == 1
    stats = node_stats(bench.node, bench.now)
    assert len(stats.tenants) == 1000
    assert stats.other_tenants is not None
    assert stats.other_tenants.bytes + sum(tenant.bytes for tenant in stats.tenants) == count * PAGE
    assert bench.faults() == []

    def tick_and_store() -> None:
        bench.pass_time(10.0)
        assert engine.store([make.key("one more")], PAGE, tenant="newcomer").written == 1

    assert lines_run(tick_and_store) < 10 * count, "a tick and a store do not walk all tenants at length"
    records = [QuotaSpec(f"t{number}", 8 * PAGE) for number in range(10_000 // SHARE)]
    assert bench.apply(make.shares(*records)) == []
    bench.pass_time(10.0)
    assert bench.tenant("t1").limit_bytes == 8 * PAGE
    fresh = [make.key(("fresh", number)) for number in range(4096)]
    assert engine.store(fresh, PAGE, tenant="newcomer").written == 4096, "room is made among a hundred thousand"
    assert bench.faults() == []


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_million_index_entries() -> None:
    count, piece = (1 << 20) // SHARE, 4096
    bench = Bench(count * PAGE, segment_bytes=1024 * make.MIB, max_blocks=count)
    engine = bench.attach()
    rng = np.random.default_rng(5)
    chains = [[row.tobytes() for row in rng.integers(0, 256, (piece, 32), np.uint8)] for _ in range(count // piece)]
    stored = sum(engine.store(chain, PAGE).written for chain in chains)
    assert stored > 0.999 * count, "at half load two buckets of eight are next to never full"
    assert bench.pool.blocks == stored
    assert sum(engine.lookup(chain) == piece for chain in chains) > 0.9 * len(chains)
    assert engine.lookup([make.key("absent")]) == 0
    for number in range(8):
        chain = [make.key((number, at)) for at in range(piece)]
        done = engine.store(chain, PAGE)
        assert done.written >= piece - 8, done.outcomes
    assert bench.faults() == []


def test_a_pool_full_of_pins_and_leases_refuses_and_opens_again() -> None:
    bench = Bench(64 * PAGE, pin_budget_bytes=32 * PAGE)
    engine, other = bench.attach(), bench.attach()
    pinned, leased = make.keys(32, "pinned"), make.keys(32, "leased")
    snapshot, bodies = make.pins([make.pin("all", pinned)])
    assert bench.apply(snapshot, bodies) == []
    assert engine.store(pinned, PAGE).written == 32
    assert engine.store(leased, PAGE).written == 32
    assert other.acquire(leased) == 32
    refused = engine.store(make.keys(8, "new"), PAGE)
    assert (refused.written, refused.refused) == (0, {Code.POOL_FULL})
    assert bench.refused()["pool_full"] == 8
    assert engine.lookup(pinned) == engine.lookup(leased) == 32
    other.release()
    assert engine.store(make.keys(8, "new"), PAGE).written == 8
    assert engine.lookup(pinned) == 32
    assert bench.apply(*make.pins([], generation=2)) == []
    assert engine.store(make.keys(64, "all new"), PAGE).written == 64
    assert bench.faults() == []


def test_reservations_that_never_end_are_bounded_and_end_with_their_process() -> None:
    bench = Bench(make.MIB, ttl_s=5.0, max_blocks=1024)
    holder, other = bench.attach(pid=7), bench.attach(pid=8)
    outcomes = []
    for number in range(MAX_OPEN_RESERVATIONS + 3):
        granted = holder.reserve(make.keys(1, number), PAGE)
        outcomes.append(int(granted.outcomes[0]))
    assert set(outcomes) == {0, int(Code.TOO_MANY_RESERVATIONS)} or int(Code.POOL_FULL) in outcomes
    assert other.store(make.keys(1, "new"), PAGE).refused == {Code.POOL_FULL}
    bench.pass_time(6.0)
    stats = next(each for each in node_stats(bench.node, bench.now).engines if each.pid == 7)
    assert (stats.reserved_bytes, stats.quarantined_bytes) == (0, make.MIB)
    bench.pass_time(3600.0)
    assert bench.pool.quarantined_bytes == make.MIB, "it may still wake up and write"
    holder.die()
    assert bench.pool.quarantined_bytes == 0
    assert other.store(make.keys(256, "new"), PAGE).written == 256
    assert bench.faults() == []


def test_pins_of_unattached_models_and_spaces_wait_for_them() -> None:
    bench = Bench(8 * make.MIB)
    engine = bench.attach()
    chain = make.keys(4)
    snapshot, bodies = make.pins([make.pin("early", chain, model="to come"), make.pin("here", chain)])
    assert bench.apply(snapshot, bodies) == []
    assert (bench.pin("early").resolved, bench.pin("early").resident) == (4, 0)
    engine.store(chain, PAGE)
    assert (bench.pin("early").resident, bench.pin("here").resident) == (0, 4)
    late = bench.attach(make.space("to come"))
    late.store(chain, PAGE)
    assert (bench.pin("early").resident, bench.pin("early").guaranteed) == (4, 4)
    assert bench.faults() == []


def test_floors_beyond_the_capacity_are_scaled_and_everybody_can_store() -> None:
    bench = Bench(make.MIB)
    engine = bench.attach()
    records = [QuotaSpec(name, floor_bytes=make.MIB) for name in ("a", "b", "c", "d")]
    assert bench.apply(make.shares(*records)) == []
    floors = [bench.tenant(name).effective_floor_bytes for name in ("a", "b", "c", "d")]
    assert sum(floors) <= make.MIB
    assert min(floors) > 0
    assert [bench.tenant(name).floor_bytes for name in ("a", "b")] == [make.MIB, make.MIB], "as it was asked"
    for turn in range(3):
        for name in ("a", "b", "c", "d", "foreign"):
            done = engine.store(make.keys(64, (turn, name)), PAGE, tenant=name)
            if name == "foreign":
                assert done.refused <= {Code.POOL_FULL}
            else:
                assert done.written == 64, (turn, name, done.outcomes)
    assert bench.faults() == []
    assert bench.apply(make.shares(generation=2)) == []
    assert engine.store(make.keys(256, "all"), PAGE, tenant="foreign").written == 256


def test_a_key_twice_in_one_request_is_refused_and_a_chain_of_one_block_often_stored_is_one_block() -> None:
    bench = Bench(make.MIB)
    engine = bench.attach()
    key = make.key("x")
    with pytest.raises(ProtocolError) as error:
        engine.reserve([key, key], PAGE)
    assert error.value.code is Code.BAD_KEYS
    for _ in range(100):
        engine.store([key], PAGE)
    assert bench.pool.blocks == 1
    assert len(pack_keys([key])) == 1


def test_lost_ring_entries_stay_counted_without_their_engine() -> None:
    bench = Bench(make.MIB)
    for _ in range(3):
        engine = bench.attach()
        engine.area.header[A_RING_DROPPED] = 5
        engine.note(77 << RING_KIND_SHIFT, 1)
        bench.pass_time(0.1)
        engine.detach_cleanly()
    totals = node_stats(bench.node, bench.now).totals
    assert (totals.ring_dropped, totals.ring_entries_rejected) == (15, 3)

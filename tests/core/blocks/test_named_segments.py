"""Segments of a gateway's spaces are ranges of one named segment, under the same rules as all others."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.core.blocks.ranges import Ranges
from dataplane.protocol.checksums import checksum
from dataplane.protocol.codes import Code
from dataplane.protocol.control.records import QuotaSpec
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.engine import Commit
from dataplane.protocol.spaces import LMCACHE
from tests.core.gateway import peer, space
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench
from tests.sizes import size

SLOT = 64 << 10


@settings(max_examples=size(25, 10), deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_without_leases_every_reservation_that_fits_succeeds(seed: int) -> None:
    rng = random.Random(seed)
    named = rng.choice([6, 12]) * make.MIB
    bench = Bench(12 * make.MIB, segment_bytes=rng.choice([2, 4, 64]) * make.MIB, max_blocks=8192, named_bytes=named)
    own = bench.attach(make.space())
    gateway = bench.attach(space("a"), space("b"), gateway=LMCACHE, pid=0)
    for step in range(60):
        size = rng.choice([4096, 5000, 65_536, 300_000, 1_000_000, rng.randint(1, 6 * make.MIB)])
        chain = make.keys(rng.randint(1, max(1, min(12, 2 * make.MIB // size))), (seed, step))
        engine, at = rng.choice([(own, 0), (gateway, 0), (gateway, 1)])
        stored = engine.store(chain, size, space=at)
        assert stored.written == len(chain), (step, size, stored.outcomes)


def test_a_pool_in_the_named_segment_alone_holds_as_much_as_another() -> None:
    bench = Bench(64 * SLOT, named_bytes=64 * SLOT)
    engine = peer(bench, space())
    assert engine.store(make.keys(64), SLOT) == 64
    assert sorted(bench.memory.bases.values()) == [0, 32 * SLOT]


def test_no_more_is_stored_in_the_named_segment_than_it_has_and_the_rest_of_the_pool_is_for_others() -> None:
    bench = Bench(128 * SLOT, named_bytes=32 * SLOT)
    engine, own = peer(bench, space()), bench.attach(make.space())
    chain = make.keys(40)
    leased = engine.hold(chain[: engine.store(chain, SLOT)])
    assert len(leased) == 32
    refused = engine.reserve(make.keys(1, "more"), SLOT)
    assert refused.outcomes.tolist() == [Code.POOL_FULL]
    assert own.store(make.keys(96), SLOT).written == 96
    engine.release(leased)
    assert engine.store(make.keys(1, "more"), SLOT) == 1, "it evicts its own"
    assert own.lookup(make.keys(96)) == 96
    assert engine.reserve([make.key("large")], 33 * SLOT).outcomes.tolist() == [Code.TOO_LARGE]


def test_a_gateway_without_a_named_segment_stores_nothing() -> None:
    bench = Bench(32 * SLOT)
    assert peer(bench, space()).reserve([make.key(1)], SLOT).outcomes.tolist() == [Code.TOO_LARGE]


def test_a_large_block_replaces_only_its_neighbours() -> None:
    bench = Bench(64 * make.MIB, segment_bytes=2 * make.MIB, named_bytes=32 * make.MIB)
    small, large = peer(bench, space("small")), peer(bench, space("large"))
    chains = [make.keys(32, number) for number in range(16)]
    for chain in chains:
        bench.now += 1
        small.store(chain, SLOT)
    leased = [small.hold(chains[at][:1], used=False) for at in (0, 4, 8)]
    assert large.store([make.key("large")], 6 * make.MIB) == 1
    gone = [at for at, chain in enumerate(chains) if not small.found(chain)]
    assert gone == [1, 2, 3], "the oldest neighbours without a lease"
    assert large.reserve([make.key("huge")], 16 * make.MIB).outcomes.tolist() == [Code.FRAGMENTED]
    for each in leased:
        small.release(each)


def test_memory_moves_between_spaces_of_a_gateway_and_others() -> None:
    bench = Bench(64 * SLOT, named_bytes=64 * SLOT)
    engine, own = peer(bench, space()), bench.attach(make.space())
    for turn in range(4):
        assert engine.store(make.keys(64, ("theirs", turn)), SLOT) == 64
        assert own.store(make.keys(64, ("ours", turn)), SLOT).written == 64
    assert bench.memory.bases == {}


def test_a_pool_that_grows_grows_for_others_alone() -> None:
    bench = Bench(32 * SLOT, named_bytes=32 * SLOT)
    engine, own = peer(bench, space()), bench.attach(make.space())
    chain = make.keys(32)
    leased = engine.hold(chain[: engine.store(chain, SLOT)])
    bench.node.resize(64 * SLOT, bench.now)
    assert engine.reserve([make.key("more")], SLOT).outcomes.tolist() == [Code.POOL_FULL]
    assert own.store(make.keys(32, "own"), SLOT).written == 32
    engine.release(leased)
    assert engine.store(make.keys(32, "more"), SLOT) == 32
    assert own.lookup(make.keys(32, "own")) == 32


def test_blocks_are_verified_where_they_are() -> None:
    bench = Bench(64 * SLOT, named_bytes=64 * SLOT)
    engine = peer(bench, space())
    granted = engine.reserve(make.keys(4), SLOT)
    right = checksum(bytes(SLOT))
    sums = [right, right, checksum(b"something else"), right]
    engine.core.node.commit(engine.client, Commit(0, granted.reservation, checksums=b"".join(sums)), bench.now)
    state = bench.node.verifying.start(Scope(), bench.now)
    bench.pass_time(1)
    assert (state.checked, state.corrupt) == (4, 1)
    assert engine.found(make.keys(4)) == 2


def test_quotas_bind_tenants_of_a_gateway() -> None:
    bench = Bench(64 * SLOT, named_bytes=64 * SLOT)
    bench.apply(make.shares(QuotaSpec("a", limit_bytes=8 * SLOT), QuotaSpec("b", floor_bytes=16 * SLOT)))
    engine = peer(bench, space())
    chain = make.keys(16, "floor")
    assert engine.store(chain, SLOT, tenant="b") == 16
    for turn in range(20):
        assert engine.store(make.keys(8, ("limit", turn)), SLOT, tenant="a") == 8
        assert engine.store(make.keys(8, ("other", turn)), SLOT, tenant="c") == 8
    assert bench.tenant("a").bytes == 8 * SLOT
    assert engine.found(chain) == 16


def test_pins_hold_in_spaces_of_a_gateway_and_of_others() -> None:
    bench = Bench(64 * SLOT, named_bytes=64 * SLOT, pin_budget_bytes=16 * SLOT)
    engine, own = peer(bench, space()), bench.attach(make.space())
    chain = make.keys(8)
    snapshot, bodies = make.pins([make.pin("p", chain)], 1)
    assert bench.apply(snapshot, bodies) == []
    engine.store(chain, SLOT)
    own.store(chain, SLOT)
    for turn in range(6):
        engine.store(make.keys(40, ("theirs", turn)), SLOT)
        own.store(make.keys(40, ("ours", turn)), SLOT)
    assert own.lookup(chain) == 8
    assert engine.found(chain) == 8


def test_a_refusal_of_memory_by_the_machine_makes_the_gateway_evict_its_blocks() -> None:
    bench = Bench(64 * SLOT, named_bytes=64 * SLOT)
    engine = peer(bench, space())
    engine.store(make.keys(32), SLOT)
    bench.memory.refuse = True
    assert engine.store(make.keys(8, "more"), SLOT) == 8
    leased = engine.hold(make.keys(8, "more"))
    other = bench.node.engines[engine.client]
    assert other.connected
    bench.memory.refuse = False
    assert engine.store(make.keys(24, "again"), SLOT) == 24
    engine.release(leased)


def test_a_full_named_segment_does_not_evict_other_segments() -> None:
    bench = Bench(96 * SLOT, named_bytes=64 * SLOT)
    engine, own = peer(bench, space()), bench.attach(make.space())
    own.store(make.keys(32), SLOT)
    number = own.reserve(make.keys(1, "one"), SLOT).reservation
    own.abort(number)
    bench.node.operator.invalidate(Scope(model=make.MODEL), bench.now)
    bench.pass_time(1)
    before = dict(bench.memory.segments)
    assert before
    assert bench.pool.used_bytes == 0
    bench.memory.refuse = True
    refused = engine.reserve([make.key("x")], SLOT)
    assert refused.outcomes.tolist() == [Code.OUT_OF_MEMORY]
    assert bench.memory.segments == before


def test_ranges_are_given_lowest_first_and_grow_together_again() -> None:
    ranges = Ranges(100)
    for offset, nbytes in ((0, 10), (10, 20), (30, 30)):
        assert ranges.lowest(nbytes) == offset
        ranges.take(offset, nbytes)
    ranges.give(0, 10)
    ranges.give(30, 30)
    assert ranges.free == [(0, 10), (30, 70)]
    assert (ranges.lowest(10), ranges.lowest(11), ranges.lowest(71)) == (0, 30, None)
    ranges.give(10, 20)
    assert ranges.free == [(0, 100)]
    for offset, nbytes in ((-1, 1), (0, 0), (99, 2), (0, 101)):
        with pytest.raises(ValueError, match="are not free"):
            ranges.take(offset, nbytes)
    ranges.take(40, 20)
    with pytest.raises(ValueError, match="are not free"):
        ranges.take(59, 1)


@settings(max_examples=size(200, 50), deadline=None)
@given(cuts=st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=12), expected=st.integers(1, 40))
def test_the_cheapest_neighbours_are_found(cuts: list[tuple[int, bool]], expected: int) -> None:
    total = sum(nbytes for nbytes, _ in cuts)
    ranges = Ranges(total)
    taken: list[tuple[int, int, int]] = []
    at = 0
    for nbytes, is_taken in cuts:
        if is_taken:
            ranges.take(at, nbytes)
            taken.append((at, nbytes, at))
        at += nbytes
    fixed = taken[::3]
    for each in fixed:
        taken.remove(each)
    sizes = {at: nbytes for at, nbytes, _ in taken}
    pieces = sorted([(at, nbytes, nbytes) for at, nbytes, _ in taken] + [(*free, 0) for free in ranges.free])
    costs = []
    for first in range(len(pieces)):
        cost = size = 0
        for last in range(first, len(pieces)):
            if last > first and pieces[last - 1][0] + pieces[last - 1][1] != pieces[last][0]:
                break
            size += pieces[last][1]
            cost += pieces[last][2]
            if size >= expected:
                costs.append(cost)
    found = ranges.cheapest(expected, taken)
    assert (found is None) == (not costs)
    if found is not None:
        assert sum(sizes[at] for at in found) == min(costs)

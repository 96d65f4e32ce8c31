"""Pins of the tier `gpu` have GPU copies: which, for how long, and never at the cost of a wrong byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dataplane.core.gpu_copies.gpu_copies import MAX_REFUSED
from dataplane.protocol.control.records import QuotaSpec, Strength
from dataplane.protocol.engine import SpaceRequest
from dataplane.protocol.events import GpuCopyPoolCreated, GpuCopyPoolFailed
from tests.dataplane import factories as make
from tests.dataplane.bench_device import BenchDevice
from tests.dataplane.bench_node import Bench, BenchEngine

PAGE = 4096
SLOTS = 2 * make.MIB // PAGE
"""Of the smallest extent."""
BIG = 256 * make.KIB
"""Eight of them are the smallest extent."""


MakeBench = Callable[..., tuple[Bench, BenchEngine, BenchDevice]]


@pytest.fixture
def bench_of() -> Iterator[MakeBench]:
    """`bench_of(extents, blocks=256)`: a node, an engine and a device, whose accounts are consistent at the end."""
    made: list[Bench | BenchDevice] = []

    def new(extents: int = 4, *, blocks: int = 256, **options: Any) -> tuple[Bench, BenchEngine, BenchDevice]:
        options.setdefault("pin_budget_bytes", blocks * BIG // 2)
        bench = Bench(blocks * BIG, segment_bytes=2 * make.MIB, **options)
        engine = bench.attach()
        device = BenchDevice(bench, extents * 2 * make.MIB)
        device.read_by(engine)
        made.extend((bench, device))
        return bench, engine, device

    yield new
    assert [fault for each in made for fault in each.faults()] == []


def store_pinned(
    bench: Bench, engine: BenchEngine, device: BenchDevice, blocks: int = 4, name: str = "chain", **fields: Any
) -> list[bytes]:
    """Store a chain that the pin "g" wants on the device, let the device copy it, and return its keys."""
    chain = make.keys(blocks, name)
    engine.store(chain, BIG, tenant=fields.get("tenant", ""))
    bench.apply(*make.pins([make.pin("g", chain, tier="gpu", **fields)]))
    device.run()
    return chain


def test_blocks_of_a_gpu_pin_get_gpu_copies_and_others_do_not(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of()
    pinned, other = make.keys(5, "wanted"), make.keys(5, "other")
    engine.store(pinned, BIG)
    engine.store(other, BIG)
    bench.apply(*make.pins([make.pin("g", pinned, tier="gpu"), make.pin("h", other)]))
    device.run()
    assert device.load(engine, pinned) == [True] * 5
    assert device.load(engine, other) == [False] * 5
    assert (bench.pin("g").tier, bench.pin("g").gpu_copies, bench.pin("g").gpu_copy_bytes) == ("gpu", 5, 5 * BIG)
    assert (bench.pin("h").tier, bench.pin("h").gpu_copies) == ("host", 0)
    stats = device.stats
    assert (stats.gpu_copies, stats.wanted, stats.readers, stats.copied_blocks) == (5, 5, 1, 5)
    assert stats.used_bytes == 2 * make.MIB
    assert len(bench.events(GpuCopyPoolCreated)) == 1


def test_blocks_that_come_later_get_their_gpu_copies_then(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of()
    chain = make.keys(4)
    bench.apply(*make.pins([make.pin("g", chain, tier="gpu")]))
    device.run()
    assert device.stats.wanted == 0
    engine.store(chain, BIG)
    device.run()
    assert device.load(engine, chain) == [True] * 4


def test_a_pin_that_changes_its_tier_gains_and_loses_gpu_copies(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of()
    chain = make.keys(4)
    engine.store(chain, BIG)
    bench.apply(*make.pins([make.pin("p", chain)]))
    device.run()
    assert device.stats.gpu_copies == 0
    bench.apply(*make.pins([make.pin("p", chain, tier="gpu")], 2))
    device.run()
    assert bench.pin("p").gpu_copies == 4
    bench.apply(*make.pins([make.pin("p", chain)], 3))
    device.run()
    assert (bench.pin("p").gpu_copies, device.stats.gpu_copies, device.stats.evicted_blocks) == (0, 0, 4)
    assert (device.stats.used_bytes, device.memory) == (0, {})
    assert engine.lookup(chain) == 4


def test_two_pins_of_the_same_keys_want_gpu_copies_as_long_as_one_does(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of()
    chain = make.keys(4)
    engine.store(chain, BIG)
    one, two = make.pin("one", chain, tier="gpu"), make.pin("two", chain, strength="soft")
    bench.apply(*make.pins([one, two]))
    device.run()
    assert (bench.pin("one").gpu_copies, bench.pin("two").gpu_copies) == (4, 0)
    bench.apply(*make.pins([two], 2))
    device.run()
    assert device.stats.gpu_copies == 0


def test_only_spaces_of_engines_on_the_device_have_gpu_copies_there(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of()
    far = bench.attach(make.space(dtype="fp8"))
    chain = make.keys(3)
    engine.store(chain, BIG)
    far.store(chain, BIG)
    bench.apply(*make.pins([make.pin("g", chain, tier="gpu")]))
    device.run()
    assert (device.stats.gpu_copies, bench.pin("g").resident) == (3, 6)
    device.read_by(far)
    device.run()
    assert device.stats.gpu_copies == 6
    assert len(device.memory) == 2, "an extent has blocks of one space"


def test_an_extent_is_granted_to_engines_of_its_space_alone(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of()
    far = bench.attach(make.space(dtype="fp8"))
    device.read_by(far)
    store_pinned(bench, engine, device, 3)
    (number,) = device.table.extents()
    gpu_copies = bench.node.gpu_copies
    assert gpu_copies.grant(far.client, device.device, [number, 0, 99, -1, 2**63]) == []
    assert len(gpu_copies.grant(engine.client, device.device, [number, number])) == 1
    reader = bench.attach(SpaceRequest(make.space(), writes=False))
    assert len(gpu_copies.grant(reader.client, device.device, [number])) == 1


def test_blocks_that_do_not_fit_wait_and_the_head_of_a_chain_comes_first(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of(extents=1)
    chain = store_pinned(bench, engine, device, 12)
    assert device.load(engine, chain) == [True] * 8 + [False] * 4
    assert (device.stats.gpu_copies, device.stats.wanted) == (8, 12)


def test_stronger_pins_push_weaker_ones_out(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of(extents=1)
    soft, firm = make.keys(8, "soft"), make.keys(8, "firm")
    engine.store(soft, BIG)
    engine.store(firm, BIG)
    records = [make.pin("soft", soft, strength="soft", tier="gpu")]
    bench.apply(*make.pins(records))
    device.run()
    assert bench.pin("soft").gpu_copies == 8
    records.append(make.pin("firm", firm, tier="gpu"))
    bench.apply(*make.pins(records, 2))
    device.run()
    assert (bench.pin("soft").gpu_copies, bench.pin("firm").gpu_copies) == (0, 8)


def test_guaranteed_pins_keep_their_gpu_copies_and_soft_ones_compete_by_last_use(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of(extents=1)
    chains = {name: make.keys(8, name) for name in ("one", "two")}
    for chain in chains.values():
        engine.store(chain, BIG)
    cases: list[tuple[Strength, tuple[int, int]]] = [("guaranteed", (8, 0)), ("soft", (0, 8))]
    for generation, (strength, after) in enumerate(cases, 1):
        records = [make.pin(name, chain, strength=strength, tier="gpu") for name, chain in chains.items()]
        bench.apply(*make.pins(records, generation))
        device.run()
        engine.acquire(chains["one"])
        device.run(20.0)
        assert bench.pin("one").gpu_copies == 8
        engine.acquire(chains["two"])
        engine.release()
        device.run(20.0)
        assert (bench.pin("one").gpu_copies, bench.pin("two").gpu_copies) == after, strength


def test_soft_pins_that_are_used_in_turn_do_not_push_each_other_out_at_every_use(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of(extents=1)
    chains = [make.keys(8, name) for name in ("one", "two")]
    for chain in chains:
        engine.store(chain, BIG)
    bench.apply(*make.pins([make.pin(f"p{at}", chain, strength="soft", tier="gpu") for at, chain in enumerate(chains)]))
    for _ in range(20):
        for chain in chains:
            engine.acquire(chain)
            engine.release()
            device.run(0.25, 1)
    assert 8 <= device.stats.copied_blocks <= 24, "every ten seconds at most"


def test_soft_pins_of_tenants_share_a_device_by_weight(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of(extents=4)
    bench.apply(make.shares(QuotaSpec("a", weight=3.0), QuotaSpec("b", weight=1.0)))
    chains = {tenant: make.keys(40, tenant) for tenant in ("a", "b")}
    for tenant, chain in chains.items():
        engine.store(chain, BIG, tenant=tenant)
    bench.apply(
        *make.pins(
            [
                make.pin(tenant, chain, tenant=tenant, strength="soft", tier="gpu")
                for tenant, chain in reversed(chains.items())
            ]
        )
    )
    device.run()
    assert (bench.pin("a").gpu_copies, bench.pin("b").gpu_copies) == (24, 8)


def test_the_pin_budget_of_a_tenant_holds_on_the_device_also_when_it_changes(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of()
    store_pinned(bench, engine, device, 6, tenant="a")
    assert bench.pin("g").gpu_copies == 6
    for generation, (budget, left) in enumerate([(2 * BIG, 2), (5 * BIG, 5), (None, 6)], 1):
        bench.apply(make.shares(QuotaSpec("a", pin_budget_bytes=budget), generation=generation))
        device.run()
        assert bench.pin("g").gpu_copies == left


def test_with_two_devices_a_pin_reports_its_missing_gpu_copies(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of(extents=1)
    other = BenchDevice(bench, 2 * make.MIB, "other")
    second = bench.attach(pid=101)
    other.read_by(second)
    chain = make.keys(12)
    engine.store(chain, BIG)
    bench.apply(*make.pins([make.pin("g", chain, tier="gpu")]))
    for _ in range(3):
        device.run(times=1)
        other.run(times=1)
    pin = bench.pin("g")
    assert (pin.resident, pin.gpu_copies, pin.gpu_copies_wanted) == (12, 16, 24)
    second.die()
    other.end(second)
    device.run()
    pin = bench.pin("g")
    assert (pin.gpu_copies, pin.gpu_copies_wanted) == (8, 12)
    assert other.faults() == []


def test_unusable_devices_are_reported_once(bench_of: MakeBench) -> None:
    bench, _, device = bench_of()
    gpu_copies = bench.node.gpu_copies
    for at in range(3 * MAX_REFUSED):
        gpu_copies.refuse(f"gpu {at % (2 * MAX_REFUSED)}", "not visible", bench.now)
    assert len(bench.events(GpuCopyPoolFailed)) == MAX_REFUSED
    pools = bench.node.stats(bench.now).gpu_copy_pools
    assert len(pools) == 1 + MAX_REFUSED
    assert (pools[-1].problem, pools[-1].readers, pools[-1].used_bytes) == ("not visible", 0, 0)
    gpu_copies.open("gpu 0", "bench", 1, device.table, bench.now)
    assert len(bench.node.stats(bench.now).gpu_copy_pools) == 1 + MAX_REFUSED


def test_blocks_that_are_larger_than_the_pool_are_reported(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of(extents=1)
    chain = make.keys(2)
    engine.store(chain, 3 * make.MIB)
    strengths: list[Strength] = ["guaranteed", "soft"]
    for generation, strength in enumerate(strengths, 1):
        bench.apply(*make.pins([make.pin("g", chain, strength=strength, tier="gpu")], generation))
        device.run()
        assert device.stats.problem == "2 blocks are larger than the pool"
        assert (bench.pin("g").gpu_copies, bench.pin("g").gpu_copies_wanted) == (0, 2)
    bench.apply(*make.pins([], 3))
    device.run()
    assert device.stats.problem == ""


def test_memory_that_a_lease_reads_is_not_reused_before_the_lease_ends(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of(extents=1)
    one, two = make.keys(8, "one"), make.keys(8, "two")
    engine.store(one, BIG)
    engine.store(two, BIG)
    bench.apply(*make.pins([make.pin("one", one, tier="gpu")]))
    device.run()
    assert device.load(engine, one) == [True] * 8
    bench.apply(*make.pins([make.pin("two", two, tier="gpu")], 2))
    device.run()
    assert (bench.pin("two").gpu_copies, device.stats.leaving_bytes) == (0, 8 * BIG)
    device.release(engine)
    device.run()
    assert (bench.pin("two").gpu_copies, device.stats.leaving_bytes) == (8, 0)


def test_an_extent_goes_when_every_engine_has_closed_it(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of()
    other = bench.attach(pid=101)
    device.read_by(other)
    chain = store_pinned(bench, engine, device)
    for each in (engine, other):
        device.load(each, chain)
        device.release(each)
    bench.apply(*make.pins([], 2))
    device.run()
    assert (device.table.extents(), device.stats.used_bytes, device.stats.leaving_bytes) == (
        [],
        2 * make.MIB,
        2 * make.MIB,
    )
    device.close_gone(engine)
    device.run()
    assert device.stats.used_bytes == 2 * make.MIB
    device.end(other)
    other.die()
    device.run()
    assert (device.stats.used_bytes, device.memory) == (0, {})


def test_an_extent_closed_early_by_an_engine_does_not_wait_for_it(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of()
    chain = store_pinned(bench, engine, device)
    device.load(engine, chain)
    device.release(engine)
    closed = [*device.open_in[engine.client]]
    device.open_in[engine.client].clear()
    bench.node.gpu_copies.closed(engine.client, device.device, [*closed, 0, -1, 2**63])
    bench.apply(*make.pins([], 2))
    device.run()
    assert (device.stats.used_bytes, device.memory) == (0, {})


def test_without_engines_a_device_keeps_nothing(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of()
    chain = store_pinned(bench, engine, device)
    device.load(engine, chain)
    device.end(engine)
    engine.die()
    device.run()
    assert (device.stats.gpu_copies, device.stats.readers, device.memory) == (0, 0, {})
    again = bench.attach(pid=7)
    device.read_by(again)
    device.run()
    assert device.load(again, chain) == [True] * 4


def test_another_shape_gets_the_room_that_a_thinned_one_does_not_need(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of(extents=2)
    small, large = make.keys(16, "small"), make.keys(4, "large")
    engine.store(small, BIG)
    engine.store(large, 2 * BIG)
    bench.apply(*make.pins([make.pin("small", small, tier="gpu")]))
    device.run()
    assert (bench.pin("small").gpu_copies, len(device.memory)) == (16, 2)
    readable = [small[0], small[9]]  # one in each extent
    bench.apply(*make.pins([make.pin("kept", readable, tier="gpu"), make.pin("large", large, tier="gpu")], 2))
    device.run(times=8)
    assert (bench.pin("kept").gpu_copies, bench.pin("large").gpu_copies) == (2, 4)


def test_a_block_that_goes_takes_its_gpu_copy_with_it(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of(blocks=32, pin_budget_bytes=0)
    chain = store_pinned(bench, engine, device, 4, strength="soft")
    assert bench.pin("g").gpu_copies == 4
    engine.store(make.keys(32, "all of it"), BIG)
    assert engine.lookup(chain) == 0
    assert device.shown() == {}
    device.run()
    assert (bench.pin("g").gpu_copies, device.stats.gpu_copies, device.memory) == (0, 0, {})


def test_a_gpu_copy_of_an_invalidated_block_stays_as_long_as_its_lease(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of()
    chain = store_pinned(bench, engine, device)
    device.load(engine, chain)
    bench.node.clear(bench.now, permanent=True)
    device.run()
    assert engine.lookup(chain) == 0
    engine.store(chain, BIG)
    device.run()
    assert bench.pin("g").gpu_copies == 4
    device.release(engine)
    device.run()
    assert (len(bench.node.pool.table.blocks), device.stats.leaving_bytes) == (4, 0)


def test_a_device_without_memory_is_reported_and_retried_later(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of()
    device.refuses = True
    chain = store_pinned(bench, engine, device)
    stats = device.stats
    assert (stats.gpu_copies, stats.problem, stats.used_bytes) == (0, "out of memory", 0)
    assert len(bench.events(GpuCopyPoolFailed)) == 1
    assert engine.lookup(chain) == 4
    failed = stats.failed_copies
    device.run(5.0)
    assert device.stats.failed_copies == failed
    device.refuses = False
    device.run(31.0)
    assert (device.stats.gpu_copies, device.stats.problem) == (4, "")


def test_a_copy_that_failed_is_tried_again_and_its_memory_is_not_lost(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of()
    chain = make.keys(4)
    engine.store(chain, BIG)
    bench.apply(*make.pins([make.pin("g", chain, tier="gpu")]))
    bench.pass_time(0.6)
    device.take()
    device.fail_one()
    device.run()
    assert (device.stats.gpu_copies, device.stats.problem) == (3, "an illegal address")
    device.run(31.0)
    assert (device.stats.gpu_copies, device.stats.problem) == (4, "")
    bench.apply(*make.pins([], 2))
    device.run()
    assert device.memory == {}


def test_a_device_that_is_lost_keeps_nothing_and_costs_no_block(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of()
    one, two = make.keys(4, "one"), make.keys(4, "two")
    engine.store(one, BIG)
    bench.apply(*make.pins([make.pin("one", one, tier="gpu"), make.pin("two", two, tier="gpu")]))
    device.run()
    engine.store(two, BIG)
    bench.pass_time(0.6)
    device.take()
    device.fail_one(lasting=True)
    while device.queue:
        device.fail_one(lasting=True)
    device.run(31.0)
    assert (device.stats.gpu_copies, device.stats.problem) == (0, "an illegal address")
    assert (engine.lookup(one), engine.lookup(two)) == (4, 4)
    assert bench.node.pool.leases.leased(bench.node.pool.table.space_of).get(0) == 0


def test_a_block_is_held_while_it_is_copied(bench_of: MakeBench) -> None:
    bench, engine, device = bench_of(blocks=8, pin_budget_bytes=0)
    chain = make.keys(2)
    engine.store(chain, BIG)
    bench.apply(*make.pins([make.pin("g", chain, strength="soft", tier="gpu")]))
    bench.pass_time(0.6)
    device.take()
    engine.store(make.keys(8, "scan"), BIG)
    assert engine.lookup(chain) == 2
    bench.apply(*make.pins([], 2))
    bench.pass_time(0.6)
    while device.queue:
        device.do_one()
    assert device.shown() == {}
    device.run()
    engine.store(make.keys(8, "scan again"), BIG)
    assert engine.lookup(chain) == 0
    assert device.memory == {}

"""Cascades: what a tier evicts soon is copied to the next tier, and what was not copied in time is counted."""

from __future__ import annotations

import msgspec
import pytest

from dataplane.core.tiering import cascades
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.stored_blocks import Outcome
from tests.core.tiering.tier_bench import PAGE, TierBench, quota, stored_size, tier, tier_bench
from tests.dataplane import factories as make

DISK = tier(budget_blocks=20)
S3 = tier("s3", spill="cascade", order=1)


def store(run: TierBench, count: int, first: int = 0, tenant: str = "") -> list[bytes]:
    """Store blocks one after the other, and let the tiers keep up."""
    keys = [make.keys(1, (tenant, number))[0] for number in range(first, first + count)]
    for key in keys:
        run.engine.store([key], PAGE, tenant=tenant)
        run.pass_time(0.05)
    assert run.bench.faults() == []
    return keys


def test_blocks_evicted_by_the_disk_are_in_the_next_tier_and_load() -> None:
    run = tier_bench(64, DISK, S3)
    keys = store(run, 60)
    disk, s3 = run.tiering.tiers
    assert disk.contents.evicted_blocks == 40
    assert run.keys_in(0) | run.keys_in(1) == set(keys)
    assert run.keys_in(1) >= set(keys[:40])
    assert (s3.counters.refused, s3.counters.cascaded_blocks) == ({}, s3.counters.spilled_blocks)
    run.evict_all()
    run.ask(keys[:4])
    run.settle()
    assert run.engine.lookup(keys[:4]) == 4


def test_nothing_is_copied_while_the_disk_has_room() -> None:
    run = tier_bench(64, DISK, S3)
    store(run, 17)
    assert not run.stores[1]


@pytest.mark.parametrize("spill", ["off", "evict", "second_touch"])
def test_only_a_tier_with_the_spill_cascade_takes_them(spill: str) -> None:
    run = tier_bench(64, DISK, tier("s3", spill=spill, order=1))
    store(run, 40)
    run.bench.pass_time(0.05)
    assert not run.stores[1]
    assert run.tiering.tiers[1].counters.refused == {}


def test_they_go_to_the_next_tier_in_the_order_and_from_there_to_the_one_after_it() -> None:
    last = tier("last", spill="cascade", order=2)
    run = tier_bench(128, DISK, tier("s3", 20, spill="cascade", order=1), last)
    keys = store(run, 80)
    assert [each.contents.evicted_blocks > 0 for each in run.tiering.tiers] == [True, True, False]
    assert run.keys_in(0) | run.keys_in(1) | run.keys_in(2) == set(keys)
    assert run.keys_in(2) >= set(keys[:30])


def test_a_tier_of_the_same_order_takes_nothing() -> None:
    run = tier_bench(64, DISK, tier("s3", spill="cascade"))
    store(run, 40)
    run.bench.pass_time(0.05)
    assert not run.stores[1]


def test_blocks_that_another_tier_holds_are_not_copied() -> None:
    run = tier_bench(64, DISK, S3, tier("archive", order=5))
    store(run, 40)
    run.bench.pass_time(0.05)
    assert not run.stores[1]
    assert run.tiering.tiers[1].counters.refused == {}


def test_a_tenant_at_its_limit_loses_nothing_either() -> None:
    run = tier_bench(64, tier(), S3)
    run.quotas(quota("acme", limit=10))
    keys = store(run, 30, tenant="acme")
    assert run.held("acme") == 10
    assert run.keys_in(0) | run.keys_in(1) == set(keys)
    assert run.tiering.tiers[1].counters.refused == {}


def test_blocks_that_are_used_in_memory_are_not_copied_because_the_disk_keeps_them() -> None:
    run = tier_bench(64, DISK, S3)
    hot = store(run, 4)
    for number in range(10):
        for key in hot:
            run.engine.acquire([key])
        run.engine.release()
        store(run, 4, first=100 + 4 * number)
    assert run.keys_in(0) >= set(hot)
    assert not run.keys_in(1) & set(hot)


def test_a_tier_that_is_unavailable_takes_nothing_and_each_block_that_is_lost_counts_once() -> None:
    run = tier_bench(64, DISK, S3)
    disk, s3 = run.tiering.tiers
    s3.serves = False
    store(run, 40)
    run.bench.pass_time(0.05)
    assert not run.stores[1]
    assert s3.counters.refused == {"evicted": disk.contents.evicted_blocks}
    lost = disk.contents.evicted_blocks
    s3.serves = True
    run.pass_time(1.0)
    store(run, 20, first=200)
    assert s3.counters.refused == {"evicted": lost}, "from now on nothing is lost"
    assert len(run.stores[1]) >= 20


def test_a_full_tier_is_reported_and_each_lost_block_counts_once() -> None:
    run = tier_bench(64, DISK, S3)
    disk, s3 = run.tiering.tiers
    run.transferred = Outcome.FAILED
    store(run, 40)
    run.bench.pass_time(0.05)
    refused = dict(s3.counters.refused)
    assert refused.pop("evicted") == disk.contents.evicted_blocks
    assert refused.keys() == {"failed"}


def test_a_copy_that_failed_is_tried_again_and_one_without_room_is_not() -> None:
    run = tier_bench(64, DISK, tier("s3", spill="cascade", order=1))
    s3 = run.tiering.tiers[1]
    run.transferred = Outcome.FAILED
    store(run, 20)
    failed = s3.counters.refused["failed"]
    run.transferred = Outcome.OK
    run.pass_time(0.5, times=int(cascades.RETRY_S / 0.5) + 4)
    assert s3.counters.refused == {"failed": failed}
    assert s3.counters.cascaded_blocks == len(run.stores[1]) > 0

    small = tier_bench(64, DISK, msgspec.structs.replace(S3, budget_bytes=stored_size(PAGE) - 1))
    store(small, 20)
    small.bench.pass_time(1.0)
    small.settle()
    small.bench.pass_time(1.0)
    refused = dict(small.tiering.tiers[1].counters.refused)
    for _ in range(40):
        small.bench.pass_time(0.5)
        small.settle()
    assert small.tiering.tiers[1].counters.refused == refused, "idle tiers refuse nothing again"


def test_an_engine_that_waits_for_a_load_delays_no_copy() -> None:
    run = tier_bench(64, DISK, S3)
    keys = store(run, 17)
    run.engine.store(make.keys(3, "more"), PAGE)
    run.begin()
    run.end_spills()
    run.evict_all()
    run.ask(keys)
    run.begin()
    assert run.loads
    run.bench.pass_time(0.05)
    run.begin()
    assert run.stores[1]
    run.settle()


def test_the_target_may_change_while_copies_wait() -> None:
    run = tier_bench(64, DISK, S3)
    disk, s3 = run.tiering.tiers
    store(run, 17)
    run.engine.store(make.keys(3, "more"), PAGE)
    run.begin()
    run.end_spills()
    run.bench.pass_time(0.05)  # chosen, not begun
    assert s3.watched
    run.change("s3", spill="off")
    run.pass_time(0.05)
    assert (run.stores[1], s3.watched, s3.spilling_bytes) == ({}, {}, 0)
    run.change("s3", spill="cascade")
    run.pass_time(1.0)
    assert len(run.stores[1]) == 6
    run.tiering.remove_tier(disk)
    run.bench.pass_time(0.05)
    added = TierState(7, DISK, stored_size)
    run.stores[7] = {}
    run.tiering.add_tier(added)
    store(run, 40, first=500)
    assert len(run.stores[1]) > 20


def test_an_invalidation_reaches_copies_under_way() -> None:
    run = tier_bench(64, DISK, S3)
    store(run, 17, tenant="acme")
    run.engine.store(make.keys(3, "more"), PAGE, tenant="acme")
    run.begin()
    run.end_spills()
    run.bench.pass_time(0.05)
    job = run.tiering.copies.next_from_tier(run.now)
    assert job is not None
    run.bench.node.operator.invalidate(Scope(tenant="acme"), run.now)
    run.transfer(job)
    run.settle()
    run.sweep()
    run.settle()
    assert (run.stores[0], run.stores[1]) == ({}, {})

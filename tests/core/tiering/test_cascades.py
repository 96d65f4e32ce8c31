"""Cascades and drains: what a tier evicts soon, or alone holds, is copied to another tier, and losses are counted."""

from __future__ import annotations

import msgspec
import pytest

from dataplane.core.tiering import cascades, drains
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.stored_blocks import Outcome
from tests.core.tiering.tier_bench import PAGE, TierBench, quota, stored_size, tier, tier_bench
from tests.dataplane import factories as make

# ---- cascades


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
    run.bench.node.invalidate(Scope(tenant="acme"), run.now)
    run.transfer(job)
    run.settle()
    run.sweep()
    run.settle()
    assert (run.stores[0], run.stores[1]) == ({}, {})


# ---- drains


CASCADES = tier("s3", spill="cascade", order=1)


def filled(*others: object, blocks: int = 40) -> tuple[TierBench, list[bytes]]:
    """A node whose disk holds blocks, and other tiers that hold none."""
    run = tier_bench(256, tier(), *others)  # type: ignore[arg-type]
    keys = make.keys(blocks)
    run.store(keys)
    return run, keys


def wait(run: TierBench, seconds: float = 20.0) -> None:
    run.pass_time(0.5, times=int(seconds / 0.5))
    assert run.bench.faults() == []


def left(run: TierBench, name: str = "disk") -> int | None:
    return next(run.tiering.drains.left(each) for each in run.tiering.tiers if each.spec.name == name)


def test_a_drain_copies_blocks_that_no_other_tier_holds_and_reports_its_end() -> None:
    run, keys = filled(CASCADES)
    assert left(run) is None
    run.change("disk", spill="drain")
    assert left(run) == 40
    wait(run)
    assert (run.keys_in(1), left(run)) == (set(keys), 0)
    assert run.keys_in(0) == set(keys), "it serves on"
    run.engine.store(make.keys(4, "new"), PAGE)
    wait(run, 1.0)
    assert len(run.stores[0]) == 40, "it gets no blocks"


def test_blocks_of_another_tier_are_not_copied_again() -> None:
    run, _ = filled(tier("archive", order=5), CASCADES)
    run.change("disk", spill="drain")
    wait(run)
    assert (left(run), run.stores[2]) == (0, {})


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ((tier("a", spill="evict", order=1), tier("b", spill="evict", order=2)), "a"),
        ((tier("a", spill="off", order=1), tier("b", spill="evict", order=2)), "b"),
        ((tier("a", spill="drain", order=1), tier("b", spill="evict", order=2)), "b"),
    ],
)
def test_the_next_tier_in_the_order_that_takes_blocks_gets_them(others: tuple[object, ...], expected: str) -> None:
    run, keys = filled(*others)
    run.change("disk", spill="drain")
    wait(run)
    for number, each in enumerate(run.tiering.tiers):
        if each.spec.name != "disk":
            assert run.keys_in(number) == (set(keys) if each.spec.name == expected else set())


def test_the_last_tier_drains_to_the_first_and_two_that_drain_do_not_wait_for_each_other() -> None:
    run = tier_bench(256, tier(spill="evict"), tier("last", order=9))
    keys = make.keys(10)
    run.store(keys)
    run.change("last", spill="drain")
    wait(run)
    assert (run.keys_in(0), left(run, "last")) == (set(keys), 0)
    run.change("disk", spill="drain")
    wait(run)
    assert (left(run, "disk"), left(run, "last")) == (10, 10), "no tier is left for them"


def test_a_drain_that_is_cancelled_copies_no_more_and_continues_when_it_is_begun_again() -> None:
    run, keys = filled(CASCADES, blocks=200)
    run.change("disk", spill="drain")
    run.bench.pass_time(0.05)
    job = run.tiering.copies.next_from_tier(run.now)
    assert job is not None
    run.transfer(job)
    copied = len(run.stores[1])
    assert 0 < copied < 200
    run.change("disk", spill="off")
    wait(run)
    assert (len(run.stores[1]), left(run), run.tiering.tiers[1].watched) == (copied, None, {})
    run.change("disk", spill="drain")
    wait(run)
    assert (run.keys_in(1), left(run)) == (set(keys), 0)


def test_blocks_that_the_other_tier_refuses_are_left_until_it_has_room() -> None:
    run, keys = filled(tier("s3", budget_blocks=15, spill="cascade", order=1))
    run.change("disk", spill="drain")
    wait(run)
    assert (len(run.stores[1]), left(run)) == (15, 25), "its copies evict none of each other"
    s3 = run.tiering.tiers[1]
    s3.spec = tier("s3", budget_blocks=100, spill="cascade", order=1)
    run.tiering.catalog.shrink(s3, run.now)
    wait(run)
    assert (run.keys_in(1), left(run)) == (set(keys), 0)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.LATE])
def test_copies_that_fail_are_tried_again(outcome: Outcome) -> None:
    run, keys = filled(CASCADES)
    run.change("disk", spill="drain")
    run.transferred = outcome
    wait(run, 1.0)
    assert left(run) == 40
    run.transferred = Outcome.OK
    wait(run, 2 * drains.PASS_S + 1.0)
    assert (run.keys_in(1), left(run)) == (set(keys), 0)


def test_tiers_that_are_unavailable_are_waited_for() -> None:
    run, keys = filled(CASCADES)
    run.change("disk", spill="drain")
    for each in run.tiering.tiers:
        each.serves = False
        wait(run, 2.0)
        assert (left(run), run.stores[1]) == (40, {})
        each.serves = True
    wait(run)
    assert (run.keys_in(1), left(run)) == (set(keys), 0)


def test_blocks_that_the_other_tier_evicts_later_are_copied_again() -> None:
    run, keys = filled(CASCADES)
    run.quotas(quota("", limit=None, name="s3"))
    run.change("disk", spill="drain")
    wait(run)
    s3 = run.tiering.tiers[1]
    for entry in list(s3.contents.entries.values())[:7]:
        run.tiering.catalog.evict(s3, entry)
    wait(run)
    assert (run.keys_in(1), left(run)) == (set(keys), 0)

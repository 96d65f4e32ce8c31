"""Drains: what a tier alone holds is copied to another tier, and the node says how much is left."""

from __future__ import annotations

import pytest

from dataplane.core.tiering import drains
from dataplane.protocol.stored_blocks import Outcome
from tests.core.tiering.tier_bench import PAGE, TierBench, quota, tier, tier_bench
from tests.dataplane import factories as make

S3 = tier("s3", spill="cascade", order=1)


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
    run, keys = filled(S3)
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
    run, _ = filled(tier("archive", order=5), S3)
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
    run, keys = filled(S3, blocks=200)
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
    run, keys = filled(S3)
    run.change("disk", spill="drain")
    run.transferred = outcome
    wait(run, 1.0)
    assert left(run) == 40
    run.transferred = Outcome.OK
    wait(run, 2 * drains.PASS_S + 1.0)
    assert (run.keys_in(1), left(run)) == (set(keys), 0)


def test_tiers_that_are_unavailable_are_waited_for() -> None:
    run, keys = filled(S3)
    run.change("disk", spill="drain")
    for each in run.tiering.tiers:
        each.serves = False
        wait(run, 2.0)
        assert (left(run), run.stores[1]) == (40, {})
        each.serves = True
    wait(run)
    assert (run.keys_in(1), left(run)) == (set(keys), 0)


def test_blocks_that_the_other_tier_evicts_later_are_copied_again() -> None:
    run, keys = filled(S3)
    run.quotas(quota("", limit=None, name="s3"))
    run.change("disk", spill="drain")
    wait(run)
    s3 = run.tiering.tiers[1]
    for entry in list(s3.contents.entries.values())[:7]:
        run.tiering.catalog.evict(s3, entry)
    wait(run)
    assert (run.keys_in(1), left(run)) == (set(keys), 0)

"""What tenants used: bytes over time, tokens once a request, and counters that never fall."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dataplane.core.tenants import usage as core_usage
from dataplane.protocol.codes import Code
from dataplane.protocol.control.records import QuotaSpec
from dataplane.protocol.engine import SpaceRequest
from dataplane.protocol.keys import tenant_fingerprint
from dataplane.protocol.layout import RING_COUNT_BITS, RING_KIND_SHIFT, RING_LOOKUP
from dataplane.protocol.spaces import Space
from dataplane.protocol.usage import OTHERS, UsageCounters
from tests.core.tenancy import PAGE, bench_of, fill
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine, refused

KIB_PAGE = PAGE // 1024


def read(bench: Bench, noted: float = 0.0) -> list[UsageCounters]:
    """All accounts, part by part."""
    found: list[UsageCounters] = []
    after = 0
    while True:
        part, after = bench.node.read_usage(noted, after, bench.now)
        found += part
        if not after:
            return found


def of(bench: Bench, tenant: str) -> UsageCounters:
    (account,) = [each for each in read(bench) if each.tenant == tenant]
    return account


def look_up(engine: BenchEngine, tenant: str, requested: int, hits: int = 0) -> None:
    engine.note(RING_LOOKUP << RING_KIND_SHIFT | requested << RING_COUNT_BITS | hits, tenant_fingerprint(tenant))


def test_bytes_count_for_as_long_as_they_are_charged() -> None:
    bench, engine = bench_of(64)
    fill(engine, "a", 3)
    bench.pass_time(10)
    fill(engine, "a", 2, "more")
    bench.now += 5
    assert of(bench, "a").held_kib_s == (3 * 10 + 5 * 5) * KIB_PAGE


def test_a_reservation_that_is_not_committed_counts_while_it_is_charged() -> None:
    bench, engine = bench_of(64)
    granted = engine.reserve(make.keys(4), PAGE, tenant="a")
    bench.now += 7
    engine.abort(granted.reservation)
    bench.now += 100
    account = of(bench, "a")
    assert account.held_kib_s == 4 * 7 * KIB_PAGE
    assert account.stored_blocks == 0


def test_the_integral_is_exact_under_any_schedule() -> None:
    bench, engine = bench_of(32, max_blocks=64)
    rng = random.Random(11)
    byte_us: Counter[str] = Counter()
    at = bench.now
    for step in range(400):
        tenant = rng.choice("abc")
        chain = make.keys(rng.randint(1, 6), (tenant, rng.randrange(40)))
        if rng.random() < 0.2:
            engine.acquire(chain)
        elif rng.random() < 0.2:
            engine.release()
        elif rng.random() < 0.3:
            granted = engine.reserve(chain, rng.choice((PAGE, 2 * PAGE)), tenant=tenant)
            if granted.reservation:
                engine.abort(granted.reservation)
        else:
            engine.store(chain, rng.choice((PAGE, 2 * PAGE)), tenant=tenant)
        bench.now += rng.choice((0, 0.25, 1, 3))
        if step % 7 == 0:
            read(bench)
        for name, each in bench.node.pool.tenants.by_salt.items():
            byte_us[name] += each.bytes * (int(bench.now * 1e6) - int(at * 1e6))
        at = bench.now
        if step % 13 == 0:
            bench.node.tick(bench.now)
    assert {each.tenant: each.held_kib_s for each in read(bench)} == {
        name: total // (1024 * 1_000_000) for name, total in byte_us.items()
    }
    assert not bench.faults()


def test_tokens_are_requested_by_lookups_and_served_by_acquires() -> None:
    bench, engine = bench_of(64, spaces=(Space("llama", block_tokens=16),))
    chain = make.keys(5)
    engine.store(chain, PAGE, tenant="a")
    look_up(engine, "a", 8, 5)
    engine.acquire(chain)
    bench.pass_time(1)
    account = of(bench, "a")
    assert (account.requested_tokens, account.served_tokens) == (8 * 16, 5 * 16)
    assert (account.stored_blocks, account.stored_bytes) == (5, 5 * PAGE)


def test_a_block_has_256_tokens_by_default() -> None:
    bench, engine = bench_of(64)
    engine.store(make.keys(2), PAGE, tenant="a")
    engine.acquire(make.keys(2))
    bench.pass_time(1)
    assert of(bench, "a").served_tokens == 512


def test_a_request_in_many_ranks_counts_its_tokens_once_and_its_bytes_in_each() -> None:
    ranks = tuple(make.space(rank=rank, world_size=4) for rank in range(4))
    bench, scheduler = bench_of(4096, spaces=ranks)
    workers = [bench.attach(SpaceRequest(space), pid=200 + at) for at, space in enumerate(ranks)]
    chain = make.keys(3)
    for worker in workers:
        worker.store(chain, PAGE, tenant="a")
    look_up(scheduler, "a", 4, 3)
    for rank in range(4):
        scheduler.acquire(chain, rank)
    for worker in workers[1:]:  # one that looks up for its own rank only is not asked once more
        look_up(worker, "a", 4, 3)
    bench.pass_time(1)
    account = of(bench, "a")
    assert (account.requested_tokens, account.served_tokens) == (4 * 256, 3 * 256)
    assert (account.stored_blocks, account.stored_bytes) == (12, 12 * PAGE)


def test_look_ups_before_the_first_store_count_for_the_tenant_that_stores_then() -> None:
    bench, engine = bench_of(64)
    look_up(engine, "late", 6)
    bench.pass_time(1)
    assert read(bench) == []
    fill(engine, "late", 1)
    assert of(bench, "late").requested_tokens == 6 * 256


def test_look_ups_of_a_space_that_is_gone_are_left_out() -> None:
    bench, engine = bench_of(64, spaces=(make.space("gone"),))
    look_up(engine, "late", 6)
    engine.detach_cleanly()
    bench.pass_time(1)
    other = bench.attach(make.space("other"))
    fill(other, "late", 1)
    assert of(bench, "late").requested_tokens == 0


def test_each_model_of_a_tenant_has_an_account_of_its_own() -> None:
    bench, engine = bench_of(4096, spaces=(make.space("one"), make.space("two")))
    engine.store(make.keys(2), PAGE, tenant="a")
    engine.store(make.keys(3), PAGE, tenant="a", space=1)
    assert {each.model: each.stored_blocks for each in read(bench)} == {"one": 2, "two": 3}
    bench.now += 2
    assert {each.model: each.held_kib_s for each in read(bench)} == {"one": 4 * KIB_PAGE, "two": 6 * KIB_PAGE}


def test_evictions_and_refusals_are_counted_with_their_reasons() -> None:
    bench, engine = bench_of(8)
    fill(engine, "a", 8)
    fill(engine, "b", 3)
    engine.reserve(make.keys(1), 16 * PAGE, tenant="b")
    a, b = of(bench, "a"), of(bench, "b")
    assert (a.evicted_blocks, a.evicted_bytes) == (3, 3 * PAGE)
    assert b.refused == {"too_large": 1}


def test_the_default_tenant_is_shown_by_its_name() -> None:
    bench, engine = bench_of(8)
    fill(engine, "", 1)
    assert [each.tenant for each in read(bench)] == ["_default"]


def test_parts_are_complete_and_name_no_account_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_usage, "MAX_USAGE_PART", 3)
    bench, engine = bench_of(64)
    for number in range(10):
        fill(engine, f"t{number}", 1)
    assert [each.tenant for each in read(bench)] == [f"t{number}" for number in range(10)]
    assert bench.node.read_usage(0, 9, bench.now)[1] == 0


def test_an_account_that_holds_nothing_is_closed_when_it_was_noted_and_idle_for_long() -> None:
    bench, engine = bench_of(64)
    granted = engine.reserve(make.keys(1), PAGE, tenant="a")
    bench.now += 1
    engine.abort(granted.reservation)
    (first,) = read(bench)
    bench.now += 3601
    assert read(bench, noted=bench.now - 3700), "not noted"
    assert read(bench, noted=bench.now) == []
    fill(engine, "a", 1)
    again = of(bench, "a")
    assert again.number > first.number
    assert again.held_kib_s == 0
    bench.now += 3601
    assert of(bench, "a").held_kib_s == 3601 * KIB_PAGE, "what holds bytes stays"
    assert not bench.faults()


def test_an_account_that_was_used_again_is_not_closed() -> None:
    bench, engine = bench_of(64)
    engine.abort(engine.reserve(make.keys(1), PAGE, tenant="a").reservation)
    bench.now += 3601
    look_up(engine, "a", 1)
    bench.pass_time(0)
    assert read(bench, noted=bench.now + 1)


def test_beyond_the_most_accounts_unmanaged_tenants_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, engine = bench_of(64)
    monkeypatch.setattr(core_usage, "MAX_ACCOUNTS", 2)
    for tenant in ("a", "b", "c", "d"):
        fill(engine, tenant, 2)
    bench.apply(make.shares(QuotaSpec("paid")))
    fill(engine, "paid", 1)
    bench.now += 1
    assert {each.tenant: each.held_kib_s for each in read(bench)} == {
        "a": 2 * KIB_PAGE,
        "b": 2 * KIB_PAGE,
        OTHERS: 4 * KIB_PAGE,
        "paid": KIB_PAGE,
    }
    assert not bench.faults()


def test_a_shared_account_is_closed_like_others_and_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, engine = bench_of(4096, spaces=(make.space("idle"), make.space("busy")))
    monkeypatch.setattr(core_usage, "MAX_ACCOUNTS", 0)
    engine.store(make.keys(1), PAGE, tenant="a", space=1)
    engine.abort(engine.reserve(make.keys(1), PAGE, tenant="a").reservation)
    engine.abort(engine.reserve(make.keys(2, "b"), PAGE, tenant="b").reservation)
    before = {account.model: account.number for account in read(bench)}
    bench.now += 3601
    assert len(read(bench, noted=bench.now - 3700)) == 2, "not noted"
    (account,) = read(bench, noted=bench.now)
    assert (account.model, account.number) == ("busy", before["busy"]), "what holds bytes stays"
    tenants = bench.node.pool.tenants.by_salt
    assert [len(tenants[salt].usage) for salt in "ab"] == [1, 0], "nothing points to a closed account"
    engine.store(make.keys(3, "b"), PAGE, tenant="b")
    again = {account.model: account for account in read(bench)}
    assert again["idle"].number > before["idle"]
    assert again["idle"].stored_blocks == 3
    assert not bench.faults()


def test_a_tenant_that_was_forgotten_continues_with_its_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.core.tenants.quotas.MAX_IDLE_TENANTS", 0)
    bench, engine = bench_of(64)
    engine.abort(engine.reserve(make.keys(2), PAGE, tenant="a").reservation)
    bench.pass_time(1)
    assert "a" not in bench.node.pool.tenants.by_salt
    fill(engine, "a", 1)
    assert of(bench, "a").stored_blocks == 1
    bench.now += 1
    assert of(bench, "a").held_kib_s == KIB_PAGE
    assert not bench.faults()


def test_a_clock_that_stands_still_or_goes_back_loses_nothing() -> None:
    bench, engine = bench_of(64)
    fill(engine, "a", 1)
    bench.now += 10
    before = of(bench, "a").held_kib_s
    bench.now -= 5
    fill(engine, "a", 1, "more")
    assert of(bench, "a").held_kib_s == before


@pytest.mark.parametrize("tokens", [0, -1, (1 << 20) + 1])
def test_a_block_of_no_or_too_many_tokens_is_refused(tokens: int) -> None:
    with refused(Code.BAD_SPACE, "spaces[0].space.block_tokens"):
        bench_of(8, spaces=(Space("llama", block_tokens=tokens),))


def test_one_space_has_one_number_of_tokens_a_block() -> None:
    bench, _ = bench_of(8, spaces=(Space("llama", block_tokens=16),))
    with refused(Code.SPACE_CONFLICT, match="blocks of 16 tokens, got 256"):
        bench.attach(Space("llama"))

"""Statistics of a node: evictions, ages, hits, dropped events, and unlisted tenants."""

from __future__ import annotations

import pytest

from dataplane.core.tenants import quotas
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.events import BlocksEvicted
from dataplane.protocol.stats.histogram import Histogram
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pool import Evictions
from dataplane.protocol.stats.tenants import TenantStats
from tests.core.tenancy import bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench

PAGE = 4096


def stats(bench: Bench) -> NodeStats:
    return bench.node.stats(bench.now)


def count(histogram: Histogram | None) -> int:
    assert histogram is not None
    return sum(histogram.counts)


def test_evictions_count_by_reason_and_tenant() -> None:
    bench, engine = bench_of(2)
    engine.store(make.keys(2, "a"), PAGE, tenant="a")
    bench.pass_time(30.0)
    engine.store(make.keys(1, "b"), PAGE, tenant="b")
    bench.node.invalidate(Scope(tenant="a"), bench.now)
    bench.pass_time(0.1)
    reported = stats(bench)
    reasons = {"room", "limit", "index", "watermark", "invalidated", "moved", "corrupt", "hint"}
    assert set(reported.evicted) == reasons
    assert reported.evicted["room"] == reported.evicted["invalidated"] == Evictions(1, PAGE)
    assert reported.evicted["corrupt"] == Evictions()
    assert bench.tenant("a").evicted == {"room": 1, "invalidated": 1}
    events = [(each.reason, each.blocks) for each in bench.events(BlocksEvicted) if isinstance(each, BlocksEvicted)]
    assert events == [("room", 1), ("invalidated", 1)]
    idle, lifetime = reported.evicted_idle, reported.block_lifetime
    assert idle is not None and lifetime is not None  # noqa: PT018
    assert count(idle) == count(lifetime) == 1
    assert idle.total == pytest.approx(30.0)
    assert lifetime.total == pytest.approx(30.0)


def test_reads_and_stores_count_by_engine() -> None:
    bench = Bench(1536 * PAGE)
    writer, reader = bench.attach(), bench.attach(make.space(), make.space(rank=1, world_size=2))
    writer.store(make.keys(3), PAGE)
    reader.store(make.keys(2, "rank"), PAGE, space=1)
    assert reader.acquire(make.keys(3)) == 3
    assert reader.acquire(make.keys(2, "rank"), space=1) == 2
    bench.pass_time(0.1)
    tokens = 3 * next(iter(bench.node.pool.spaces.by_number.values())).block_tokens
    found = [(each.read_bytes, each.read_tokens, each.stored_bytes) for each in stats(bench).engines]
    assert found == [(0, 0, 3 * PAGE), (5 * PAGE, tokens, 2 * PAGE)]


def test_reads_count_by_tenant_with_tokens_and_the_gap_since_the_last_use() -> None:
    bench, engine = bench_of(8)
    engine.store(make.keys(3), PAGE, tenant="a")
    bench.pass_time(10.0)
    assert engine.acquire(make.keys(3)) == 3
    assert engine.acquire(make.keys(2)) == 2
    bench.pass_time(0.1)
    (space,) = bench.node.pool.spaces.by_number.values()
    tenant = bench.tenant("a")
    assert (tenant.hit_tokens, tenant.hit_bytes) == (5 * space.block_tokens, 5 * PAGE)
    gap = stats(bench).reuse_gap
    assert gap is not None
    assert count(gap) == 3
    assert gap.total == pytest.approx(30.3)


def test_no_counter_falls_when_a_tenant_moves_into_the_list_and_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_LISTED_TENANTS", 2)
    bench, engine = bench_of(64)
    names = ("a", "b", "c")
    stored = dict.fromkeys(names, 0)
    before: dict[str, TenantStats] = {}
    for turn in range(12):
        name = names[turn // 2 % 3]
        engine.store(make.keys(4 + turn, f"{turn}"), PAGE, tenant=name)
        stored[name] += 4 + turn
        bench.pass_time(0.1)
        reported = stats(bench)
        assert len(reported.tenants) <= 2
        now = {each.tenant: each for each in (*reported.tenants, *filter(None, [reported.other_tenants]))}
        for each in now.values():
            old = before.get(each.tenant, TenantStats(each.tenant))
            assert each.stored_blocks >= old.stored_blocks
            assert each.evicted_blocks >= old.evicted_blocks
            assert all(each.evicted[reason] >= number for reason, number in old.evicted.items())
        for each in reported.tenants:
            assert each.stored_blocks == stored[each.tenant]
        before |= now
    assert "other" in before
    (last,) = set(names) - {each.tenant for each in reported.tenants}
    assert before["other"].bytes == bench.node.pool.tenants.by_salt[last].bytes


def test_counts_of_a_forgotten_tenant_are_added_to_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_LISTED_TENANTS", 1)
    monkeypatch.setattr(quotas, "MAX_IDLE_TENANTS", 2)
    bench, engine = bench_of(2)
    for number in range(5):
        engine.store(make.keys(2, f"{number}"), PAGE, tenant=f"t{number}")
        bench.pass_time(6.0)
        stats(bench)
    assert len(bench.node.pool.tenants.by_salt) < 5
    reported = stats(bench)
    assert reported.other_tenants is not None
    assert reported.other_tenants.evicted == {"room": 8}
    assert reported.totals.evicted_blocks == reported.other_tenants.evicted_blocks == 8

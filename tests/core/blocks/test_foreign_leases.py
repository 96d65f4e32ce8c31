"""A lease counter counts only for blocks of spaces that its process attached."""

from __future__ import annotations

import pytest

from dataplane.core.operator.listing import list_blocks
from dataplane.protocol.codes import Code
from dataplane.protocol.control.lookups import ListBlocks
from dataplane.protocol.control.records import QuotaSpec
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.engine import SpaceRequest
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine
from tests.dataplane.recovery.support.cuts import KillBench

PAGE = 4096
BLOCKS = 64
RANKS = [make.space(rank=rank, world_size=2) for rank in range(2)]


def full(*spaces: object) -> tuple[Bench, BenchEngine]:
    """A pool that blocks of the given spaces fill to the last slot, and the engine that stored them."""
    bench = Bench(BLOCKS * PAGE, segment_bytes=BLOCKS * PAGE // 2, max_blocks=4 * BLOCKS)
    engine = bench.attach(*spaces, pid=1)  # type: ignore[arg-type]
    for at in range(len(spaces)):
        count = BLOCKS // len(spaces)
        assert engine.store(make.keys(count, at), PAGE, space=at).written == count
    return bench, engine


def foreigner(bench: Bench) -> BenchEngine:
    """A read-only process of another space, which raises all its counters, loses its connection and lives on."""
    other = bench.attach(SpaceRequest(make.space("other"), writes=False), pid=2)
    other.area.counters[:] = 1
    other.detach()
    return other


def test_counters_of_a_foreign_process_keep_no_block_from_eviction() -> None:
    bench, engine = full(make.space())
    foreigner(bench)
    for number in range(2 * BLOCKS):
        stored = engine.store([make.key(("new", number))], PAGE)
        assert (stored.written, stored.refused) == (1, set())


def test_nor_does_it_in_a_batch_of_several_spaces_that_the_process_has_some_of() -> None:
    bench, engine = full(*RANKS)
    some = bench.attach(RANKS[1], make.space("other"), pid=2)
    some.area.counters[:] = 1
    some.detach()
    for number in range(BLOCKS):
        engine.store(make.keys(4, ("new", number)), PAGE, space=0)
    assert engine.has(make.keys(BLOCKS // 2, 1), space=1) == [True] * (BLOCKS // 2), "they are held"
    assert engine.has(make.keys(BLOCKS // 2, 0), space=0) == [False] * (BLOCKS // 2), "these are not"


def test_a_floor_is_kept_against_counters_of_a_foreign_process() -> None:
    bench, engine = full(make.space())
    assert bench.apply(make.shares(QuotaSpec("acme", floor_bytes=8 * PAGE))) == []
    foreigner(bench)
    assert engine.store(make.keys(8, "acme"), PAGE, tenant="acme").written == 8


@pytest.mark.parametrize("permanent", [False, True])
def test_clear_frees_blocks_leased_by_a_foreign_process_alone(permanent: bool) -> None:
    bench, _ = full(make.space())
    foreigner(bench)
    bench.node.clear(bench.now, permanent=permanent)
    bench.pass_time(0.1)
    bench.pass_time(0.1)
    assert bench.pool.used_bytes == 0


def test_a_limit_and_a_watermark_evict_blocks_leased_by_a_foreign_process_alone() -> None:
    bench, _ = full(make.space())
    foreigner(bench)
    assert bench.apply(make.policy(high_watermark=0.75, low_watermark=0.5)) == []
    bench.pass_time(1.0)
    assert bench.pool.used_bytes == BLOCKS * PAGE // 2
    assert bench.apply(make.quotas({"": BLOCKS * PAGE // 4})) == []
    bench.pass_time(1.0)
    assert bench.tenant("_default").bytes == BLOCKS * PAGE // 4


def test_its_counters_are_shown_for_blocks_of_its_own_spaces_only() -> None:
    bench, _ = full(*RANKS)
    foreigner(bench)
    some = bench.attach(RANKS[1], pid=3)
    some.area.counters[:] = 1
    shown = {engine.pid: engine.leased_blocks for engine in bench.node.stats(bench.now).engines}
    assert shown == {1: 0, 2: 0, 3: BLOCKS // 2}
    blocks, _ = list_blocks(bench.node.pool, ListBlocks("n", limit=500))
    assert sorted({(block.rank, block.leases) for block in blocks}) == [(0, 0), (1, 1)]


def test_counters_above_descriptors_that_are_free_count_as_no_block() -> None:
    bench, engine = full(make.space())
    bench.node.invalidate(Scope(tenant=""), bench.now)
    bench.pass_time(0.1)
    engine.area.counters[:] = 1
    assert bench.node.stats(bench.now).engines[0].leased_blocks == 0


def test_it_holds_nothing_after_a_restart_either() -> None:
    bench = KillBench(capacity_bytes=BLOCKS * PAGE, max_blocks=4 * BLOCKS)
    engine = bench.attach(pid=1)
    leased, others = make.keys(4, "held"), make.keys(BLOCKS - 4, "others")
    assert engine.store(leased + others, PAGE).written == BLOCKS
    own = bench.attach(pid=9)
    assert own.acquire(leased) == 4
    foreigner(bench)
    warm = KillBench(bench.image(), capacity_bytes=BLOCKS * PAGE, max_blocks=4 * BLOCKS)
    engine = warm.resume(engine)
    for number in range(2 * BLOCKS):
        stored = engine.store([make.key(("new", number))], PAGE)
        assert (stored.written, stored.refused) == (1, set())
    assert engine.has(leased) == [True] * 4, "a counter of its own space holds"
    assert not any(engine.has(others))


def test_counters_of_its_own_space_still_hold() -> None:
    bench, engine = full(make.space())
    other = bench.attach(pid=2)
    other.area.counters[:] = 1
    assert engine.store([make.key("new")], PAGE).refused == {Code.POOL_FULL}

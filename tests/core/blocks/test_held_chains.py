"""Whoever holds a block holds the chain before it: that outlives the block, and costs a bounded time."""

from __future__ import annotations

from dataplane.core.eviction.ancestors import MAX_ANCESTORS, MAX_LOOKED_UP
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST, Reserve
from dataplane.protocol.layout import pack_keys
from tests.core.tenancy import bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine
from tests.work import lines_run

PAGE = 4096
BLOCKS = 20_000


def _behind(engine: BenchEngine, keys: list[bytes], parent: bytes) -> None:
    """Store keys one behind the other, the first one behind `parent`."""
    for at in range(0, len(keys), MAX_KEYS_PER_REQUEST):
        part = keys[at : at + MAX_KEYS_PER_REQUEST]
        message = Reserve(1, engine.spaces[0], "", b"".join(part), PAGE, parent=parent)
        granted = engine.bench.node.reserve(engine.client, message, engine.bench.now)
        assert engine.commit(granted.reservation) == len(part)
        parent = part[-1]


def _hold(engine: BenchEngine, keys: list[bytes]) -> None:
    numbers, _ = engine.bench.index.find(pack_keys(keys), engine.spaces[0])
    engine.area.counters[numbers] = 1


def _order(bench: Bench) -> list[bytes]:
    """Keys, first to go first."""
    blocks = bench.node.pool.table.blocks
    return [blocks[number].key for number in bench.node.pool.order.common.queue.policy.victims(bench.now)]


def test_leased_branches_stay_behind_the_trunk_they_share() -> None:
    bench, engine = bench_of(16)
    trunk, one, two = make.keys(3, "trunk"), make.keys(3, "one"), make.keys(3, "two")
    _behind(engine, trunk, b"")
    _behind(engine, one, trunk[-1])
    _behind(engine, two, trunk[-1])
    for key in [one[2], two[2], one[0], one[1], two[0], two[1], *trunk]:  # heads older than what is behind them
        engine.store([key], PAGE)
    engine.store(make.keys(7, "rest"), PAGE)
    _hold(engine, [one[-1], two[-1]])
    assert engine.store(make.keys(2, "new"), PAGE).written == 2
    position = {key: at for at, key in enumerate(_order(bench))}
    for branch in ([*trunk, *one], [*trunk, *two]):
        positions = [position[key] for key in branch]
        assert positions == sorted(positions, reverse=True), "ancestors are newer"


def test_a_leased_block_behind_too_long_a_chain_is_skipped_with_bounded_work() -> None:
    bench, engine = bench_of(BLOCKS, max_blocks=BLOCKS, segment_bytes=64 * make.MIB)
    chain, leaves = make.keys(BLOCKS - 40, "chain"), make.keys(20, "leaf")
    assert len(chain) > MAX_ANCESTORS
    _behind(engine, chain, b"")
    for leaf in leaves:
        _behind(engine, [leaf], chain[-1])
    engine.store(make.keys(20, "rest"), PAGE)
    for at in range(0, len(chain), MAX_KEYS_PER_REQUEST):
        engine.store(chain[at : at + MAX_KEYS_PER_REQUEST], PAGE)
    _hold(engine, leaves)
    assert lines_run(lambda: engine.store(make.keys(1, "new"), PAGE)) < 300_000
    assert engine.has(leaves) == [True] * 20
    assert _order(bench)[:20] == leaves, "newer than its chain would be worse"


def test_parents_that_are_gone_are_looked_up_a_bounded_number_of_times() -> None:
    bench, engine = bench_of(2048, max_blocks=4096)
    for key in make.keys(2048, "orphan"):
        _behind(engine, [key], make.keys(1, ("gone", key))[0])
    engine.area.counters[:] = 1
    looked_up = 0
    find = bench.node.pool.table.find

    def counted(*args: object) -> object:
        nonlocal looked_up
        looked_up += 1
        return find(*args)  # type: ignore[arg-type]

    bench.node.pool.table.find = counted  # type: ignore[assignment, method-assign]
    assert engine.store(make.keys(2048, "new"), PAGE).outcomes == {"POOL_FULL": 2048}
    assert 0 < looked_up <= MAX_LOOKED_UP + 1


def test_a_parent_that_was_stored_again_is_an_ancestor_again() -> None:
    bench, engine = bench_of(4)
    parent, child = make.keys(2)
    _behind(engine, [parent], b"")
    _behind(engine, [child], parent)
    engine.store(make.keys(2, "other"), PAGE)
    engine.store([child], PAGE)
    engine.store(make.keys(1, "displaces"), PAGE)
    assert engine.has([parent, child]) == [False, True]
    engine.store([parent], PAGE)
    engine.store(make.keys(1, "more"), PAGE)
    assert _order(bench)[0] == child
    _hold(engine, [child])
    assert engine.store(make.keys(1, "new"), PAGE).written == 1
    order = _order(bench)
    assert order.index(child) < order.index(parent)


def test_a_limit_below_leased_bytes_costs_little_work() -> None:
    bench, engine = bench_of(BLOCKS, max_blocks=BLOCKS, segment_bytes=64 * make.MIB)
    _behind_tenant(engine, "a")
    engine.area.counters[:] = 1
    assert bench.apply(make.quotas({"a": PAGE})) == []
    assert lines_run(lambda: bench.pass_time(0.5)) < 1_000_000
    engine.area.counters[:] = 0
    bench.pass_time(0.5)
    assert bench.tenant("a").bytes <= PAGE, "remembered until a lease ends"


def test_a_watermark_below_leased_bytes_costs_little_work() -> None:
    bench, engine = bench_of(BLOCKS, max_blocks=BLOCKS, segment_bytes=64 * make.MIB)
    _behind_tenant(engine, "")
    engine.area.counters[:] = 1
    assert bench.apply(make.policy(high_watermark=0.5, low_watermark=0.5)) == []
    assert lines_run(lambda: bench.pass_time(0.05)) < 1_000_000
    assert bench.pool.used_bytes == BLOCKS * PAGE
    engine.area.counters[:] = 0
    bench.pass_time(0.05, times=4)
    assert bench.pool.used_bytes == BLOCKS * PAGE // 2


def _behind_tenant(engine: BenchEngine, tenant: str) -> None:
    keys = make.keys(BLOCKS, "many")
    for at in range(0, BLOCKS, MAX_KEYS_PER_REQUEST):
        engine.store(keys[at : at + MAX_KEYS_PER_REQUEST], PAGE, tenant=tenant)

"""Eviction takes exactly the least recently used blocks, the tail of a chain first, none that is read."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence

import pytest

from dataplane.core.eviction.ancestors import MAX_ANCESTORS, MAX_LOOKED_UP
from dataplane.policies.age_class import AgeClass
from dataplane.policies.lru import Lru
from dataplane.protocol.codes import Code
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST, Reserve
from dataplane.protocol.events import BlocksEvicted
from dataplane.protocol.layout import A_RING_HEAD, pack_keys
from dataplane.protocol.states import State
from tests.core.tenancy import PAGE, bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine
from tests.work import lines_run


def test_a_chain_is_evicted_from_its_end() -> None:
    _, engine = bench_of(8)
    chain = make.keys(8)
    engine.store(chain, PAGE)
    for new in range(8):
        engine.store(make.keys(1, ("new", new)), PAGE)
        assert engine.lookup(chain) == 7 - new


def test_the_order_is_exactly_lru_under_random_use() -> None:
    rng = random.Random(11)
    bench, engine = bench_of(32)
    chains = [make.keys(rng.randint(1, 6), number) for number in range(30)]
    model: OrderedDict[bytes, None] = OrderedDict()
    for _ in range(600):
        chain = rng.choice(chains)
        if rng.random() < 0.4:
            leased = engine.acquire(chain)
            engine.release()
            for each in chain[:leased][::-1]:
                model.move_to_end(each)
            bench.pass_time(0.1)
            continue
        present = [each for each in chain if each in model]
        for each in reversed(present):
            model.move_to_end(each)
        missing = [each for each in chain if each not in model]
        excluded = list(present)
        while len(model) + len(missing) > 32:
            victim = next(each for each in model if each not in excluded)
            del model[victim]
        engine.store(chain, PAGE)
        for each in reversed(chain):
            model[each] = None
            model.move_to_end(each)
        everything = [each for other in chains for each in other]
        assert [each for each, ready in zip(everything, engine.has(everything), strict=True) if ready] == [
            each for each in everything if each in model
        ]


@pytest.mark.parametrize("policy", [Lru, AgeClass])
def test_no_block_outlives_its_ancestors_however_its_chain_was_stored_and_read(policy: type[Lru | AgeClass]) -> None:
    rng = random.Random(13)
    bench, engine = bench_of(40, policy=policy)
    trunk = make.keys(6, "trunk")
    chains = [trunk[: number % 7] + make.keys(rng.randint(1, 12), number) for number in range(24)]
    hits = 0
    for _ in range(120):
        bench.pass_time(0.3)
        chain = chains[min(23, int(rng.expovariate(0.15)))]
        cached = engine.lookup(chain)
        hits += cached
        own = rng.choice([0, rng.randint(0, cached), cached])  # the engine has these blocks itself
        for first in range(own, cached, 3):
            engine.acquire(chain[first : min(cached, first + 3)])
        engine.release()
        reserved = []
        at_once, size = rng.random() < 0.5, rng.choice([1, 2, 20])
        for first in range(cached, len(chain), size):
            parent = chain[first - 1] if first else b""
            granted = engine.reserve(chain[first : first + size], PAGE, parent=parent)
            if at_once and granted.reservation:
                engine.commit(granted.reservation)
            elif granted.reservation:
                reserved.append(granted.reservation)
        for reservation in reserved:
            engine.commit(reservation)
        assert engine.lookup(chain) == len(chain), "making room for a piece spares those before it"
        for other in chains:
            assert sum(engine.has(other)) == engine.lookup(other), "what is left of a chain is its start"
    assert hits > 100


def test_a_ring_is_drained_before_its_client_reserves() -> None:
    _, engine = bench_of(2)
    engine.store(make.keys(1, "old"), PAGE)
    engine.store(make.keys(1, "new"), PAGE)
    engine.acquire(make.keys(1, "old"))
    engine.release()
    engine.store(make.keys(1, "newest"), PAGE)
    assert engine.lookup(make.keys(1, "old")) == 1, "it was touched after the other"
    assert engine.lookup(make.keys(1, "new")) == 0


def test_making_room_does_not_evict_the_requested_chain() -> None:
    _, engine = bench_of(4)
    chain = make.keys(4)
    engine.store(chain[:2], PAGE)
    engine.store(make.keys(2, "other"), PAGE)
    assert engine.store(chain, PAGE).written == 2
    assert engine.lookup(chain) == 4


def test_a_chain_longer_than_the_pool_keeps_its_head_and_the_rest_is_refused() -> None:
    bench, engine = bench_of(4)
    chain = make.keys(6)
    stored = engine.store(chain, PAGE)
    assert stored.outcomes == {"WRITE": 4, "POOL_FULL": 2}
    assert engine.lookup(chain) == 4
    assert bench.refused() == {"pool_full": 2}


def test_room_is_made_inside_reserve_and_reported_once() -> None:
    bench, engine = bench_of(4)
    engine.store(make.keys(4, "old"), PAGE, tenant="a")
    bench.take_events()
    engine.store(make.keys(3, "new"), PAGE, tenant="b")
    (event,) = bench.events(BlocksEvicted)
    assert isinstance(event, BlocksEvicted)
    assert (event.tenant, event.reason, event.blocks, event.bytes) == ("a", "room", 3, 3 * PAGE)
    assert bench.tenant("a").evicted_blocks == 3


def _oldest_held() -> tuple[Bench, BenchEngine, list[bytes]]:
    """A full pool whose oldest block, which comes first in a search for room, is one that an engine looks at."""
    bench, engine = bench_of(3)
    held = make.keys(1, "held")
    engine.store(held, PAGE)
    engine.store(make.keys(2, "other"), PAGE)
    return bench, engine, held


def test_a_leased_block_stays_readable_while_others_are_evicted() -> None:
    bench, engine, held = _oldest_held()
    engine.acquire(held)
    engine.area.header[A_RING_HEAD] = 0  # nothing reported in the ring: it is the oldest
    found: list[int] = []
    bench.at_fence = lambda: found.append(engine.lookup(held))
    fences = bench.fences
    assert engine.store(make.keys(2, "new"), PAGE).written == 2
    assert found
    assert set(found) == {1}
    assert bench.node.stats(bench.now).totals.evictions_cancelled == 1
    assert bench.fences - fences <= 2, "one barrier a batch, not one a block"
    engine.release()


def test_a_block_that_is_leased_at_the_barrier_is_put_back_with_its_incarnation() -> None:
    bench, engine, held = _oldest_held()
    (block,) = (block for block in bench.node.pool.table.blocks.values() if block.key == held[0])
    before = block.control
    found: list[int] = []

    def lease() -> None:
        found.append(engine.lookup(held))
        engine.area.counters[block.number] = 1

    bench.at_fence = lease
    assert engine.store(make.keys(2, "new"), PAGE).written == 2
    assert found[0] == 0, "hidden: a reader that comes after the barrier misses it"
    assert engine.lookup(held) == 1
    assert block.control == before
    assert bench.node.stats(bench.now).totals.evictions_cancelled == 1


def test_leases_of_every_process_count() -> None:
    bench = Bench(2 * PAGE)
    one, two = bench.attach(pid=1), bench.attach(pid=2)
    one.store(make.keys(1, "a"), PAGE)
    one.store(make.keys(1, "b"), PAGE)
    one.acquire(make.keys(1, "a"))
    two.acquire(make.keys(1, "b"))
    assert one.store(make.keys(1, "c"), PAGE).outcomes == {"POOL_FULL": 1}
    two.release()
    assert one.store(make.keys(1, "c"), PAGE).written == 1
    assert two.lookup(make.keys(1, "b")) == 0
    assert two.lookup(make.keys(1, "a")) == 1


# ---- leased blocks and the chains before them


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


# ---- one search for room


KIB = 1 << 10
LARGE = 128 * KIB


def _half_old_tail(tail_keys: Sequence[bytes]) -> tuple[Bench, BenchEngine]:
    """A pool whose last segment ends in a slab too short for large blocks; four large ones in it, and then what is in
    that slab, are the oldest."""
    bench = Bench(34 * make.MIB + 64 * KIB, segment_bytes=4 * make.MIB)
    engine = bench.attach()
    others = make.keys(256, "others")
    engine.store(others, LARGE)
    last = make.keys(16, "last")
    for key in last:
        engine.store([key], LARGE)
    assert engine.store(tail_keys, 4 * KIB).written == 16
    segments = list(bench.node.pool.slabs.segments.values())
    assert sorted(len(slab.blocks) for slab in segments[-1].slabs) == [16, 16]
    assert len({slab.slot_bytes for slab in segments[-1].slabs}) == 2
    for key in [*last[4:], *others]:
        engine.store([key], LARGE)
    return bench, engine


def test_a_half_visited_segment_is_evicted_without_blocks_that_left() -> None:
    bench, engine = _half_old_tail(make.keys(16, "tail"))
    for number in range(3):
        assert engine.store(make.keys(6, ("new", number)), LARGE).written == 6
        assert bench.faults() == []


def test_when_counting_leases_fails_every_block_is_readable_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(8 * 4 * KIB)
    engine = bench.attach()
    chain = make.keys(8)
    engine.store(chain, 4 * KIB)

    def fails(numbers: Sequence[int]) -> list[bool]:
        raise OSError("no barrier")

    with monkeypatch.context() as patch:
        patch.setattr(bench.node.pool.leases, "held", fails)
        with pytest.raises(OSError, match="no barrier"):
            engine.store(make.keys(3, "new"), 4 * KIB)
    assert engine.lookup(chain) == 8
    assert {block.state for block in bench.node.pool.table.blocks.values()} == {State.READY}
    assert engine.store(make.keys(3, "new"), 4 * KIB).written == 3


def test_fragmentation_is_reported_only_while_enough_is_evictable() -> None:
    bench = Bench(2 * make.MIB)
    engine = bench.attach()
    engine.store(make.keys(16, "small"), LARGE)
    numbers, _ = bench.index.find(pack_keys(make.keys(1, "small")), engine.spaces[0])
    engine.area.counters[numbers] = 1
    whole = make.keys(1, "whole")
    assert engine.store(whole, 2 * LARGE).outcomes == {"FRAGMENTED": 1}
    assert engine.reserve(make.keys(14, "being written"), LARGE).reservation
    assert engine.store(whole, 2 * LARGE).outcomes == {"POOL_FULL": 1}, "one block may still go"


def test_a_fully_leased_pool_is_not_searched_block_by_block() -> None:
    bench, engine = bench_of(512)
    chain = make.keys(512)
    engine.store(chain, PAGE)
    assert engine.acquire(chain) == 512
    before = bench.node.pool.totals.evictions_cancelled
    assert engine.reserve(make.keys(1, "more"), PAGE).outcomes.tolist() == [Code.POOL_FULL]
    assert bench.node.pool.totals.evictions_cancelled - before <= 2
    engine.release()
    assert engine.store(make.keys(1, "more"), PAGE).written == 1

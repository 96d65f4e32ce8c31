"""Who goes first: exactly the least recently used, the tail of a prefix before its head."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from dataplane.core.stats import node_stats
from dataplane.policies.age_class import AgeClass
from dataplane.policies.lru import Lru
from dataplane.protocol.events import BlocksEvicted
from tests.core.tenancy import bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench

PAGE = 4096


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
    bench.node.take_events()
    engine.store(make.keys(3, "new"), PAGE, tenant="b")
    (event,) = bench.events(BlocksEvicted)
    assert isinstance(event, BlocksEvicted)
    assert (event.tenant, event.reason, event.blocks, event.bytes) == ("a", "room", 3, 3 * PAGE)
    assert bench.tenant("a").evicted_blocks == 3


def test_a_leased_block_is_put_back_with_its_incarnation() -> None:
    bench, engine = bench_of(3)
    leased, other = make.keys(1, "held"), make.keys(2, "other")
    engine.store(leased, PAGE)
    engine.store(other, PAGE)
    engine.acquire(leased)
    engine.area.header[8] = 0  # nothing reported in the ring: it is the oldest
    before = {block.number: block.control for block in bench.node.pool.table.blocks.values() if block.key == leased[0]}
    fences = bench.fences
    assert engine.store(make.keys(2, "new"), PAGE).written == 2
    assert engine.lookup(leased) == 1
    assert node_stats(bench.node, bench.now).totals.evictions_cancelled == 1
    after = {block.number: block.control for block in bench.node.pool.table.blocks.values() if block.key == leased[0]}
    assert after == before
    assert bench.fences - fences <= 2, "one barrier a batch, not one a block"
    engine.release()


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

"""Hot prefixes: what many prompts share is found, listed and can be pinned, in bounded memory and work."""

from __future__ import annotations

import tracemalloc

import pytest

from dataplane.core.blocks.blocks import Block
from dataplane.core.engines.prefixes import MAX_KEYS, TOTAL_SKETCH_SIZE, WINDOW_S, PrefixSketches
from dataplane.core.operator import hot_prefixes
from dataplane.protocol.codes import Code
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.engine import Reserve
from tests.core.tenancy import PAGE, bench_of, fill
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine, refused


def serve(engine: BenchEngine, chain: list[bytes], tenant: str = "", space: int = 0) -> None:
    """One request: look up, read, store the rest."""
    hits = engine.acquire(chain, space)
    if hits < len(chain):
        engine.store(chain, PAGE, tenant=tenant, space=space)
    engine.release()


def converse(engine: BenchEngine, conversations: int, turns: int, tenant: str = "a") -> list[bytes]:
    """Conversations that share a system prompt of twelve blocks; the shared keys."""
    system = make.keys(12, ("system", tenant))
    for number in range(conversations):
        for turn in range(1, turns + 1):
            serve(engine, [*system, *make.keys(3 * turn, (tenant, number))], tenant)
    return system


def test_a_shared_system_prompt_is_found_with_its_depth_hits_and_bytes() -> None:
    bench, engine = bench_of(4096)
    system = converse(engine, 40, 3)
    bench.pass_time(0.1)
    top = bench.hot_prefixes("hits", "a", 5)[0]
    assert (top.depth, top.tenant, top.model, top.resident) == (12, "a", make.MODEL, 12)
    assert top.hits == 39 * 3, "every request since a second conversation made it a shared one"
    assert top.bytes_served == 12 * PAGE * top.hits
    assert top.error == 0
    assert bench.hot_prefix(top.label).keys == make.packed(system)


def test_every_tenant_has_its_own() -> None:
    bench, engine = bench_of(4096)
    for tenant in ("a", "b"):
        converse(engine, 10, 2, tenant)
    bench.pass_time(0.1)
    assert {each.tenant for each in bench.hot_prefixes("hits", "b", 50)} == {"b"}
    assert bench.hot_prefixes("bytes", "nobody", 50) == []


def test_ranks_of_one_model_count_a_request_once() -> None:
    ranks = tuple(make.space(rank=rank, world_size=2) for rank in range(2))
    bench, engine = bench_of(4096, spaces=ranks)
    chain = make.keys(8)
    for _ in range(5):
        for space in range(2):
            serve(engine, chain, space=space)
    bench.pass_time(0.1)
    listed = bench.hot_prefixes("hits", None, 50)
    assert [(each.depth, each.hits) for each in listed] == [(8, 4)]


def test_a_prefix_is_listed_for_an_hour_under_one_label() -> None:
    bench, engine = bench_of(4096)
    converse(engine, 10, 1)
    bench.pass_time(0.1)
    label = bench.hot_prefixes("hits", None, 1)[0].label
    for _ in range(11):
        bench.pass_time(WINDOW_S)
        serve(engine, make.keys(2, "other"))
        assert label in {each.label for each in bench.hot_prefixes("hits", None, 50)}
    bench.pass_time(2 * WINDOW_S)
    assert label not in {each.label for each in bench.hot_prefixes("hits", None, 50)}
    with refused(Code.UNKNOWN_PREFIX):
        bench.hot_prefix(label)


def test_an_evicted_prefix_is_listed_with_its_resident_blocks() -> None:
    bench, engine = bench_of(128)
    converse(engine, 6, 1)
    bench.pass_time(0.1)
    fill(engine, "scan", 512)
    top = bench.hot_prefixes("hits", "a", 1)[0]
    assert (top.depth, top.resident) == (12, 0)
    assert len(bench.hot_prefix(top.label).keys) == 12 * 32


def test_the_heaviest_is_found_among_many_that_come_once() -> None:
    bench, _ = bench_of(64)
    prefixes = PrefixSketches()
    hot = chain_of(bench, 8, "hot")
    for number in range(20_000):
        prefixes.served(chain_of(bench, 4, number), bench.now)
        if number % 50 == 0:
            prefixes.served(hot, bench.now)
    top = prefixes.top("hits", None, 1, bench.now)[0]
    assert top.end == hot[0].key
    assert 400 <= top.hits <= 400 + top.error


@pytest.mark.full
def test_a_million_different_blocks_take_bounded_memory() -> None:
    bench, _ = bench_of(64)
    prefixes = PrefixSketches()
    count = 12_000
    step_s = 4000 / count
    tracemalloc.start()
    try:
        for number in range(count):
            prefixes.served(chain_of(bench, 64, number), bench.now + number * step_s)
        early, _ = tracemalloc.get_traced_memory()
        for number in range(count, count * 5 // 3):
            prefixes.served(chain_of(bench, 64, number), bench.now + number * step_s)
        late, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert late < 1.1 * early, "it no longer grows"
    assert late < 300 * MAX_KEYS


def chain_of(bench: Bench, length: int, name: object) -> list[Block]:
    """Blocks that are in no pool, last block first."""
    tenant = bench.node.pool.tenants.get("a")
    seed = make.key(name)
    keys = [at.to_bytes(4, "big") + seed[4:] for at in range(length)]
    return [Block(0, PAGE, 0, 0, 1, key, tenant, None, PAGE, None) for key in reversed(keys)]  # type: ignore[arg-type]


def test_blocks_behind_a_named_parent_count_as_a_branch() -> None:
    bench, engine = bench_of(256)
    system = make.keys(6)
    engine.store(system, PAGE)
    for number in range(4):
        tail = make.keys(2, number)
        message = Reserve(1, engine.spaces[0], "", make.packed(tail), PAGE, system[-1])
        engine.commit(bench.node.reserve(engine.client, message, bench.now).reservation)
    for number in range(4):
        serve(engine, [*system, *make.keys(2, number)])
    bench.pass_time(0.1)
    top = bench.hot_prefixes("hits", None, 1)[0]
    assert (top.depth, top.hits) == (6, 4)


def test_a_hot_prefix_keeps_its_model_when_nothing_of_that_is_cached_any_more() -> None:
    bench, engine = bench_of(128)
    converse(engine, 3, 1)
    bench.pass_time(0.1)
    engine.detach_cleanly()
    bench.node.invalidate(Scope(model=make.MODEL), bench.now)
    bench.pass_time(1.0, times=4)
    assert not bench.node.pool.spaces.by_number, "the space is forgotten"
    top = bench.hot_prefixes("hits", None, 1)[0]
    assert (top.model, top.resident) == (make.MODEL, 0)
    assert bench.hot_prefix(top.label).keys


# ---- lists


def test_a_window_that_is_over_keeps_less_of_each_tenant_and_the_heaviest_of_all() -> None:
    bench, _ = bench_of(64)
    prefixes = PrefixSketches()
    for owner in range(100):
        tenant = bench.node.pool.tenants.get(f"t{owner}")
        for number in range(40):
            chain = chain_of(bench, 2, (owner, number))
            for block in chain:
                block.tenant = tenant
            for _ in range(2 if number == 7 else 1):
                prefixes.served(chain, bench.now)
    assert len(prefixes.top("hits", None, 10_000, bench.now)) == 4000
    bench.now += WINDOW_S
    prefixes.served(chain_of(bench, 2, "next"), bench.now)
    listed = prefixes.top("hits", None, 10_000, bench.now)
    assert len(listed) <= TOTAL_SKETCH_SIZE + 1
    assert sum(each.hits == 2 for each in listed) == 100, "the heaviest of every tenant"


def test_residency_of_very_long_lists_is_estimated_from_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_prefixes, "MAX_LOOKED_UP", 64)
    bench, engine = bench_of(512)
    for number in range(4):
        engine.store(make.keys(100, number), PAGE)
        engine.acquire(make.keys(100, number))
        engine.release()
    bench.pass_time(0.1)
    assert [each.resident for each in bench.hot_prefixes("hits", None, 9)] == [100] * 4
    fill(engine, "scan", 512)
    assert [each.resident for each in bench.hot_prefixes("hits", None, 9)] == [0] * 4


def test_prefixes_in_several_spaces_are_each_looked_up_in_their_own() -> None:
    bench, engine = bench_of(2048, spaces=(make.space(), make.space("other-model")))
    for space, length in ((0, 5), (1, 9)):
        chain = make.keys(length, space)
        engine.store(chain, PAGE, space=space)
        engine.acquire(chain, space)
        engine.release()
    bench.pass_time(0.1)
    listed = bench.hot_prefixes("bytes", None, 9)
    assert [(each.model, each.depth, each.resident) for each in listed] == [("other-model", 9, 9), (make.MODEL, 5, 5)]


def test_equal_keys_in_two_spaces_are_counted_apart() -> None:
    bench, engine = bench_of(2048, spaces=(make.space(), make.space("other-model")))
    chain = make.keys(5)
    for space, requests in ((0, 2), (1, 3)):
        engine.store(chain, PAGE, space=space)
        for _ in range(requests):
            engine.acquire(chain, space)
            engine.release()
    bench.pass_time(0.1)
    listed = bench.hot_prefixes("hits", None, 9)
    assert [(prefix.model, prefix.hits, prefix.resident) for prefix in listed] == [
        ("other-model", 3, 5),
        (make.MODEL, 2, 5),
    ]
    assert {prefix.bytes_served for prefix in listed} == {2 * 5 * PAGE, 3 * 5 * PAGE}


def test_a_label_means_the_space_that_is_in_use() -> None:
    bench, engine = bench_of(2048)
    chain = make.keys(5)
    engine.store(chain, PAGE)
    for _ in range(3):
        engine.acquire(chain)
        engine.release()
    bench.pass_time(0.1)
    engine.detach_cleanly()
    bench.node.invalidate(Scope(model=make.MODEL), bench.now)
    bench.pass_time(1.0, times=4)
    assert not bench.node.pool.spaces.by_number, "the space is forgotten"
    again = bench.attach(make.space("other-model"))
    again.store(chain, PAGE)
    again.acquire(chain)
    bench.pass_time(0.1)
    listed = bench.hot_prefixes("hits", None, 9)
    assert [(prefix.model, prefix.hits) for prefix in listed] == [(make.MODEL, 3), ("other-model", 1)]
    (label,) = {prefix.label for prefix in listed}
    assert bench.hot_prefix(label).model == "other-model"


@pytest.mark.parametrize("label", ["", "p-", "p-zz", "p-00", "p-0000000000000000", "é"])
def test_a_label_that_names_nothing_is_refused(label: str) -> None:
    bench, engine = bench_of(64)
    engine.store(make.keys(2), PAGE)
    engine.acquire(make.keys(2))
    bench.pass_time(0.1)
    with refused(Code.UNKNOWN_PREFIX):
        bench.hot_prefix(label)

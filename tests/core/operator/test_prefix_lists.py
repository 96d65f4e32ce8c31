"""Lists of hot prefixes take bounded work, however many there are."""

from __future__ import annotations

import pytest

from dataplane.core.engines.prefixes import TOTAL_SKETCH_SIZE, WINDOW_S, PrefixSketches
from dataplane.core.operator import hot_prefixes
from dataplane.protocol.codes import Code
from dataplane.protocol.control.scopes import Scope
from tests.core.operator.test_prefixes import chain_of
from tests.core.tenancy import PAGE, bench_of, fill
from tests.dataplane import factories as make
from tests.dataplane.bench_node import refused


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
    bench.node.operator.invalidate(Scope(model=make.MODEL), bench.now)
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

"""Clearing is the invalidation of everything."""

from __future__ import annotations

import pytest

from dataplane.protocol.codes import Code
from dataplane.protocol.layout import H_INVALID_COUNT
from tests.core.tenancy import PAGE, bench_of, fill
from tests.core.tenants.test_sweeps import seen, settle
from tests.dataplane import factories as make
from tests.dataplane.bench_node import refused


@pytest.mark.parametrize("permanent", [False, True])
def test_clear_removes_everything_but_permanent_pins_by_default(*, permanent: bool) -> None:
    bench, engine = bench_of(256, pin_budget_bytes=64 * PAGE)
    leased, pinned, loose = make.keys(4, "kept"), make.keys(4, "pinned"), make.keys(4, "loose")
    for chain in (leased, pinned, loose):
        engine.store(chain, PAGE, tenant="a")
    fill(engine, "b", 20)
    forever = make.pin("kept", leased, tenant="a", strength="permanent")
    bench.apply(*make.pins([forever, make.pin("pinned", pinned, tenant="a")]))
    bench.node.operator.clear(bench.now, permanent=permanent)
    left = 0 if permanent else 4
    assert [seen(engine, chain) for chain in (leased, pinned, loose)] == [left, 0, 0]
    settle(bench)
    assert len(bench.node.pool.table.blocks) == left
    assert bench.index.header[H_INVALID_COUNT] == 0
    assert engine.store(leased, PAGE, tenant="a").written == 4 - left
    assert bench.pin("kept").guaranteed == 4, "the pin holds what is stored again"


def test_leased_blocks_go_with_their_lease_and_reserved_ones_are_not_published() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(4)
    engine.store(chain, PAGE)
    engine.acquire(chain[:2])
    opened = engine.reserve(make.keys(2, "open"), PAGE)
    bench.node.operator.clear(bench.now, permanent=False)
    with refused(Code.INVALIDATED):
        engine.commit(opened.reservation)
    settle(bench)
    assert len(bench.node.pool.table.blocks) == 2
    engine.release()
    settle(bench)
    assert not bench.node.pool.table.blocks

"""Operators may ask for the same again and again: what waits to be demoted waits once."""

from __future__ import annotations

import pytest

from dataplane.core.pool import sweeps
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.events import SweepEnded
from tests.core.tenancy import PAGE, bench_of
from tests.core.tenants.test_sweeps import seen
from tests.dataplane import factories as make

ALL = Scope(model=make.MODEL)


def test_demotions_of_the_same_blocks_are_queued_once_and_all_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "CHUNK", 16)
    bench, engine = bench_of(256)
    engine.store(make.keys(200), PAGE)
    numbers = [bench.node.operator.demote(ALL, bench.now).sweep for _ in range(50)]
    queued = sum(len(sweep.queue) for sweep in bench.node.pool.sweeps.active)
    assert queued < 200
    bench.events(SweepEnded)
    done = []
    for _ in range(100):
        bench.pass_time(0.05)
        done += [event.sweep for event in bench.events(SweepEnded) if isinstance(event, SweepEnded)]
    assert sorted(done) == numbers
    assert not bench.node.pool.sweeps.active


@pytest.mark.parametrize(("then", "demoted"), [(None, set()), (Scope(tenant="a"), {"a"}), (ALL, {"a", "b"})])
def test_a_block_that_reuses_a_waiting_descriptor_is_demoted_only_if_in_scope(
    monkeypatch: pytest.MonkeyPatch, then: Scope | None, demoted: set[str]
) -> None:
    """`then` is the scope of a demotion after the descriptors were reused; None for no demotion."""
    monkeypatch.setattr(sweeps, "CHUNK", 8)
    bench, engine = bench_of(64)
    engine.store(make.keys(64), PAGE)
    bench.node.operator.demote(ALL, bench.now)
    waiting = {number for sweep in bench.node.pool.sweeps.active for number in sweep.queue.tolist()}
    for tenant in ("a", "b"):
        engine.store(make.keys(32, tenant), PAGE, tenant=tenant)
    blocks = bench.node.pool.table.blocks.values()
    assert {block.tenant.salt for block in blocks if block.number in waiting} == {"a", "b"}
    if then is not None:
        bench.node.operator.demote(then, bench.now)
    bench.pass_time(0.05, times=30)
    assert not bench.node.pool.sweeps.active
    assert {block.tenant.salt for block in blocks if block.rank.name == "DEMOTED"} == demoted


def test_beyond_the_limit_of_sweeps_one_covers_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "MAX_ACTIVE", 3)
    bench, engine = bench_of(256)
    chains = {f"t{number}": make.keys(4, number) for number in range(10)}
    for tenant, chain in chains.items():
        engine.store(chain, PAGE, tenant=tenant)
    numbers = [bench.node.operator.invalidate(Scope(tenant=tenant), bench.now).sweep for tenant in chains]
    assert numbers == [1, 2, 3, 3, 3, 3, 3, 3, 3, 3]
    assert all(seen(engine, chain) == 0 for chain in chains.values())
    bench.pass_time(0.05, times=10)
    assert not bench.node.pool.table.blocks

"""Very many pins, and very many spaces that a pin could hold in, cost little more than one."""

from __future__ import annotations

import pytest

from dataplane.core.blocks.blocks import BlockTable
from dataplane.core.operator import intent as intent_module
from dataplane.core.stats import node_stats
from dataplane.protocol.spaces import Space
from tests.core.tenancy import PAGE, bench_of
from tests.dataplane import factories as make


def test_pins_of_equal_keys_hold_as_the_strongest_of_them() -> None:
    bench, engine = bench_of(64, pin_budget_bytes=16 * PAGE)
    chain = make.keys(4)
    engine.store(chain, PAGE)
    soft, firm = make.pin("soft", chain, strength="soft"), make.pin("firm", chain)
    for_ever = make.pin("for ever", chain, strength="permanent")
    guaranteed = []
    for number, records in enumerate(([soft], [soft, firm], [firm, soft, for_ever], [firm], [soft, firm], [soft], [])):
        assert bench.apply(*make.pins(records, number + 1)) == []
        guaranteed.append((bench.pool.pinned_bytes // PAGE, len(bench.node.pool.pins.permanent)))
        stats = node_stats(bench.node, bench.now).pins
        assert [(pin.resident, pin.bytes) for pin in stats] == [(4, 4 * PAGE)] * len(records)
        assert bench.faults() == []
    assert guaranteed == [(0, 0), (4, 0), (4, 4), (4, 0), (4, 0), (0, 0), (0, 0)]


def test_of_pins_of_equal_keys_each_ends_at_its_own_time() -> None:
    bench, engine = bench_of(64, pin_budget_bytes=16 * PAGE)
    chain = make.keys(4)
    engine.store(chain, PAGE)
    records = [
        make.pin("short", chain, expires_at=bench.now + 10),
        make.pin("kept by hits", chain, expires_at=bench.now + 10, refresh_s=20, strength="soft"),
    ]
    bench.apply(*make.pins(records))
    bench.pass_time(5)
    engine.acquire(chain)
    bench.pass_time(1)
    late = make.pin("late", chain, expires_at=bench.now + 5, refresh_s=100, strength="soft")
    bench.apply(*make.pins([*records, late], 2))
    assert bench.pool.pinned_bytes == 4 * PAGE
    bench.pass_time(8)
    ends = {pin.name: (pin.expired, pin.resident) for pin in node_stats(bench.node, bench.now).pins}
    assert ends == {"short": (True, 0), "kept by hits": (False, 4), "late": (True, 0)}
    assert bench.pool.pinned_bytes == 0, "a soft pin is all that is left"
    bench.pass_time(20)
    assert bench.pin("kept by hits").expired
    assert not bench.node.pool.pins.marked


def test_a_block_knows_pins_of_equal_keys_as_one() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(4)
    engine.store(chain, PAGE)
    assert bench.apply(*make.pins([make.pin(f"p{number}", chain) for number in range(50)])) == []
    assert [len(bundles) for bundles in bench.node.pool.pins.marked.values()] == [1] * len(bench.node.pool.table.blocks)
    assert len({id(pin.keys) for pin in bench.node.pool.pins.by_name.values()}) == 1


def test_more_keys_of_pins_than_a_node_keeps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intent_module, "MAX_PINNED_KEYS", 10)
    bench, _ = bench_of(64)
    chain = make.keys(6)
    same = [make.pin(f"p{number}", chain) for number in range(5)]
    assert bench.apply(*make.pins(same)) == [], "the same keys count once"
    (fault,) = bench.apply(*make.pins([*same, make.pin("other", make.keys(5, "other"))], 2))
    assert (fault.path, fault.code) == ("pins", "too_many")
    assert len(bench.node.pool.pins.by_name) == 5, "nothing changed"


def test_a_pin_is_not_looked_up_in_spaces_that_hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = tuple(Space(model=make.MODEL, revision=str(number)) for number in range(100))
    bench, engine = bench_of(64, spaces=spaces)
    engine.store(make.keys(4), PAGE, space=7)
    looked = []
    find = BlockTable.find

    def counted(table: BlockTable, words: object, space: int) -> object:
        looked.append(space)
        return find(table, words, space)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockTable, "find", counted)
    bench.apply(*make.pins([make.pin("p", make.keys(4))]))
    assert looked == [engine.spaces[7]]
    assert bench.pin("p").resident == 4

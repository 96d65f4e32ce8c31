"""What an invalidation of a prefix reaches: exactly what comes behind it, whatever keys and parents engines make up."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dataplane.core.engines import touching
from dataplane.core.pool.lineage import among, descendants, identities
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.engine import Reserve
from dataplane.protocol.layout import pack_keys
from tests.core.tenancy import PAGE, bench_of
from tests.core.tenants.test_sweeps import seen, settle
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine


def begun(engine: BenchEngine, chain: list[bytes], parent: bytes = b"", tenant: str = "") -> int:
    """An open reservation of a chain that comes behind a key."""
    request = Reserve(1, engine.spaces[0], tenant, make.packed(chain), PAGE, parent=parent)
    granted = engine.bench.node.reserve(engine.client, request, engine.bench.now)
    return granted.reservation


def invalid_of(bench: Bench) -> set[int]:
    reservations = [each for engine in bench.node.engines.values() for each in engine.reservations.values()]
    return {each.number for each in reservations if each.invalid}


def test_equal_keys_have_equal_numbers_beside_similar_keys() -> None:
    rng = random.Random(3)
    words = np.array([[rng.choice((0, 1, 7)) for _ in range(4)] for _ in range(2000)], np.uint64)
    spaces = np.array([rng.choice((1, 2)) for _ in range(2000)], np.uint64)
    names, count = identities(words, spaces)
    meant = [(*row, space) for row, space in zip(words.tolist(), spaces.tolist(), strict=True)]
    pairs = set(zip(names.tolist(), meant, strict=True))
    assert len(pairs) == len(set(meant)) == count == names.max() + 1
    assert identities(words[:0], spaces[:0])[1] == 0


def test_requested_keys_are_compared_whole() -> None:
    one = make.keys(1)[0]
    alike = one[:8] + bytes(24)
    assert among(pack_keys([one, alike]), [one]).tolist() == [True, False]
    assert among(pack_keys([one]), []).tolist() == [False]


def test_descendants_are_found_at_any_depth_and_also_in_circles() -> None:
    rng = random.Random(5)
    for count in (1, 2, 7, 100, 1000):
        parents = [rng.randrange(-1, count) for _ in range(count)]
        chosen = [rng.random() < 0.1 for _ in range(count)]
        expected = []
        for at in range(count):
            seen_before: set[int] = set()
            while at >= 0 and at not in seen_before and not chosen[at]:
                seen_before.add(at)
                at = parents[at]
            expected.append(at >= 0 and chosen[at])
        assert descendants(np.array(parents), np.array(chosen)).tolist() == expected
    chain = np.arange(-1, 49_999)
    assert descendants(chain, chain == 99).sum() == 50_000 - 100


def test_a_made_up_parent_takes_nothing_of_another_tenant_along() -> None:
    bench, engine = bench_of(256)
    mine, theirs = make.keys(3, "mine"), make.keys(6, "theirs")
    engine.store(mine, PAGE, tenant="a")
    engine.store(theirs, PAGE, tenant="b")
    alike = theirs[0][:8] + bytes(24)
    engine.commit(begun(engine, [alike], mine[-1], "evil"))
    assert seen(engine, [alike]) == 1
    bench.node.operator.invalidate(Scope(keys=make.packed(mine)), bench.now)
    assert (seen(engine, mine), seen(engine, [alike]), seen(engine, theirs)) == (0, 0, 6)
    settle(bench)
    assert seen(engine, theirs) == 6


def test_branches_from_the_middle_of_a_prefix_stay() -> None:
    bench, engine = bench_of(256)
    trunk, branch, behind = make.keys(4), make.keys(3, "branch"), make.keys(3, "behind")
    engine.store(trunk, PAGE)
    engine.store([*trunk[:2], *branch], PAGE)
    engine.store([*trunk, *behind], PAGE)
    bench.node.operator.invalidate(Scope(keys=make.packed(trunk)), bench.now)
    assert seen(engine, trunk) == 0
    assert [seen(engine, [key]) for key in (*branch, *behind)] == [1, 1, 1, 0, 0, 0]


def test_reservations_behind_each_other_are_covered_in_any_order() -> None:
    bench, engine = bench_of(1024)
    trunk, heads, apart = make.keys(2), make.keys(30, "heads"), make.keys(3, "apart")
    engine.store(trunk, PAGE)
    numbers = set()
    for at in reversed(range(30)):
        before = heads[at - 1] if at else trunk[-1]
        numbers.add(begun(engine, [heads[at]], before))
    other = begun(engine, apart)
    bench.node.operator.invalidate(Scope(keys=make.packed(trunk)), bench.now)
    assert invalid_of(bench) == numbers
    assert engine.commit(other) is not None
    assert seen(engine, apart) == 3


def test_an_invalidation_looks_at_so_many_keys_and_takes_the_longest_reservations_unseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(touching, "MAX_KEYS", 16)
    bench, engine = bench_of(1024)
    trunk = make.keys(2)
    engine.store(trunk, PAGE)
    small = begun(engine, make.keys(4, "small"))
    begun(engine, make.keys(1, "next"), trunk[-1])
    long = make.keys(14, "long")
    begun(engine, long)
    begun(engine, make.keys(2, "after"), long[-1])
    bench.node.operator.invalidate(Scope(keys=make.packed(trunk)), bench.now)
    assert len(invalid_of(bench)) == 3
    assert small not in invalid_of(bench), "nothing of it is behind the prefix, and it was looked at"

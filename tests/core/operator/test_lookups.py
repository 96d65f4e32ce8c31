"""What the node says of a chain is what an engine of the model would find."""

from __future__ import annotations

import pytest

from dataplane.core.operator import listing
from dataplane.core.operator.listing import look_up
from dataplane.core.stats import node_stats
from dataplane.protocol.codes import Code
from dataplane.protocol.control.lookups import LookupChain, SpaceHits
from dataplane.protocol.control.scopes import Scope
from tests.core.tenancy import PAGE, bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, refused

ONE, TWO, OTHER = make.space(dtype="bf16"), make.space(dtype="fp8"), make.space("other")


def ask(bench: Bench, chain: list[bytes], tenant: str | None = None, model: str = make.MODEL) -> list[SpaceHits]:
    """All parts of an answer."""
    found: list[SpaceHits] = []
    after = 0
    while True:
        part, after = look_up(bench.node.pool, LookupChain("n", model, make.packed(chain), tenant, after))
        found += part
        if not after:
            return found


def figures(found: list[SpaceHits]) -> list[tuple[int, int]]:
    return [(each.hits["l1"], each.resident["l1"]) for each in found]


def test_each_space_of_the_model_has_its_leading_and_resident_blocks() -> None:
    bench, engine = bench_of(1536, spaces=(ONE, TWO, OTHER))
    chain = make.keys(8)
    engine.store(chain[:6], PAGE)
    engine.store(chain[:2], PAGE, space=1)
    engine.store(chain[4:], PAGE, space=1)
    engine.store(chain, PAGE, space=2)
    found = ask(bench, chain)
    assert [(each.identity, each.space.dtype) for each in found] == [(ONE.identity(), "bf16"), (TWO.identity(), "fp8")]
    assert figures(found) == [(6, 6), (2, 6)]
    assert figures(ask(bench, chain, model="other")) == [(8, 8)]
    assert ask(bench, chain, model="unknown") == []


def test_blocks_of_another_tenant_are_misses_when_a_tenant_is_named() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(4)
    engine.store(chain, PAGE, tenant="a")
    assert figures(ask(bench, chain, "a")) == [(4, 4)]
    assert figures(ask(bench, chain, "b")) == [(0, 0)]
    assert figures(ask(bench, chain, "")) == [(0, 0)]
    assert figures(ask(bench, chain)) == [(4, 4)]
    assert "b" not in bench.node.pool.tenants.by_salt, "a lookup creates no account"


def test_invalidated_and_reserved_blocks_are_misses() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(4)
    engine.store(chain[:3], PAGE, tenant="a")
    engine.reserve(chain, PAGE, tenant="a")
    assert figures(ask(bench, chain)) == [(3, 3)]
    bench.node.operator.invalidate(Scope(tenant="a"), bench.now)
    assert figures(ask(bench, chain)) == [(0, 0)]


def test_looking_uses_nothing() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(4)
    engine.store(chain, PAGE)
    before = [(block.used_at, block.hits) for block in bench.node.pool.table.blocks.values()]
    bench.pass_time(10)
    ask(bench, chain)
    bench.pass_time(10)
    assert [(block.used_at, block.hits) for block in bench.node.pool.table.blocks.values()] == before
    assert node_stats(bench.node, bench.now).totals.requested_blocks == 0


def test_very_many_spaces_come_in_bounded_parts_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_LOOKED_UP", 8)
    spaces = [make.space(rank=rank, world_size=30) for rank in range(30)]
    bench = Bench(64 * make.MIB)
    engine = bench.attach(*spaces)
    chain = make.keys(3)
    for space in range(0, 30, 2):
        engine.store(chain[: 1 + space % 3], PAGE, space=space)
    part, following = look_up(bench.node.pool, LookupChain("n", make.MODEL, make.packed(chain)))
    assert 0 < len(part) < 30
    assert following
    found = ask(bench, chain)
    assert [each.space.rank for each in found] == list(range(30))
    assert figures(found) == [(0, 0) if rank % 2 else (1 + rank % 3,) * 2 for rank in range(30)]


@pytest.mark.parametrize(
    ("message", "code", "field"),
    [
        (LookupChain("n", "", make.packed(make.keys(1))), Code.BAD_FIELD, "model"),
        (LookupChain("n", "m" * 300, make.packed(make.keys(1))), Code.BAD_FIELD, "model"),
        (LookupChain("n", "m", b""), Code.BAD_KEYS, "keys"),
        (LookupChain("n", "m", bytes(33)), Code.BAD_KEYS, "keys"),
        (LookupChain("n", "m", make.packed(make.keys(1)), "a/b"), Code.BAD_SALT, "tenant"),
    ],
)
def test_a_wrong_question_names_its_field(message: LookupChain, code: Code, field: str) -> None:
    bench, _ = bench_of(8)
    with refused(code, field):
        look_up(bench.node.pool, message)

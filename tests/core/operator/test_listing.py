"""Blocks in pages, and how much of a chain is cached: found without using anything."""

from __future__ import annotations

from typing import Any

import pytest

from dataplane.core.operator import listing
from dataplane.core.operator.listing import list_blocks, look_up
from dataplane.protocol.control.lookups import MAX_LISTED_BLOCKS, CachedBlock, ListBlocks, LookupChain, SpaceHits
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.engine import Commit
from dataplane.protocol.spaces import LMCACHE
from tests.core.gateway import peer
from tests.core.gateway import space as gateway_space
from tests.core.tenancy import PAGE, bench_of, fill
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench

ONE, TWO, OTHER = make.space(dtype="bf16"), make.space(dtype="fp8"), make.space("other")


def listed(bench: Bench, **fields: Any) -> list[CachedBlock]:
    """All parts of a listing."""
    found: list[CachedBlock] = []
    after = 0
    while True:
        part, after = list_blocks(bench.node.pool, ListBlocks("n", after=after, **fields))
        found += part
        if not after:
            return found


def hexes(chain: list[bytes]) -> list[str]:
    return [key.hex() for key in chain]


def test_a_listed_block_has_all_its_details() -> None:
    bench, engine = bench_of(64, spaces=(ONE,), pin_budget_bytes=64 * PAGE)
    chain = make.keys(2)
    granted = engine.reserve(chain, 4000, tenant="a")
    sums = b"".join(bytes([1 + at]) * 16 for at in range(2))
    bench.node.commit(engine.client, Commit(1, granted.reservation, b"", sums), bench.now)
    system = make.pin("system", chain, tenant="a", strength="permanent")
    bench.apply(*make.pins([system, make.pin("more", chain[:1], tenant="a")]))
    stored = bench.now
    bench.pass_time(5)
    engine.acquire(chain)
    bench.pass_time(5)
    engine.acquire(chain[:1])
    bench.pass_time(5)
    first, second = listed(bench)
    assert (first.key, second.key) == tuple(hexes(chain))
    assert (first.tenant, first.model, first.space) == ("a", make.MODEL, ONE.identity())
    assert (first.tier, first.state, first.bytes) == ("l1", "ready", 4000)
    assert first.charged_bytes >= 4000
    assert (first.leases, second.leases) == (2, 1)
    assert (sorted(first.pins), second.pins) == (["more", "system"], ["system"])
    assert (first.strength, first.guaranteed) == ("permanent", True)
    assert first.stored_at == pytest.approx(stored)
    assert first.used_at == pytest.approx(bench.now)
    assert (first.hits, second.hits) == (2, 1)
    assert (first.checksum, second.checksum) == ("01" * 16, "02" * 16)
    assert (first.parent, second.parent) == ("", first.key)


def test_states_are_returned_for_misses_too() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(6)
    engine.store(chain[:2], PAGE, tenant="a")
    engine.acquire(chain[:1])
    bench.node.invalidate(Scope(tenant="a"), bench.now)
    engine.reserve(make.keys(1, "open"), PAGE, tenant="b")
    assert [each.state for each in listed(bench)] == ["invalidated", "invalidated", "reserved"]
    bench.pass_time(0.1)
    assert [(each.state, each.leases) for each in listed(bench)] == [("invalidated", 1), ("reserved", 0)]
    assert [each.tenant for each in listed(bench, tenant="b")] == ["b"], "a reserved block has a tenant, too"


def test_filters_narrow_each_other() -> None:
    bench, engine = bench_of(1536, spaces=(ONE, TWO, OTHER))
    chain = make.keys(3)
    for space in range(3):
        for tenant in ("a", "b", ""):
            engine.store(make.keys(3, tenant), PAGE, tenant=tenant, space=space)
    engine.store(chain, PAGE, tenant="a")

    def count(**fields: Any) -> int:
        return len(listed(bench, **fields))

    assert count() == 30
    assert (count(tenant="a"), count(tenant="b"), count(tenant=""), count(tenant="nobody")) == (12, 9, 9, 0)
    assert (count(model=make.MODEL), count(model="other"), count(model="?")) == (21, 9, 0)
    assert (count(space=ONE.identity()), count(space="0" * 32)) == (12, 0)
    assert count(model="other", space=ONE.identity()) == 0
    assert count(tenant="b", space=TWO.identity()) == 3
    keys = make.packed([*make.keys(2, "b"), make.key("unknown")])
    assert count(keys=keys) == 6
    assert count(keys=keys, space=ONE.identity()) == 2
    assert count(keys=keys, tenant="a") == 0


def test_every_block_is_in_exactly_one_part_for_any_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, engine = bench_of(300)
    fill(engine, "a", 250)
    every = sorted(each.descriptor for each in listed(bench, limit=MAX_LISTED_BLOCKS))
    assert len(every) == 250
    for looked_at, limit in ((32_768, 7), (16, 7), (16, 100), (5, 1)):
        monkeypatch.setattr(listing, "LOOKED_AT", looked_at)
        assert [each.descriptor for each in listed(bench, limit=limit)] == every


def test_concurrent_changes_do_not_disturb_a_listing() -> None:
    bench, engine = bench_of(256)
    chain = make.keys(100)
    engine.store(chain, PAGE)
    found, after = list_blocks(bench.node.pool, ListBlocks("n", limit=10))
    bench.node.invalidate(Scope(keys=make.packed(chain[50:51])), bench.now)
    bench.pass_time(1)
    fill(engine, "b", 30)
    while after:
        part, after = list_blocks(bench.node.pool, ListBlocks("n", limit=10, after=after))
        found += part
    keys = [each.key for each in found]
    assert len(keys) == len(set(keys))
    assert set(hexes(chain[:50])) <= set(keys)


def test_a_cursor_beyond_the_end_is_the_end() -> None:
    bench, engine = bench_of(64)
    fill(engine, "a", 8)
    assert list_blocks(bench.node.pool, ListBlocks("n", after=1 << 40)) == ([], 0)


def test_blocks_of_a_gateway_are_listed_separately_with_their_space() -> None:
    bench, engine = bench_of(2048, spaces=(ONE,), named_bytes=1024 * PAGE)  # segments enough for both
    worker = peer(bench, gateway_space(rank=1))
    assert engine.store(make.keys(1), PAGE).written == 1
    assert worker.store(make.keys(2, "theirs"), PAGE) == 2
    theirs = listed(bench, gateway=LMCACHE)
    assert [(block.key, block.world_size, block.rank, block.kv_group) for block in theirs] == [
        (key, 2, 1, 0) for key in hexes(make.keys(2, "theirs"))
    ]
    assert [block.key for block in listed(bench, gateway="")] == hexes(make.keys(1))
    assert len(listed(bench)) == 3
    assert listed(bench, gateway="another") == []


# ---- chains


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
    bench.node.invalidate(Scope(tenant="a"), bench.now)
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
    assert bench.node.stats(bench.now).totals.requested_blocks == 0


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

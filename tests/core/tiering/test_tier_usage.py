"""Usage by tier: bytes over time, and which tier served the tokens that engines acquired."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dataplane.core.tenants import usage as core_usage
from dataplane.core.tenants.usage import UsageTable
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.spaces import Space
from dataplane.protocol.stored_blocks import BlockName, StoredBlock
from dataplane.protocol.tiers import MEMORY, tier_faults
from dataplane.protocol.usage import MAX_USAGE_TIERS, OTHERS, UNKNOWN_MODEL, TierUsageCounters, UsageCounters
from tests.core.tiering.tier_bench import CHECKSUM, PAGE, TierBench, stored_size, tier, tier_bench
from tests.dataplane import factories as make

CHARGE_KIB = stored_size(PAGE) // 1024


def accounts(run: TierBench) -> list[UsageCounters]:
    found: list[UsageCounters] = []
    after = 0
    while True:
        part, after = run.bench.node.read_usage(0.0, after, run.now)
        found += part
        if not after:
            return found


def of(run: TierBench, tenant: str = "_default") -> UsageCounters:
    (account,) = [each for each in accounts(run) if each.tenant == tenant and each.model != UNKNOWN_MODEL]
    return account


def restored(key: bytes, space: Space, tenant: str = "") -> StoredBlock:
    name = BlockName(bytes.fromhex(space.identity()), key)
    return StoredBlock(name, tenant, 1, PAGE, CHECKSUM, b"")


def test_a_tier_holds_bytes_for_as_long_as_it_charges_them() -> None:
    run = tier_bench(64, tier(), tier("second", spill="off"))
    run.store(make.keys(3), "a")
    run.bench.pass_time(10)
    account = of(run, "a")
    assert account.tiers == {"disk": TierUsageCounters(3 * 10 * CHARGE_KIB, 0, 0)}
    assert account.held_kib_s == 3 * 10 * PAGE // 1024, "memory counts by itself"
    run.bench.node.invalidate(Scope(tenant="a"), run.now)
    run.settle()
    run.bench.pass_time(100)
    assert of(run, "a").tiers["disk"].held_kib_s == 3 * 10 * CHARGE_KIB


def test_the_first_acquire_after_a_load_is_served_by_the_tier_and_the_next_by_memory() -> None:
    run = tier_bench(8, tier(), spaces=(Space("m", block_bytes=PAGE, block_tokens=16),))
    first = make.keys(8, "first")
    run.store(first)
    run.engine.acquire(first)
    run.engine.release()
    run.store(make.keys(8, "second"))
    run.ask(first)
    run.settle()
    for _ in range(2):
        run.engine.acquire(first)
        run.bench.pass_time(1)
        run.engine.release()
    account = of(run)
    assert (account.served_tokens, account.served_bytes) == (3 * 8 * 16, 3 * 8 * PAGE)
    served = account.tiers["disk"]
    assert (served.served_tokens, served.served_bytes) == (8 * 16, 8 * PAGE)
    stats = run.bench.node.pool.tenants.by_salt[""].stats()
    assert (stats.hit_tokens, stats.tier_hit_tokens) == (3 * 8 * 16, {"disk": 8 * 16})
    assert (stats.hit_bytes, stats.tier_hit_bytes) == (3 * 8 * PAGE, {"disk": 8 * PAGE})


def test_a_block_that_was_loaded_and_evicted_unused_was_not_served() -> None:
    run = tier_bench(8, tier())
    first = make.keys(8, "first")
    run.store(first)
    run.store(make.keys(8, "second"))
    run.ask(first)
    run.settle()
    assert len(run.bench.node.pool.arrivals) == 8
    run.engine.store(make.keys(8, "third"), PAGE)
    assert len(run.bench.node.pool.arrivals) == 0
    run.ask(first)
    run.settle()
    run.bench.node.invalidate(Scope(tenant=""), run.now)
    run.bench.pass_time(1)
    assert len(run.bench.node.pool.arrivals) == 0
    assert of(run).tiers["disk"].served_bytes == 0


def test_ranks_count_their_bytes_each_and_their_tokens_once() -> None:
    ranks = tuple(make.space(rank=rank, world_size=2, block_bytes=PAGE) for rank in range(2))
    run = tier_bench(1024, tier(), spaces=ranks)
    chain = make.keys(2)
    for number in range(2):
        run.store(chain, space=number)
    node = run.bench.node
    assert node.room.evict(list(node.pool.table.blocks.values()), "room", run.now) == 4
    for number in range(2):
        run.ask(chain, space=number)
        run.settle()
        run.engine.acquire(chain, space=number)
        run.bench.pass_time(1)
    served = of(run).tiers["disk"]
    assert (served.served_tokens, served.served_bytes) == (2 * 256, 2 * 2 * PAGE)


def test_blocks_of_a_space_that_no_engine_attached_have_an_unknown_model_until_one_does() -> None:
    run = tier_bench(8, tier())
    known, later = make.space(block_bytes=PAGE), Space("later", block_bytes=PAGE)
    blocks = [restored(key, later, "a") for key in make.keys(2, "old")]
    blocks.append(restored(make.keys(1, "new")[0], known, "a"))
    run.restore(blocks)
    run.bench.pass_time(10)
    usage = {each.model: each.tiers["disk"].held_kib_s for each in accounts(run)}
    assert usage == {UNKNOWN_MODEL: 2 * 10 * CHARGE_KIB, known.model: 10 * CHARGE_KIB}
    assert [each.space for each in accounts(run) if each.model == UNKNOWN_MODEL] == [later.identity()]
    run.bench.attach(later)
    accounts(run)
    run.bench.pass_time(10)
    usage = {each.model: each.tiers["disk"].held_kib_s for each in accounts(run)}
    assert usage == {UNKNOWN_MODEL: 2 * 10 * CHARGE_KIB, known.model: 20 * CHARGE_KIB, "later": 2 * 10 * CHARGE_KIB}
    assert run.tiering.tiers[0].contents.entries.keys() == {block.name for block in blocks}


def test_the_bytes_of_a_tier_that_is_removed_are_given_back() -> None:
    run = tier_bench(8, tier())
    run.store(make.keys(2), "a")
    (disk,) = run.tiering.tiers
    run.tiering.remove_tier(disk)
    for _ in run.tiering.catalog.forgetting(disk):
        pass
    run.bench.pass_time(10)
    assert of(run, "a").tiers["disk"].held_kib_s == 0
    again = TierState(1, tier(), stored_size)
    run.tiering.add_tier(again)
    run.restore([restored(make.keys(1)[0], make.space(block_bytes=PAGE), "a")], number=1)
    run.bench.pass_time(10)
    assert of(run, "a").tiers["disk"].held_kib_s == 10 * CHARGE_KIB


def test_an_account_stays_open_while_a_tier_holds_its_bytes() -> None:
    run = tier_bench(8, tier())
    run.store(make.keys(2), "a")
    run.store(make.keys(8, "other"), "b")
    run.bench.now += 2 * core_usage.IDLE_US / 1e6
    run.bench.node.read_usage(run.now, 0, run.now)
    assert of(run, "a").tiers["disk"].held_kib_s > 0
    run.bench.node.invalidate(Scope(tenant="a"), run.now)
    run.bench.pass_time(1)
    run.bench.now += 2 * core_usage.IDLE_US / 1e6
    found, _ = run.bench.node.read_usage(run.now, 0, run.now)
    assert [each.tenant for each in found] == ["b"]


def test_tenants_beyond_the_accounts_share_one_and_get_their_bytes_back_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tier_bench(8, tier())
    monkeypatch.setattr(core_usage, "MAX_ACCOUNTS", 1)
    run.engine.store(make.keys(1, "a"), PAGE, tenant="a")
    (disk,) = run.tiering.tiers
    blocks = [
        restored(key, make.space(block_bytes=PAGE), salt) for salt, key in zip("bc", make.keys(2, "rest"), strict=True)
    ]
    run.restore(blocks)
    run.bench.pass_time(10)
    assert of(run, OTHERS).tiers["disk"].held_kib_s == 2 * 10 * CHARGE_KIB
    for block in blocks:
        run.catalog.forget(disk, block.name)
        del run.stores[0][block.name]
    run.bench.pass_time(10)
    assert of(run, OTHERS).tiers["disk"].held_kib_s == 2 * 10 * CHARGE_KIB


def test_an_account_has_a_bounded_number_of_tiers() -> None:
    run = tier_bench(8)
    usage: UsageTable = run.bench.node.pool.usage
    space = bytes.fromhex(make.space(block_bytes=PAGE).identity())
    for number in range(MAX_USAGE_TIERS + 5):
        usage.charge_tier(f"tier-{number}", "a", space, 1024, managed=False)
    run.bench.pass_time(1)
    tiers = of(run, "a").tiers
    assert len(tiers) == MAX_USAGE_TIERS + 1
    assert tiers[OTHERS].held_kib_s == 5


@pytest.mark.parametrize("seed", range(3))
def test_the_integral_is_exact_under_any_schedule(seed: int) -> None:
    rng = random.Random(seed)
    run = tier_bench(16, tier(budget_blocks=24))
    byte_us: Counter[str] = Counter()
    at = run.now
    for step in range(200):
        tenant = rng.choice("abc")
        chain = make.keys(rng.randint(1, 6), (tenant, rng.randrange(12)))
        if rng.random() < 0.4:
            run.ask(chain)
        else:
            run.store(chain, tenant)
        if step % 37 == 0:
            run.bench.node.invalidate(Scope(tenant=tenant), run.now)
            run.settle()
        run.bench.pass_time(rng.choice((0.25, 1, 3)))
        for salt, usage in run.tiering.tiers[0].contents.tenants.items():
            byte_us[salt] += usage.bytes * (int(run.now * 1e6) - int(at * 1e6))
        at = run.now
    held_kib_s = {each.tenant: each.tiers["disk"].held_kib_s for each in accounts(run) if "disk" in each.tiers}
    assert held_kib_s == {salt: total // (1024 * 1_000_000) for salt, total in byte_us.items() if total}


def test_no_tier_has_the_name_of_memory() -> None:
    assert [field for field, _ in tier_faults(tier(MEMORY))] == ["name"]
    assert list(tier_faults(tier("memory-2"))) == []

"""Loads from tiers: engines share the places, pins come behind them, and a load that hangs holds nothing up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice

import pytest
from msgspec import structs

from dataplane.core.blocks.blocks import Block, BlockTable
from dataplane.core.tiering import pin_loads
from dataplane.core.tiering.jobs import MAX_WAITING_REQUESTS, OWN_ENTRIES, LoadQueue, LoadRequest
from dataplane.protocol.control.records import QuotaSpec, Strength
from dataplane.protocol.layout import U64
from dataplane.protocol.stored_blocks import BlockName, Outcome
from tests.core.tiering.tier_bench import PAGE, TierBench, stored_chain, tier, tier_bench
from tests.dataplane import factories as make
from tests.work import lines_run

# ---- the queue


QUIET = 1000


def request(client: int) -> LoadRequest:
    return LoadRequest(client, 1, [b"k" * 32], 1.0)


def fill(queue: LoadQueue, client: int) -> int:
    count = 0
    while queue.has_room(client):
        queue.add(request(client))
        count += 1
    return count


@pytest.mark.parametrize("engines", [1, 2, 10, 100])
def test_engines_that_ask_for_all_they_can_leave_room_for_others(engines: int) -> None:
    queue = LoadQueue()
    for client in range(engines):
        fill(queue, client)
    assert len(queue) <= MAX_WAITING_REQUESTS + engines * OWN_ENTRIES
    assert fill(queue, QUIET) >= OWN_ENTRIES
    while (first := next(iter(queue), None)) is not None:
        queue.remove(first)
    assert fill(queue, QUIET) == MAX_WAITING_REQUESTS // 2, "all places are free again"


def test_queue_entries_are_free_again_when_an_engine_is_gone() -> None:
    queue = LoadQueue()
    taken = fill(queue, 1)
    queue.engine_gone(1)
    assert list(queue) == []
    assert fill(queue, 2) == taken


def test_a_request_is_removed_once() -> None:
    queue = LoadQueue()
    first, second, gone = request(1), request(1), request(2)
    queue.add(first)
    queue.add(second)
    for each in (second, second, gone):
        queue.remove(each)
    assert list(queue) == [first]


def test_a_tier_that_takes_no_more_loads_delays_no_loads_from_another() -> None:
    """Both requests are of one engine, and the first one waits for the tier that hangs."""
    run = tier_bench(256, tier(max_bytes_in_flight=PAGE), tier("s3", order=1, spill="off"))
    chains = [make.keys(3, number) for number in range(3)]
    for number, chain in zip((0, 0, 1), chains, strict=True):
        run.hold(chain, number)
    for chain in chains:
        run.ask(chain, 60.0)
    run.begin()
    assert {load.tier.spec.name: load.name.key in chains[0] for load in run.loads} == {"disk": True, "s3": False}, (
        "the call of the disk hangs"
    )
    hanging = [load for load in run.loads if load.tier.spec.name == "disk"]
    run.loads = [load for load in run.loads if load not in hanging]
    for _ in range(3):
        run.end_loads()
        run.begin()
    assert run.engine.has(chains[2]) == [True] * 3


def test_memory_is_not_searched_for_each_request_that_waits_for_a_busy_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    run = tier_bench(256, tier(max_bytes_in_flight=PAGE), tier("s3", order=1, spill="off"))
    waiting = [make.keys(1, ("disk", number)) for number in range(100)]
    others = [make.keys(1, ("s3", number)) for number in range(10)]
    for number, chains in enumerate((waiting, others)):
        for chain in chains:
            run.hold(chain, number)
            run.ask(chain)
    searches = 0
    find = BlockTable.find

    def counted(table: BlockTable, words: U64, space: int) -> list[Block | None]:
        nonlocal searches
        searches += 1
        return find(table, words, space)

    monkeypatch.setattr(BlockTable, "find", counted)
    run.begin_loads()
    assert [load.name.key for load in run.loads] == [waiting[0][0], *(key for (key,) in others)]
    assert searches <= 2 * len(run.loads)
    for chain in waiting[1:]:
        searches = 0
        run.end_loads()
        run.begin_loads()
        assert [load.name.key for load in run.loads] == chain
        assert searches <= 2


def test_a_block_in_memory_does_not_wait_for_a_busy_tier() -> None:
    run = tier_bench(256, tier(max_bytes_in_flight=PAGE), tier("s3", order=1, spill="off"))
    hanging, waiting, chain = make.keys(1, "hanging"), make.keys(1, "waiting"), make.keys(3)
    for number, keys in ((0, hanging), (0, waiting), (0, chain[1:2]), (1, chain[:1]), (1, chain[2:])):
        run.hold(keys, number)
    for keys in (hanging, waiting, chain):
        run.ask(keys, 60.0)
    run.engine.store(chain[1:2], PAGE, parent=chain[0])
    run.begin_loads()
    assert [load.name.key for load in run.loads] == [*hanging, chain[0], chain[2]]


def test_whether_a_request_is_under_way_costs_the_same_for_every_length_of_its_chain() -> None:
    run = tier_bench(1024, tier(max_bytes_in_flight=512 * PAGE))
    loads, steps = run.tiering.loads, set()
    for blocks in (4, 500):
        chain = make.keys(blocks, blocks)
        run.hold(chain)
        request = loads.request(run.engine.client, run.engine.spaces[0], make.packed(chain), run.now + 5)
        assert request is not None
        for change in (lambda: None, run.begin_loads, run.end_loads):
            change()
            steps.add((loads.under_way(request), lines_run(partial(loads.under_way, request))))
        assert run.engine.lookup(chain) == blocks
    assert sorted(under_way for under_way, _ in steps) == [False, True, True], "ended, loaded, and in the queue"


def test_engines_take_turns() -> None:
    queue = LoadQueue()
    for client in (1, 1, 1, 2, 3):
        queue.add(request(client))
    order = []
    while (first := next(iter(queue), None)) is not None:
        order.append(first.client)
        queue.remove(first)
        queue.end_turn(first.client)
    assert order == [1, 2, 3, 1, 1]


def test_a_flood_of_one_engine_is_refused_counted_and_delays_no_other() -> None:
    run = tier_bench(64, tier("disk"))
    other = run.bench.attach(make.space(block_bytes=PAGE), pid=200)
    state = run.tiering.tiers[0]
    chains = [make.keys(2, f"chain {number}") for number in range(MAX_WAITING_REQUESTS)]
    for chain in chains:
        add(run, chain)
    for chain in chains:
        run.ask(chain)
    assert len(run.tiering.loads) == MAX_WAITING_REQUESTS // 2
    assert state.counters.lost == {"waiting": MAX_WAITING_REQUESTS}
    mine = make.keys(2, "mine")
    add(run, mine)
    result = run.tiering.loads.request(other.client, run.engine.spaces[0], make.packed(mine), run.now + 5)
    assert result is not None
    first, second = islice(run.tiering.loads.next_jobs(run.now), 2)
    assert [block.name.key for block in (*first.blocks, *second.blocks)] == [*chains[0], *mine]


def add(run: TierBench, chain: list[bytes]) -> None:
    for stored in stored_chain(run.identity(), chain):
        run.stores[0][stored.name] = stored
        run.tiering.tiers[0].contents.add(stored, 1, run.now)


# ---- blocks of pins


def spilled(run: TierBench, chain: Sequence[bytes], tenant: str = "") -> None:
    """Store a chain, and evict it from memory once tiers hold it."""
    run.store(chain, tenant)
    blocks = [block for block in run.bench.node.pool.table.blocks.values() if block.key in set(chain)]
    run.bench.node.room.evict(blocks, "room", run.now)
    assert run.engine.lookup(chain) == 0


def pass_steps(run: TierBench, steps: int = 20) -> None:
    run.pass_time(0.1, times=steps)
    assert run.bench.faults() == []


def state(run: TierBench, name: str = "p") -> tuple[int, int, str]:
    stats = run.bench.pin(name)
    return stats.resident, stats.only_in_tiers, stats.not_loaded


@pytest.mark.parametrize("strength", ["guaranteed", "permanent"])
def test_a_pin_loads_blocks_that_only_a_tier_holds(strength: Strength) -> None:
    run = tier_bench(64, tier())
    chain = make.keys(6)
    spilled(run, chain)
    run.pins(make.pin("p", chain, strength=strength))
    assert state(run) == (0, 6, "")
    pass_steps(run)
    assert state(run) == (6, 0, "")
    assert run.bench.pin("p").guaranteed == 6
    assert run.engine.lookup(chain) == 6


def test_a_soft_pin_loads_nothing() -> None:
    run = tier_bench(64, tier())
    chain = make.keys(6)
    spilled(run, chain)
    run.pins(make.pin("p", chain, strength="soft"))
    pass_steps(run)
    assert state(run) == (0, 0, "")


def test_no_more_is_loaded_than_the_pin_budget_guarantees() -> None:
    run = tier_bench(64, tier())
    run.quotas(QuotaSpec("a", pin_budget_bytes=4 * PAGE))
    chain = make.keys(6)
    spilled(run, chain, "a")
    run.pins(make.pin("p", chain, tenant="a"))
    pass_steps(run)
    assert state(run) == (4, 2, "budget")
    assert run.bench.pin("p").degraded == 0
    run.quotas(QuotaSpec("a", pin_budget_bytes=6 * PAGE), generation=2)
    pass_steps(run, 80)
    assert state(run) == (6, 0, "")


def test_a_chain_is_loaded_up_to_the_first_block_that_is_nowhere() -> None:
    run = tier_bench(64, tier())
    chain = make.keys(6)
    spilled(run, chain[:3])
    run.pins(make.pin("p", chain))
    pass_steps(run)
    assert state(run) == (3, 0, "")


def test_a_state_that_is_nowhere_or_of_another_tenant_is_a_gap() -> None:
    run = tier_bench(64, tier(), spaces=[structs.replace(make.space(block_bytes=PAGE), tail_blocks=1)])
    chain = make.keys(6)
    spilled(run, chain[1:2], "rival")
    spilled(run, chain[3:5], "a")
    run.pins(make.pin("p", chain, tenant="a"))
    pass_steps(run)
    assert state(run) == (2, 0, "")
    assert run.engine.has(chain) == [False] * 3 + [True] * 2 + [False]


def test_the_tiers_of_a_restarted_node_fill_its_pins() -> None:
    """The pin is there first; the contents of the tier are added later, as when a tier is opened."""
    run = tier_bench(64, tier())
    chain = make.keys(6)
    run.pins(make.pin("p", chain))
    pass_steps(run)
    assert state(run) == (0, 0, "")
    run.hold(chain)
    pass_steps(run, 80)
    assert state(run) == (6, 0, "")


def test_a_pin_is_loaded_in_small_requests_behind_those_of_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pin_loads, "MAX_PART_BYTES", 2 * PAGE)
    run = tier_bench(64, tier())
    chain, other = make.keys(6), make.keys(2, "other")
    spilled(run, chain)
    spilled(run, other)
    run.ask(other)
    run.pins(make.pin("p", chain))
    assert len(run.tiering.loads) == 1, "the request of the engine"
    run.begin()
    run.bench.pass_time(0.1)
    run.begin()
    keys = {load.name.key for load in run.loads}
    assert keys == {*other, *chain[:2]}
    run.bench.pass_time(0.1)
    run.begin()
    assert len(run.loads) == 4, "one request of a pin at a time"
    pass_steps(run)
    assert state(run) == (6, 0, "")


def test_a_failed_load_is_retried_later_and_reported() -> None:
    run = tier_bench(64, tier())
    chain = make.keys(4)
    spilled(run, chain)
    run.pins(make.pin("p", chain))
    run.begin()
    run.end_loads(Outcome.FAILED)
    run.bench.pass_time(0.1)
    assert state(run) == (0, 4, "failed")
    run.bench.pass_time(1.0)
    run.begin()
    assert run.loads == [], "it is not tried at once"
    pass_steps(run, 120)
    assert state(run) == (4, 0, "")


def test_a_pin_that_is_deleted_concurrently_loads_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pin_loads, "MAX_PART_BYTES", PAGE)
    run = tier_bench(64, tier())
    chain = make.keys(4)
    spilled(run, chain)
    run.pins(make.pin("p", chain))
    run.begin()
    run.pins(generation=2)
    pass_steps(run)
    assert run.engine.lookup(chain) == 1


def test_a_step_looks_at_a_bounded_number_of_keys_for_any_number_of_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    run = tier_bench(256, tier())
    run.quotas(QuotaSpec("", pin_budget_bytes=0))
    chains = [make.keys(6, number) for number in range(40)]
    for chain in chains:
        spilled(run, chain)
    run.pins(*(make.pin(f"p{number}", chain) for number, chain in enumerate(chains)))
    monkeypatch.setattr(pin_loads, "MAX_STEP_KEYS", 20)
    requests = 0
    ask = run.tiering.catalog.existence.query

    def counted(names: Iterable[BlockName], client: int) -> None:
        nonlocal requests
        requests += 1
        ask(names, client)

    monkeypatch.setattr(run.tiering.catalog.existence, "query", counted)
    looks = []
    for _ in range(200):
        requests = 0
        run.bench.pass_time(0.1)
        looks.append(requests)
    assert max(looks) <= 4, "20 keys are those of three chains, and part of a fourth one"
    assert sum(looks) >= 40
    assert state(run, "p39") == (0, 6, "budget")


# ---- loads that do not return


CHAIN = make.keys(4, "chain")
EXPIRED_S = 1000.0
"""Seconds after which the reservation of a load has expired."""


@pytest.fixture
def hanging() -> TierBench:
    """Two tiers that hold a chain, and a load from the first one that hangs."""
    bench = tier_bench(64, tier("first"), tier("second"))
    for number in (0, 1):
        bench.hold(CHAIN, number)
    bench.ask(CHAIN)
    bench.begin_loads()
    assert {load.tier.spec.name for load in bench.loads} == {"first"}
    bench.tiering.tiers[0].serves = False
    return bench


def test_blocks_whose_load_hangs_are_loaded_from_another_tier_once_its_memory_is_quarantined(
    hanging: TierBench,
) -> None:
    late, hanging.loads = hanging.loads, []
    hanging.ask(CHAIN)
    hanging.settle()
    assert hanging.engine.lookup(CHAIN) == 0, "the first load may still end in time"
    hanging.bench.pass_time(EXPIRED_S)
    hanging.ask(CHAIN)
    hanging.settle()
    assert hanging.engine.lookup(CHAIN) == 4
    assert hanging.tiering.tiers[1].counters.loaded_blocks == 4
    hanging.loads = late
    hanging.end_loads()
    assert hanging.tiering.tiers[0].counters.lost == {"late": 4}
    assert hanging.engine.lookup(CHAIN) == 4
    assert not hanging.tiering.table.loading


def test_no_request_waits_for_a_load_whose_memory_is_quarantined(hanging: TierBench) -> None:
    hanging.bench.pass_time(EXPIRED_S)
    hanging.tiering.tiers[1].serves = False
    (job,) = {load.job for load in hanging.loads}
    for _ in range(10):
        request = hanging.tiering.loads.request(
            hanging.engine.client, hanging.engine.spaces[0], make.packed(CHAIN), hanging.now + 5
        )
        assert request is not None
        hanging.begin_loads()
        assert not hanging.tiering.loads.under_way(request)
    assert len(job.waiters) == 1


def test_a_load_that_returns_late_does_not_end_the_one_that_replaced_it(hanging: TierBench) -> None:
    late, hanging.loads = hanging.loads, []
    hanging.bench.pass_time(EXPIRED_S)
    hanging.ask(CHAIN)
    hanging.begin_loads()
    replacing, hanging.loads = hanging.loads, late
    hanging.end_loads()
    request = hanging.tiering.loads.request(
        hanging.engine.client, hanging.engine.spaces[0], make.packed(CHAIN), hanging.now + 5
    )
    assert request is not None
    hanging.begin_loads()
    assert hanging.loads == []
    assert hanging.tiering.loads.under_way(request)
    hanging.loads = replacing
    hanging.end_loads()
    assert hanging.engine.lookup(CHAIN) == 4
    assert not hanging.tiering.table.loading

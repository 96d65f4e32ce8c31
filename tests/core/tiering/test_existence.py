"""Blocks that other nodes wrote to shared tiers: asked for once, remembered, refused if invalidated, not waited for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dataplane.core.tiering import existence
from dataplane.core.tiering.existence import FOUND_S, MAX_NAMES_PER_QUERY, MISSING_S
from dataplane.core.tiering.invalidations import Tombstone
from dataplane.core.tiering.outcomes import MAX_AHEAD_S
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.stored_blocks import BlockName, StoredBlock
from dataplane.protocol.tier_directory import space_word
from dataplane.tiering.tier_run import Rates
from tests.core.tiering.tier_bench import PAGE, TierBench, stored_chain, tier, tier_bench
from tests.dataplane import factories as make

CHAIN = make.keys(8, "chain")


@pytest.fixture
def run() -> TierBench:
    bench = tier_bench(64, tier("shared"))
    bench.tiering.tiers[0].shared = True
    return bench


def elsewhere(run: TierBench, count: int, tenant: str = "acme", sequence: int = 5) -> list[StoredBlock]:
    """Blocks that another node stored."""
    blocks = stored_chain(run.identity(), CHAIN[:count], tenant, sequence)
    run.stores[0].update({block.name: block for block in blocks})
    return blocks


def answer(run: TierBench) -> int:
    """Answer every question, and return how many names were asked for."""
    state, count = run.tiering.tiers[0], 0
    while names := run.tiering.catalog.existence.next_names(state):
        count += len(names)
        run.tiering.looked_up(state, names, [run.stores[0].get(name) for name in names], run.now)
    return count


def load(run: TierBench) -> None:
    """Do all loads; the tier says what it holds."""
    run.begin()
    while run.loads:
        run.end_loads()
        run.begin()


def ready(run: TierBench) -> int:
    words = pack_keys(CHAIN)
    return len(run.bench.node.pool.table.memory.leading_ready(words, run.engine.spaces[0])[0])


def listed(run: TierBench) -> int:
    found = run.tiering.catalog.directory.find(pack_keys(CHAIN), space_word(run.identity().hex()))
    return int((found.tiers != 0).sum())


def is_missing(run: TierBench, at: int) -> bool:
    return run.tiering.catalog.directory.is_missing(pack_keys(CHAIN[at:]), space_word(run.identity().hex()))


def test_a_chain_is_queried_once_and_loaded_for_all_requests(run: TierBench) -> None:
    elsewhere(run, 8)
    run.ask(CHAIN)
    run.ask(CHAIN[:4])
    run.begin()
    assert run.loads == [], "nothing is known yet"
    assert answer(run) == 8
    load(run)
    assert ready(run) == 8
    assert run.tiering.tiers[0].contents.used_bytes == 0, "the node pays for what it wrote alone"
    run.ask(CHAIN)
    assert answer(run) == 0


def test_the_blocks_before_a_gap_are_loaded(run: TierBench) -> None:
    elsewhere(run, 3)
    run.ask(CHAIN)
    answer(run)
    load(run)
    assert (ready(run), len(run.tiering.loads)) == (3, 0)
    assert is_missing(run, 3)


def test_answers_are_forgotten_after_their_time(run: TierBench) -> None:
    elsewhere(run, 3)
    run.ask(CHAIN)
    answer(run)
    assert listed(run) == 3
    run.bench.now += MISSING_S - 1
    run.catalog.existence.step(run.now)
    assert is_missing(run, 3)
    load(run)
    run.bench.now += 2
    run.catalog.existence.step(run.now)
    assert not is_missing(run, 3)
    run.bench.now += FOUND_S - 3
    run.catalog.existence.step(run.now)
    assert listed(run) == 3, "a use counts"
    run.bench.now += 2 * FOUND_S
    run.catalog.existence.step(run.now)
    assert listed(run) == 0


def test_a_request_is_not_left_waiting_when_the_tier_goes_out_of_service(run: TierBench) -> None:
    elsewhere(run, 8)
    run.ask(CHAIN)
    run.begin()
    run.tiering.tiers[0].serves = False
    run.catalog.existence.step(run.now)
    run.begin()
    assert len(run.tiering.loads) == 0


def test_a_query_of_a_gone_engine_is_given_up(run: TierBench) -> None:
    run.ask(CHAIN)
    run.begin()
    run.tiering.loads.engine_gone(run.engine.client)
    assert len(run.tiering.loads) == 0
    answer(run)
    load(run)


def test_many_names_are_queried_in_several_calls(run: TierBench) -> None:
    many = make.keys(MAX_NAMES_PER_QUERY + 10, "many")
    run.ask(many)
    state = run.tiering.tiers[0]
    assert [len(run.tiering.catalog.existence.next_names(state)) for _ in range(3)] == [MAX_NAMES_PER_QUERY, 10, 0]


@pytest.mark.parametrize(
    ("tombstone", "loaded"),
    [
        (Tombstone(before=6), 0),
        (Tombstone(before=5), 8),
        (Tombstone(before=6, tenant="acme"), 0),
        (Tombstone(before=6, tenant="other"), 8),
        (Tombstone(before=6, keys=frozenset(CHAIN[:3]), last_key=CHAIN[2]), 0),
        (Tombstone(before=6, keys=frozenset([CHAIN[7]]), last_key=CHAIN[7]), 7),
        (Tombstone(before=6, keys=frozenset(make.keys(2, "x")), last_key=make.keys(2, "x")[1]), 8),
    ],
)
def test_a_block_that_an_invalidation_covers_is_not_published(
    run: TierBench, tombstone: Tombstone, loaded: int
) -> None:
    elsewhere(run, 8)
    run.tiering.tiers[0].tombstones = lambda: [tombstone]
    run.ask(CHAIN)
    answer(run)
    load(run)
    assert ready(run) == loaded


def test_a_block_of_an_unknown_chain_may_follow_an_invalidated_prefix(run: TierBench) -> None:
    elsewhere(run, 8)
    prefix = make.keys(2, "x")
    run.tiering.tiers[0].tombstones = lambda: [Tombstone(6, keys=frozenset(prefix), last_key=prefix[1])]
    run.ask(CHAIN[4:])
    answer(run)
    load(run)
    assert run.tiering.tiers[0].counters.lost == {"invalidated": 4}


def test_a_block_of_another_tenant_than_was_found_is_not_published(run: TierBench) -> None:
    blocks = elsewhere(run, 1)
    run.ask(CHAIN[:1])
    answer(run)
    run.stores[0][blocks[0].name] = elsewhere(run, 1, tenant="other")[0]
    load(run)
    assert ready(run) == 0


@pytest.mark.parametrize("seconds", [2 * MAX_AHEAD_S, 1e9])
def test_a_block_from_the_future_is_not_loaded(run: TierBench, seconds: float) -> None:
    """No invalidation would ever cover it."""
    ahead = int((run.now + seconds) * 1e9)
    elsewhere(run, 1, sequence=ahead)
    run.ask(CHAIN)
    answer(run)
    assert is_missing(run, 0)
    assert run.tiering.tiers[0].counters.lost == {"clock": 1}
    run.bench.now += 2 * MISSING_S
    run.catalog.existence.step(run.now)
    elsewhere(run, 1, sequence=int(run.now * 1e9))
    run.ask(CHAIN)
    answer(run)
    elsewhere(run, 1, sequence=ahead + int(1e12))  # it is replaced between the look-up and the load
    load(run)
    assert ready(run) == 0
    assert run.tiering.tiers[0].counters.lost == {"clock": 2}


def test_a_block_of_a_clock_that_is_a_little_ahead_is_loaded(run: TierBench) -> None:
    elsewhere(run, 1, sequence=int((run.now + MAX_AHEAD_S / 2) * 1e9))
    run.ask(CHAIN)
    answer(run)
    load(run)
    assert ready(run) == 1


def test_one_engine_cannot_take_all_questions(run: TierBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(existence, "MAX_QUERIES", 8)
    monkeypatch.setattr(existence, "OWN_QUESTIONS", 2)
    other = run.bench.attach(make.space(block_bytes=PAGE), pid=200)
    run.ask(make.keys(100, "flood"))
    elsewhere(run, 2)
    run.tiering.loads.request(other.client, run.engine.spaces[0], make.packed(CHAIN[:2]), run.now + 5)
    assert answer(run) == 4 + 2
    load(run)
    assert ready(run) == 2


def test_bandwidth_counts_neither_waiting_nor_loads_beside_each_other_twice() -> None:
    rates = Rates()
    rates.add(100, 10.0, 11.0)
    rates.add(100, 50.0, 51.0)
    assert rates.bytes_per_s == pytest.approx(100)
    both = Rates()
    both.add(100, 10.0, 11.0)
    both.add(100, 10.0, 11.0)
    assert both.bytes_per_s == pytest.approx(200, rel=0.2)


# ---- look-ups that do not return


SHORT = make.keys(4, "chain")


@pytest.fixture
def tiers() -> TierBench:
    """Two shared tiers, and a local one."""
    bench = tier_bench(64, tier("first"), tier("second"), tier("disk"))
    for state in bench.tiering.tiers[:2]:
        state.shared = True
        state.spec = tier(state.spec.name, spill="off")
    return bench


def begin_lookup(run: TierBench, state: TierState) -> list[BlockName]:
    names = run.catalog.existence.next_names(state)
    assert names
    return names


def answer_names(run: TierBench, state: TierState, names: Sequence[BlockName], *, holds: bool) -> None:
    blocks = {block.name: block for block in stored_chain(run.identity(), SHORT)}
    if holds:
        run.stores[state.number].update(blocks)
    run.tiering.looked_up(state, names, [blocks[name] if holds else None for name in names], run.now)


def test_a_request_does_not_wait_for_a_lookup_that_hangs_in_a_tier_out_of_service(tiers: TierBench) -> None:
    first, second, _ = tiers.tiering.tiers
    tiers.ask(SHORT)
    begin_lookup(tiers, first)
    answer_names(tiers, second, begin_lookup(tiers, second), holds=False)
    tiers.begin()
    assert len(tiers.tiering.loads) == 1
    first.serves = False
    tiers.catalog.existence.step(tiers.now)
    tiers.begin()
    assert (len(tiers.tiering.loads), tiers.tiering.loads.idle) == (0, True)


def test_blocks_that_a_tier_has_do_not_wait_for_the_answer_of_another(tiers: TierBench) -> None:
    first, second, _ = tiers.tiering.tiers
    tiers.ask(SHORT)
    slow = begin_lookup(tiers, second)
    tiers.begin()
    assert (tiers.loads, tiers.tiering.loads.waiting_bytes()) == ([], 0), "nothing is known yet"
    answer_names(tiers, first, begin_lookup(tiers, first), holds=True)
    assert tiers.catalog.existence.is_queried(slow[0])
    assert tiers.tiering.loads.waiting_bytes() == len(SHORT) * PAGE
    tiers.settle()
    assert tiers.engine.lookup(SHORT) == 4


def test_a_late_answer_does_not_stand_for_that_of_another_tier(tiers: TierBench) -> None:
    first, second, _ = tiers.tiering.tiers
    tiers.ask(SHORT)
    late = begin_lookup(tiers, first)
    names = begin_lookup(tiers, second)
    first.serves = False
    tiers.catalog.existence.step(tiers.now)
    answer_names(tiers, first, late, holds=False)
    assert tiers.catalog.existence.is_queried(names[0])
    answer_names(tiers, second, names, holds=True)
    tiers.settle()
    assert tiers.engine.lookup(SHORT) == 4


def test_blocks_are_queried_again_after_their_tier_is_back(tiers: TierBench) -> None:
    first, second, _ = tiers.tiering.tiers
    second.serves = False
    tiers.ask(SHORT)
    late = begin_lookup(tiers, first)
    first.serves = False
    tiers.catalog.existence.step(tiers.now)
    tiers.begin()
    assert len(tiers.tiering.loads) == 0
    tiers.bench.now += 2 * MISSING_S
    first.serves = True
    tiers.catalog.existence.step(tiers.now)
    tiers.ask(SHORT)
    answer_names(tiers, first, late, holds=False)  # its names wait to be asked for
    answer_names(tiers, first, begin_lookup(tiers, first), holds=True)
    tiers.settle()
    assert tiers.engine.lookup(SHORT) == 4


def test_requests_that_wait_for_an_answer_are_cancelled_at_their_deadline(tiers: TierBench) -> None:
    first, second, disk = tiers.tiering.tiers
    local = make.keys(3, "local")
    tiers.store(local)
    tiers.evict_all()
    assert len(disk.contents) == 3
    tiers.ask(SHORT, wait_s=5.0)
    begin_lookup(tiers, first)
    begin_lookup(tiers, second)
    tiers.begin()
    assert not tiers.tiering.loads.idle
    tiers.bench.now += 5.0
    tiers.catalog.existence.step(tiers.now)
    tiers.begin()
    assert (len(tiers.tiering.loads), tiers.tiering.loads.idle) == (0, True)
    tiers.ask(local)
    tiers.settle()
    assert tiers.engine.lookup(local) == 3


def test_a_lookup_that_hangs_does_not_end_the_loads_of_pins(tiers: TierBench) -> None:
    first, second, _ = tiers.tiering.tiers
    second.serves = False
    other = make.keys(3, "other")
    tiers.store(other)
    tiers.evict_all()
    tiers.pins(make.pin("chain", SHORT), make.pin("other", other))
    tiers.bench.pass_time(0.1)
    begin_lookup(tiers, first)
    first.serves = False
    tiers.catalog.existence.step(tiers.now)
    tiers.pass_time(0.1, times=80)
    assert tiers.engine.lookup(other) == 3
    assert tiers.bench.pin("other").only_in_tiers == 0

"""Engines share the places of requests for loads: none of them keeps the others from theirs."""

from __future__ import annotations

import pytest

from dataplane.core.tiering.load_queue import MAX_WAITING_REQUESTS, OWN_ENTRIES, LoadQueue, LoadRequest
from tests.core.tiering.tier_bench import PAGE, TierBench, stored_chain, tier, tier_bench
from tests.dataplane import factories as make

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
    while (first := next(queue.ready(), None)) is not None:
        assert queue.remove(first)
    assert fill(queue, QUIET) == MAX_WAITING_REQUESTS // 2, "all places are free again"


def test_queue_entries_are_free_again_when_an_engine_is_gone() -> None:
    queue = LoadQueue()
    taken = fill(queue, 1)
    queue.set_aside(next(queue.ready()))
    assert queue.engine_gone(1) == taken
    assert (len(queue), list(queue.ready()), queue.take_asking()) == (0, [], [])
    assert fill(queue, 2) == taken


def test_a_request_is_removed_wherever_it_waits() -> None:
    queue = LoadQueue()
    aside, ready, gone = request(1), request(1), request(2)
    queue.add(aside)
    queue.add(ready)
    queue.set_aside(aside)
    assert [queue.remove(each) for each in (aside, ready, gone)] == [True, True, False]
    assert (len(queue), list(queue.ready()), queue.take_asking()) == (0, [], [])


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


def test_engines_take_turns() -> None:
    queue = LoadQueue()
    for client in (1, 1, 1, 2, 3):
        queue.add(request(client))
    order = []
    while (first := next(queue.ready(), None)) is not None:
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
    first, second = run.tiering.loads.next(run.now), run.tiering.loads.next(run.now)
    assert first is not None
    assert second is not None
    assert [block.name.key for block in (*first.blocks, *second.blocks)] == [*chains[0], *mine]


def add(run: TierBench, chain: list[bytes]) -> None:
    for stored in stored_chain(run.identity(), chain):
        run.stores[0][stored.name] = stored
        run.tiering.tiers[0].contents.add(stored, 1, run.now)

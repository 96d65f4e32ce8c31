"""Engines that attach, hang, detach and die: spaces, groups, and the bytes that wait for processes."""

from __future__ import annotations

import pytest

from dataplane.core.engines import lifecycle
from dataplane.protocol.codes import Code, ProtocolError, ReserveOutcome
from dataplane.protocol.events import EngineDetached, EngineReleased, LeaseBroken, ReservationExpired
from dataplane.protocol.spaces import Space
from tests.core.tenancy import PAGE, bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, refused

CHAIN = make.keys(4)


def code_of_refusal(call, *arguments) -> Code:
    with pytest.raises(ProtocolError) as caught:
        call(*arguments)
    return caught.value.code


def test_an_expired_reservation_is_quarantined_and_its_keys_are_free_at_once() -> None:
    bench = Bench(8 * PAGE, ttl_s=30)
    slow, other = bench.attach(), bench.attach()
    slow.reserve(CHAIN, PAGE)
    bench.pass_time(29)
    assert bench.pool.quarantined_bytes == 0
    bench.pass_time(2)
    assert bench.pool.quarantined_bytes == 4 * PAGE
    assert bench.pool.reserved_bytes == 0
    (event,) = bench.events(ReservationExpired)
    assert (event.blocks, event.bytes) == (4, 4 * PAGE)
    assert other.store(CHAIN, PAGE).written == 4, "another engine may store the same keys elsewhere"
    assert other.store(make.keys(5, "more"), PAGE).written == 4, "the quarantined bytes are not given away"


def test_a_late_commit_publishes_nothing_and_gives_the_bytes_back() -> None:
    bench, engine = bench_of(8)
    granted = engine.reserve(CHAIN, PAGE)
    bench.pass_time(31)
    assert code_of_refusal(engine.commit, granted.reservation) is Code.RESERVATION_EXPIRED
    assert engine.lookup(CHAIN) == 0
    assert bench.pool.used_bytes == 0
    assert code_of_refusal(engine.commit, granted.reservation) is Code.UNKNOWN_RESERVATION


def test_a_late_abort_gives_the_bytes_back() -> None:
    bench, engine = bench_of(8)
    granted = engine.reserve(CHAIN, PAGE)
    bench.pass_time(31)
    engine.abort(granted.reservation)
    assert bench.pool.used_bytes == 0
    assert code_of_refusal(engine.abort, granted.reservation) is Code.UNKNOWN_RESERVATION


def test_a_closed_connection_ends_the_right_to_commit_but_frees_nothing() -> None:
    bench, engine = bench_of(8)
    engine.reserve(CHAIN, PAGE)
    engine.detach()
    assert bench.pool.quarantined_bytes == 4 * PAGE
    (event,) = bench.events(EngineDetached)
    assert event.quarantined_blocks == 4
    bench.pass_time(3600)
    assert bench.pool.quarantined_bytes == 4 * PAGE, "time proves nothing"
    engine.die()
    assert bench.pool.used_bytes == 0
    (gone,) = bench.events(EngineReleased)
    assert (gone.released_blocks, gone.released_bytes) == (4, 4 * PAGE)


def test_a_killed_process_gives_everything_back_at_once() -> None:
    bench, engine = bench_of(8)
    engine.store(make.keys(2, "kept"), PAGE)
    engine.acquire(make.keys(2, "kept"))
    engine.reserve(CHAIN, PAGE)
    engine.die()
    assert bench.pool.used_bytes == 2 * PAGE
    assert bench.memory.areas == {}
    other = bench.attach()
    (broken,) = bench.events(LeaseBroken)
    assert (broken.reason, broken.blocks) == ("process_gone", 2)
    assert other.lookup(make.keys(2, "kept")) == 2, "READY blocks stay"
    assert other.store(make.keys(8, "new"), PAGE).written == 8, "and its leases are no more"


def test_a_disconnected_process_that_lives_keeps_its_leases() -> None:
    bench = Bench(4 * PAGE)
    engine, other = bench.attach(), bench.attach()
    engine.store(CHAIN, PAGE)
    engine.acquire(CHAIN)
    engine.detach()
    assert other.store(make.keys(1, "new"), PAGE).refused == {Code.POOL_FULL}
    engine.die()
    assert other.store(make.keys(1, "new"), PAGE).written == 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_bytes_of_a_group_come_back_only_when_every_process_that_was_there_is_gone(order: tuple[int, ...]) -> None:
    bench = Bench(8 * PAGE)
    engines = [bench.attach(group="tp2", pid=number) for number in range(3)]
    engines[order[0]].reserve(CHAIN, PAGE)
    for number in order[:-1]:
        engines[number].die()
        assert bench.pool.quarantined_bytes == 4 * PAGE
        assert bench.faults() == []
    engines[order[-1]].die()
    assert bench.pool.used_bytes == 0
    assert bench.node.engines == {}


@pytest.mark.parametrize("closes_first", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_processes_of_a_group_may_end_in_any_order(order: tuple[int, int], closes_first: bool) -> None:
    bench = Bench(8 * PAGE)
    engines = [bench.attach(group="pair", pid=number) for number in range(2)]
    if closes_first:
        for engine in engines:
            engine.detach()
    for number in order:
        engines[number].die()
    assert bench.node.engines == {}
    assert len(bench.events(EngineReleased)) == 2


def test_a_later_process_of_the_same_group_name_delays_nothing() -> None:
    bench = Bench(8 * PAGE)
    engine = bench.attach(group="engine-0", pid=1)
    engine.reserve(CHAIN, PAGE)
    engine.detach()
    again = bench.attach(group="engine-0", pid=2)
    engine.die()
    assert bench.pool.used_bytes == 0
    assert again.store(CHAIN, PAGE).written == 4


def test_another_group_delays_nothing() -> None:
    bench = Bench(8 * PAGE)
    engine, _other = bench.attach(group="one"), bench.attach(group="two")
    engine.reserve(CHAIN, PAGE)
    engine.die()
    assert bench.pool.used_bytes == 0


def test_a_worker_that_detaches_releases_the_group_that_waits_for_it() -> None:
    bench = Bench(8 * PAGE)
    scheduler, worker = bench.attach(group="g", pid=1), bench.attach(group="g", pid=2)
    scheduler.reserve(CHAIN, PAGE)
    scheduler.die()
    assert bench.pool.quarantined_bytes == 4 * PAGE
    worker.detach_cleanly()
    assert bench.pool.used_bytes == 0
    assert bench.node.engines == {}


def test_a_detach_gives_open_and_expired_reservations_back_at_once() -> None:
    bench, engine = bench_of(16, ttl_s=10)
    engine.reserve(CHAIN, PAGE)
    bench.pass_time(11)
    engine.reserve(make.keys(4, "more"), PAGE)
    assert (bench.pool.quarantined_bytes, bench.pool.reserved_bytes) == (4 * PAGE, 4 * PAGE)
    engine.detach_cleanly()
    assert bench.pool.used_bytes == 0
    assert bench.memory.areas == {}
    bench.node.process_gone(engine.client, bench.now)


def test_a_commit_of_some_positions_aborts_the_rest() -> None:
    bench, engine = bench_of(8)
    granted = engine.reserve(CHAIN, PAGE)
    assert engine.commit(granted.reservation, [0, 2]) == 2
    assert engine.has(CHAIN) == [True, False, True, False]
    assert bench.pool.used_bytes == 2 * PAGE
    assert bench.node.stats(bench.now).totals.aborted_blocks == 2


def test_an_engine_holds_a_bounded_number_of_reservations() -> None:
    _, engine = bench_of(512)
    reservations = [engine.reserve([make.key(number)], PAGE).reservation for number in range(256)]
    assert engine.reserve([make.key("one more")], PAGE).outcomes.tolist() == [Code.TOO_MANY_RESERVATIONS]
    engine.abort(reservations[0])
    assert engine.reserve([make.key("one more")], PAGE).outcomes.tolist() == [ReserveOutcome.WRITE]


def test_the_number_of_engines_is_bounded() -> None:
    bench = Bench(8 * PAGE, max_clients=2)
    first, _second = bench.attach(), bench.attach()
    assert code_of_refusal(bench.attach) is Code.TOO_MANY_CLIENTS
    first.die()
    bench.attach()


def test_an_attach_without_memory_for_its_area_is_refused_and_leaves_nothing() -> None:
    bench = Bench(8 * PAGE)
    bench.memory.refuse = True
    assert code_of_refusal(bench.attach) is Code.OUT_OF_MEMORY
    assert bench.node.engines == {}
    bench.memory.refuse = False
    bench.attach()


# ---- spaces


def spaces(*numbers: int) -> list[Space]:
    return [Space(model=make.MODEL, revision=str(number)) for number in numbers]


def test_a_process_has_so_many_spaces_in_all_its_attachments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "MAX_SPACES_PER_PROCESS", 8)
    bench, _ = bench_of(64)
    first = bench.attach(*spaces(*range(6)), pid=1)
    for _ in range(3):
        bench.attach(*spaces(*range(6)), pid=1)  # the same ones again
    with refused(Code.BAD_SPACE, "spaces"):
        bench.attach(*spaces(5, 6, 7, 8), pid=1)
    assert len(bench.node.pool.spaces.by_number) == 7, "nothing of it is kept"
    bench.attach(*spaces(5, 6, 7), pid=1)
    bench.attach(*spaces(8, 9, 10), pid=2)
    first.detach_cleanly()
    with pytest.raises(ProtocolError):
        bench.attach(*spaces(11), pid=1)


def test_a_wrong_block_size_does_not_outlive_its_engine() -> None:
    bench = Bench(64 * PAGE)
    wrong = bench.attach(make.space(block_bytes=8192))
    with pytest.raises(ProtocolError):
        bench.attach(make.space(block_bytes=4096))
    wrong.detach_cleanly()
    bench.pass_time(1)
    right = bench.attach(make.space(block_bytes=4096))
    assert right.store(make.keys(3), 4096).written == 3


def test_spaces_with_blocks_outlive_their_engines() -> None:
    bench = Bench(64 * PAGE)
    first = bench.attach(make.space("kept"), make.space("empty"))
    chain = make.keys(3)
    first.store(chain, PAGE)
    first.detach_cleanly()
    bench.pass_time(1)
    assert [space.model for space in bench.node.pool.spaces.by_number.values()] == ["kept"]
    assert bench.attach(make.space("kept")).lookup(chain) == 3


def test_eight_ranks_share_a_small_pool_without_taking_each_others_segments() -> None:
    bench = Bench(256 * make.MIB)
    ranks = [bench.attach(make.space(rank=rank, world_size=8)) for rank in range(8)]
    chain = make.keys(4)
    for rank in ranks:
        assert rank.store(chain, make.MIB).written == 4
    assert [rank.lookup(chain) for rank in ranks] == [4] * 8

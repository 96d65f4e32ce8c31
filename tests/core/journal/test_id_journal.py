"""The id journal: what it has room for, how it is compacted, and that no process can fill it."""

from __future__ import annotations

import random

import msgspec
import pytest

from dataplane.core.journal.id_journal import (
    ATTACH_BYTES,
    COMPACTED_AT_ONCE,
    MAX_HALF_BYTES,
    MIN_HALF_BYTES,
    N_HALF,
    EngineEnd,
    EngineName,
    IdJournal,
    SegmentEnd,
    SegmentName,
    SpaceEnd,
    SpaceName,
    TenantName,
    half_bytes_for,
    migrated,
    names_bytes,
)
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import VERSION, Attach, SpaceRequest
from dataplane.protocol.events import BlocksRefused, IdJournalNearlyFilled
from dataplane.protocol.layout import LayoutError
from dataplane.protocol.spaces import Space
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench
from tests.dataplane.recovery.support import cuts
from tests.dataplane.recovery.support.cuts import KillBench
from tests.work import lines_run

PAGE = 4096
LONG = "\U00020000" * 120
"""Salts of 128 characters that take 512 bytes each, but for a number at their end."""


def salt(number: int) -> str:
    return f"{LONG}{number:08d}"


def bench(blocks: int, half_bytes: int, monkeypatch: pytest.MonkeyPatch) -> KillBench:
    monkeypatch.setattr(cuts, "HALF", half_bytes)
    return KillBench(capacity_bytes=blocks * PAGE, max_blocks=blocks)


def again(before: KillBench) -> KillBench:
    """After a kill: the next data plane on the same memory."""
    capacity = before.options.capacity_bytes
    after = KillBench(before.image(), capacity_bytes=capacity, max_blocks=before.max_blocks)
    assert after.faults() == []
    return after


def salts(of: KillBench) -> set[str]:
    return {tenant.salt for tenant in of.node.pool.tenants.by_salt.values() if tenant.blocks}


def test_a_journal_has_room_for_one_longest_salt_per_block(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2000
    monkeypatch.setattr("dataplane.core.journal.id_journal.ATTACH_BYTES", 4096)
    monkeypatch.setattr("dataplane.core.journal.id_journal.MIN_HALF_BYTES", 4096)
    assert half_bytes_for(count) < 2 << 20
    before = bench(count, half_bytes_for(count), monkeypatch)
    engine = before.attach(pid=1)
    for number in range(count):
        assert engine.store([make.key(number)], PAGE, tenant=salt(number)).written == 1
    assert not before.node.pool.table.names.overflowed
    after = again(before)
    assert after.restored is not None
    assert (after.restored.blocks, after.restored.lost_blocks) == (count, 0)
    assert salts(after) == {salt(number) for number in range(count)}


def test_a_tenant_that_does_not_fit_is_refused_counted_and_admitted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    before = bench(256, 64 << 10, monkeypatch)
    engine = before.attach(pid=1)
    stored = 0
    while (answer := engine.store([make.key(stored)], PAGE, tenant=salt(stored))).written:
        stored += 1
    assert answer.refused == {Code.TOO_MANY_TENANTS}
    assert 32 <= stored < 64
    assert before.refused() == {"too_many_tenants": 1}
    events = before.take_events()
    assert [event.reason for event in events if isinstance(event, BlocksRefused)] == ["too_many_tenants"]
    assert engine.store([make.key("more")], PAGE, tenant=salt(0)).written == 1, "it is known"
    stats = before.node.stats(before.now)
    assert 0.9 < stats.id_journal_bytes / stats.id_journal_capacity_bytes <= 1
    assert len(salts(again(before))) == stored
    before.apply(make.quotas({salt(5): 0}))
    before.pass_time(1.0)
    assert engine.store([make.key("new")], PAGE, tenant=salt(1000)).written == 1
    assert engine.store([make.key("newer")], PAGE, tenant=salt(1001)).refused == {Code.TOO_MANY_TENANTS}
    after = again(before)
    assert salt(1000) in salts(after)
    assert salt(5) not in salts(after)
    engine = after.resume(engine)
    assert engine.store([make.key("newer")], PAGE, tenant=salt(1001)).refused == {Code.TOO_MANY_TENANTS}


def test_a_full_journal_is_reported_once_until_it_was_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    node = bench(256, 64 << 10, monkeypatch)
    engine = node.attach(pid=1)
    published = []
    for number in range(32):
        engine.store([make.key(number)], PAGE, tenant=salt(number))
        node.pass_time(1.0)
        stats = node.node.stats(node.now)
        share = stats.id_journal_bytes / stats.id_journal_capacity_bytes
        published += [(event, share) for event in node.events(IdJournalNearlyFilled)]
    ((event, share),) = published
    assert 0.8 <= share < 0.85
    assert isinstance(event, IdJournalNearlyFilled)
    assert event.bytes >= 0.8 * event.capacity_bytes
    node.node.clear(node.now, permanent=True)
    node.pass_time(1.0)
    node.pass_time(1.0)
    for number in range(32):
        engine.store([make.key(number)], PAGE, tenant=salt(number))
    node.pass_time(1.0)
    assert len(node.events(IdJournalNearlyFilled)) == 1


def test_tenants_that_come_and_go_forever_do_not_fill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = bench(16, 64 << 10, monkeypatch)
    engine = before.attach(pid=1)
    for number in range(1000):
        stored = engine.store([make.key(number)], PAGE, tenant=salt(number))
        assert (stored.written, stored.refused) == (1, set())
    assert salts(again(before)) == {salt(number) for number in range(984, 1000)}


def test_a_tenant_is_not_lost_when_its_first_segment_fills_a_half() -> None:
    """The journal is compacted between any two records of a store."""
    compacted = 0
    for left in range(40, 400, 8):
        before = KillBench(capacity_bytes=64 * (2 << 20), max_blocks=64)
        engine = before.attach(pid=1)
        names, number = before.node.pool.table.names, 10_000
        while names._active.end < cuts.HALF - left:
            names.append(TenantName(number, "gone"))
            names.tenant_unused(number)
            number += 1
        half = names._cells[N_HALF]
        for number in range(6):
            assert engine.store(make.keys(2, number), 1 << 20, tenant=f"tenant-{number}").written == 2
            compacted += names._cells[N_HALF] != half
            half = names._cells[N_HALF]
            assert salts(again(before)) == {f"tenant-{each}" for each in range(number + 1)}
    assert compacted > 20


def test_its_size_follows_the_number_of_blocks_within_bounds() -> None:
    assert half_bytes_for(64) == MIN_HALF_BYTES
    assert half_bytes_for(1 << 20) == MAX_HALF_BYTES
    names = IdJournal(bytearray(names_bytes(half_bytes_for(80_000))))
    names.format()
    assert names.capacity_bytes >= 80_000 * 540
    assert names.capacity_bytes + ATTACH_BYTES <= half_bytes_for(80_000) * 4 // 5


def test_an_older_smaller_journal_is_copied_into_a_larger_one() -> None:
    buffer = bytearray(names_bytes(64 << 10))
    small = IdJournal(buffer)
    small.format()
    small.append(SpaceName(1, make.space()))
    for number in range(20):
        small.append(TenantName(number, salt(number)))
    _, known = IdJournal.attach(buffer)
    buffer = bytearray(names_bytes(128 << 10))
    large = migrated(known, buffer)
    assert large.nbytes > small.nbytes
    reread, again = IdJournal.attach(buffer)
    assert again == known
    assert reread.used_bytes == small.used_bytes


def test_a_journal_of_another_layout_is_refused_with_a_sentence() -> None:
    buffer = bytearray(names_bytes(64 << 10))
    names = IdJournal(buffer)
    names.format()
    names._cells[1] = 1
    with pytest.raises(LayoutError, match="the journal has layout 1"):
        IdJournal.attach(buffer)


def test_a_refusal_costs_no_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    before = bench(256, 64 << 10, monkeypatch)
    engine = before.attach(pid=1)
    number = 0
    while engine.store([make.key(number)], PAGE, tenant=salt(number)).written:
        number += 1
    names = before.node.pool.table.names
    image = bytes(names._bytes)
    for more in range(500):
        assert engine.store([make.key(("no", more))], PAGE, tenant=salt(5000 + more)).refused
    assert bytes(names._bytes) == image, "nothing was written"


def journal(half_bytes: int) -> tuple[IdJournal, bytearray]:
    buffer = bytearray(names_bytes(half_bytes))
    made = IdJournal(buffer)
    made.format()
    return made, buffer


def test_a_compaction_in_steps_keeps_live_records_and_concurrent_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.core.journal.id_journal.COMPACTED_AT_ONCE", 60)
    names, buffer = journal(64 << 10)
    monkeypatch.setattr(IdJournal, "_compact", lambda names: pytest.fail("compacted at once"))
    chance = random.Random(5)
    used: dict[int, str] = {}
    engines: dict[int, EngineName] = {}
    began = ended = 0
    for number in range(1, 4000):
        used[number] = f"tenant-{number}"
        names.name_tenant(number, used[number])
        while len(used) > 200:
            gone = chance.choice(sorted(used))
            del used[gone]
            names.tenant_unused(gone)
            if chance.random() < 0.5:  # and it returns
                used[gone] = f"tenant-{gone}"
                names.name_tenant(gone, used[gone])
        if number % 3 == 0:
            engines[number] = EngineName(number, number, 0, "group", "name", 0.0, [(1, True)])
            names.append(engines[number])
            again = chance.choice(sorted(engines))
            engines[again] = msgspec.structs.replace(engines[again], expelled=number)
            names.append(engines[again])
        if len(engines) > 20:
            gone = chance.choice(sorted(engines))
            del engines[gone]
            names.append(EngineEnd(gone))
        half, before = names._cells[N_HALF], names._compaction
        names.compact_some()
        began += before is None and names._compaction is not None
        ended += names._cells[N_HALF] != half
        if names._compaction is not None or number % 100 == 0:  # a kill loses nothing, whenever it comes
            found = IdJournal.attach(bytearray(buffer))[1]
            assert found.engines == engines
            assert {each: found.tenants[each] for each in used} == used
    assert began >= ended >= 3
    assert not names.overflowed


def test_a_half_that_fills_during_a_compaction_is_compacted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.core.journal.id_journal.COMPACTED_AT_ONCE", 1)
    names, buffer = journal(16 << 10)
    names.name_tenant(1, "kept")
    number = 1
    while names._cells[N_HALF] == 0:
        number += 1
        names.name_tenant(number, f"tenant-{number}")
        names.tenant_unused(number)
        names.compact_some()
        assert number < 10_000
    assert names._compaction is None
    assert IdJournal.attach(bytearray(buffer))[1].tenants[1] == "kept"


def test_records_that_did_not_fit_are_written_once_others_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.core.journal.id_journal.RETRY_EVERY", 1)
    names, buffer = journal(16 << 10)
    number = 0
    while not names.overflowed:
        number += 1
        names.name_tenant(number, f"tenant-{number}")
    names.append(EngineName(1, 1, 0, "group", "name", 0.0, []))
    with pytest.raises(LayoutError, match="overflowed"):
        IdJournal.attach(bytearray(buffer))
    for gone in range(1, 100):
        names.tenant_unused(gone)
    names.append(EngineName(2, 1, 0, "group", "name", 0.0, []))
    assert not names.overflowed
    found = IdJournal.attach(bytearray(buffer))[1]
    assert found.tenants == {each: f"tenant-{each}" for each in range(100, number + 1)}
    assert set(found.engines) == {1, 2}


def test_a_step_of_a_compaction_visits_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    names, _ = journal(1 << 20)
    number = 0
    while names._active.end < (1 << 20) * 7 // 8:
        number += 1
        names.name_tenant(number, f"tenant-{number}")
        names.tenant_unused(number)
    names.compact_some()
    assert len(names.record_bytes) == number - COMPACTED_AT_ONCE > 0
    while names._cells[N_HALF] == 0:
        names.compact_some()
    assert (names._active.end, names.record_bytes) == (0, {})


def test_a_compaction_at_once_does_not_visit_records_that_have_ended() -> None:
    names, buffer = journal(1 << 20)
    live = [SegmentName(number, 1, PAGE, False) for number in range(5)]
    for segment in live:
        names.append(segment)
    number = len(live)
    while names._active.end < (1 << 20) - 100:
        number += 1
        names.append(SegmentName(number, 1, PAGE, False))
        names.append(SegmentEnd(number))
    assert names._cells[N_HALF] == 0
    full = TenantName(1, "t" * 128)
    assert lines_run(lambda: names.append(full)) < 500 < number
    assert names._cells[N_HALF] == 1
    found = IdJournal.attach(bytearray(buffer))[1]
    assert (list(found.segments.values()), found.tenants) == (live, {1: full.salt})


@pytest.mark.parametrize("ticks", [0, 1])
def test_a_live_number_that_is_written_forever_does_not_fill_it(ticks: int) -> None:
    names, buffer = journal(64 << 10)
    engine = EngineName(1, 10, 20, "group", "name", 1.0, [(space, True) for space in range(20)])
    for number in range(3000):
        engine = msgspec.structs.replace(engine, expelled=number % 3)
        names.append(engine)
        for _ in range(ticks):
            names.compact_some()
    assert not names.overflowed
    assert IdJournal.attach(bytearray(buffer))[1].engines == {1: engine}


# ---- names of one process


HALF_BYTES = 64 << 10
SMALL_ATTACH_BYTES = HALF_BYTES // 2
PROCESS_BYTES = HALF_BYTES // 8


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a journal of 64 KiB."""
    monkeypatch.setattr("dataplane.core.journal.id_journal.ATTACH_BYTES", SMALL_ATTACH_BYTES)
    monkeypatch.setattr("dataplane.core.journal.id_journal.PROCESS_BYTES", PROCESS_BYTES)


def wide(number: int) -> Space:
    """A space of which a record takes more than 4 KiB."""
    text = "\U00020000" * 256
    return Space(model=text, revision=text, layout=text, dtype=text, kv_group=number)


def small_journal() -> IdJournal:
    names = IdJournal(bytearray(names_bytes(HALF_BYTES)))
    names.format()
    return names


def take(names: IdJournal, client: int, pid: int, spaces: list[Space]) -> bool:
    """Attach as a node does, space numbers being their groups."""
    if names.refusal(pid, spaces) is not None:
        return False
    for space in spaces:
        names.append(SpaceName(space.kv_group, space))
    groups = [(space.kv_group, True) for space in spaces]
    names.append(EngineName(client, pid, 0, "g", "", 0.0, groups))
    return True


@pytest.mark.usefixtures("small_bounds")
def test_one_process_gets_its_share_and_all_together_theirs() -> None:
    names = small_journal()
    taken = [take(names, number, 1, [wide(number)]) for number in range(1, 20)]
    assert taken.count(True) == PROCESS_BYTES // 4200
    assert (taken[0], taken[-1]) == (True, False)
    taken = [take(names, number, number, [wide(number)]) for number in range(20, 60)]
    assert 0 < taken.count(True) < SMALL_ATTACH_BYTES // 4096
    assert not names.overflowed
    assert names.refusal(1000, [wide(99)]) is not None


@pytest.mark.usefixtures("small_bounds")
def test_spaces_behind_their_engine_count_for_its_process_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is expelled during a compaction is written to the other half before its spaces are copied."""
    monkeypatch.setattr("dataplane.core.journal.id_journal.COMPACTED_AT_ONCE", 1)
    names, buffer = journal(HALF_BYTES)
    names.name_tenant(1, "first")
    assert take(names, 1, 1, [wide(1)])
    number = 1
    while names._active.end < HALF_BYTES * 7 // 8:
        number += 1
        names.name_tenant(number, "gone")
        names.tenant_unused(number)
    names.compact_some()
    names.append(EngineName(1, 1, 0, "g", "", 0.0, [(1, True)], expelled=1))
    while names._cells[N_HALF] == 0:
        names.compact_some()
    assert not take(names, 2, 1, [wide(2)])
    names, known = IdJournal.attach(buffer)
    assert known.engines[1].expelled
    assert not take(names, 2, 1, [wide(2)])
    names.append(EngineEnd(1))
    assert take(names, 2, 1, [wide(2)])


@pytest.mark.usefixtures("small_bounds")
def test_ended_records_make_room_after_a_restart_and_a_full_half() -> None:
    buffer = bytearray(names_bytes(HALF_BYTES))
    names = IdJournal(buffer)
    names.format()
    assert take(names, 1, 1, [wide(1)])
    assert not take(names, 2, 1, [wide(2)])
    names, known = IdJournal.attach(buffer)
    assert list(known.engines) == [1]
    assert not take(names, 2, 1, [wide(2)]), "a restart does not forget who has how much"
    names.append(EngineEnd(1))
    names.append(SpaceEnd(1))
    for number in range(2, 50):
        assert take(names, number, 1, [wide(number)])
        names.append(EngineEnd(number))
        names.append(SpaceEnd(number))
        names.append(TenantName(number, "t" * 128))
    assert not names.overflowed


@pytest.mark.usefixtures("small_bounds")
def test_an_attach_that_is_refused_for_its_names_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(make.MIB)
    names = small_journal()
    monkeypatch.setattr(bench.node.pool.table, "names", names)
    message = Attach(1, VERSION, "g", [SpaceRequest(wide(number)) for number in range(3)])
    with pytest.raises(ProtocolError, match="names of spaces") as refused:
        bench.node.attach(message, 77, 0.0)
    assert (refused.value.code, refused.value.field) == (Code.BAD_SPACE, "spaces")
    assert bench.node.engines == {}
    assert bench.node.pool.spaces.by_number == {}
    assert names.record_bytes == {}

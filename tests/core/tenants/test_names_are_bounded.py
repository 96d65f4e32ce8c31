"""No process can fill the journal of names: an attach that would is refused, so that a restart stays warm."""

from __future__ import annotations

import pytest

from dataplane.core.journal.id_journal import (
    EngineEnd,
    EngineName,
    IdJournal,
    SpaceEnd,
    SpaceName,
    TenantName,
    names_bytes,
)
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import VERSION, Attach, SpaceRequest
from dataplane.protocol.spaces import Space
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench

HALF_BYTES = 64 << 10
ATTACH_BYTES = HALF_BYTES // 2
PROCESS_BYTES = HALF_BYTES // 8


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a journal of 64 KiB."""
    monkeypatch.setattr("dataplane.core.journal.id_journal.ATTACH_BYTES", ATTACH_BYTES)
    monkeypatch.setattr("dataplane.core.journal.id_journal.PROCESS_BYTES", PROCESS_BYTES)


def wide(number: int) -> Space:
    """A space of which a record takes more than 4 KiB."""
    text = "\U00020000" * 256
    return Space(model=text, revision=text, layout=text, dtype=text, kv_group=number)


def journal() -> IdJournal:
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


def test_one_process_gets_its_share_and_all_together_theirs() -> None:
    names = journal()
    taken = [take(names, number, 1, [wide(number)]) for number in range(1, 20)]
    assert taken.count(True) == PROCESS_BYTES // 4200
    assert (taken[0], taken[-1]) == (True, False)
    taken = [take(names, number, number, [wide(number)]) for number in range(20, 60)]
    assert 0 < taken.count(True) < ATTACH_BYTES // 4096
    assert not names.overflowed
    assert names.refusal(1000, [wide(99)]) is not None


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
    names.live = lambda: [EngineName(2, 1, 0, "g", "", 0.0, [(2, True)])]
    for number in range(2, 50):
        assert take(names, number, 1, [wide(number)])
        names.append(EngineEnd(number))
        names.append(SpaceEnd(number))
        names.append(TenantName(number, "t" * 128))
    assert not names.overflowed


def test_an_attach_that_is_refused_for_its_names_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(make.MIB)
    names = journal()
    monkeypatch.setattr(bench.node.pool.table, "names", names)
    message = Attach(1, VERSION, "g", [SpaceRequest(wide(number)) for number in range(3)])
    with pytest.raises(ProtocolError, match="names of spaces") as refused:
        bench.node.attach(message, 77, 0.0)
    assert (refused.value.code, refused.value.field) == (Code.BAD_SPACE, "spaces")
    assert bench.node.engines == {}
    assert bench.node.pool.spaces.by_number == {}
    assert names.record_bytes == {}

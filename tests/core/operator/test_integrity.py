"""Corrupt blocks are found by verification and by reports of engines, dropped, and counted; no report is trusted."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.core.operator import verifying
from dataplane.core.operator.integrity import ENGINE_BYTES_PER_S, MAX_BYTES_PER_BLOCK, MAX_BYTES_PER_REPORT
from dataplane.memory.memory import READ_BYTES, NodeMemory
from dataplane.protocol.checksums import checksum
from dataplane.protocol.codes import Code
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.control.verification import VerificationState
from dataplane.protocol.engine import Report
from dataplane.protocol.events import BlockCorrupted, VerificationEnded
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.states import State
from tests.core.tenancy import PAGE, bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine, refused
from tests.sizes import size

# ---- verification


RIGHT = checksum(bytes(PAGE))


def store(engine: BenchEngine, chain: list[bytes], tenant: str = "") -> None:
    """Blocks of zeros with their checksums."""
    engine.commit(engine.reserve(chain, PAGE, tenant=tenant).reservation, checksums=RIGHT * len(chain))


def spoil(bench: Bench, key: bytes, space: int = 1) -> None:
    """The bytes of a block are not what they were."""
    (block,) = bench.node.pool.table.find(pack_keys([key]), space)
    assert block is not None
    bench.memory.digests[block.slot.slab.segment.number, block.slot.offset] = bytes(16)


EVERYTHING = Scope()


def verify(bench: Bench, scope: Scope = EVERYTHING) -> VerificationState:
    state = bench.node.verifying.start(scope, bench.now)
    for _ in range(100):
        if state.ended_at is not None:
            break
        bench.pass_time(0.05)
    assert bench.node.verifying.state(state.number) is state
    return state


def figures(state: VerificationState) -> tuple[int, int, int, int]:
    return state.blocks, state.checked, state.corrupt, state.without_checksum


def test_corrupt_blocks_become_misses_and_are_reported() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(6)
    store(engine, chain, "a")
    engine.store(make.keys(3, "bare"), PAGE)
    for at in (2, 4):
        spoil(bench, chain[at])
    state = verify(bench)
    assert figures(state) == (9, 6, 2, 3)
    assert engine.has(chain) == [True, True, False, True, False, True]
    events = bench.take_events()
    corrupt = [event for event in events if isinstance(event, BlockCorrupted)]
    assert [(event.tenant, event.bytes, event.client) for event in corrupt] == [("a", PAGE, 0)] * 2
    (done,) = [event for event in events if isinstance(event, VerificationEnded)]
    assert (done.verification, done.checked, done.corrupt, done.without_checksum) == (state.number, 6, 2, 3)
    assert bench.node.stats(bench.now).totals.corrupt_blocks == 2
    assert bench.faults() == []
    assert figures(verify(bench)) == (7, 4, 0, 3)


def test_a_scope_is_all_that_is_read() -> None:
    bench, engine = bench_of(64)
    for tenant in ("a", "b"):
        store(engine, make.keys(4, tenant), tenant)
        spoil(bench, make.keys(4, tenant)[3])
    state = verify(bench, Scope(tenant="a"))
    assert (figures(state), state.tenant) == ((4, 4, 1, 0), "a")
    assert figures(verify(bench, Scope(keys=make.packed(make.keys(2, "b"))))) == (2, 2, 0, 0), "not behind it"
    assert figures(verify(bench, Scope(tenant="b", keys=make.packed(make.keys(4, "b")[2:])))) == (2, 2, 1, 0)
    state = verify(bench, Scope(model="unknown"))
    assert (figures(state), state.tenant) == ((0, 0, 0, 0), None)


def test_one_step_reads_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "BYTES_PER_STEP", 4 * PAGE)
    bench, engine = bench_of(64)
    store(engine, make.keys(10))
    state = bench.node.verifying.start(Scope(), bench.now)
    seen = []
    while state.ended_at is None:
        bench.pass_time(0.05)
        seen.append(state.checked)
    assert seen == [4, 8, 10]


def test_blocks_that_left_are_skipped_even_if_their_descriptor_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, engine = bench_of(64)
    chain = make.keys(4)
    store(engine, chain)
    state = bench.node.verifying.start(Scope(), bench.now)
    with monkeypatch.context() as patch:
        patch.setattr(verifying, "BYTES_PER_STEP", 0)
        bench.node.invalidate(Scope(keys=make.packed(chain[2:3])), bench.now)
        bench.pass_time(0.05)
        store(engine, make.keys(2, "new"))
    assert sorted(bench.node.pool.table.blocks) == [0, 1, 2, 3], "in the same places"
    for key in make.keys(2, "new"):
        spoil(bench, key)
    bench.pass_time(0.05)
    assert (state.checked, state.corrupt, state.gone) == (2, 0, 2)


def test_unreadable_blocks_are_counted_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, engine = bench_of(64)
    store(engine, make.keys(3))

    def refuse(segment: int, offset: int, nbytes: int) -> bytes:
        raise MemoryError

    monkeypatch.setattr(bench.memory, "digest", refuse)
    state = verify(bench)
    assert (state.unread, state.checked, state.corrupt) == (3, 0, 0)
    assert engine.lookup(make.keys(3)) == 3


def test_verifications_are_bounded_and_old_ones_are_forgotten() -> None:
    bench, engine = bench_of(64)
    store(engine, make.keys(2))
    for _ in range(verifying.MAX_ACTIVE):
        bench.node.verifying.start(Scope(), bench.now)
    with refused(Code.TOO_MANY):
        bench.node.verifying.start(Scope(), bench.now)
    for _ in range(verifying.MAX_ACTIVE):
        bench.pass_time(0.05)
    for _ in range(verifying.MAX_ACTIVE + verifying.MAX_ENDED):
        last = verify(bench)
    assert bench.node.verifying.state(last.number) is last
    with refused(Code.UNKNOWN_VERIFICATION, "number"):
        bench.node.verifying.state(1)


# ---- reports of engines


PAGE = 4096


def store_zeros(bench: Bench, engine: BenchEngine, chain: list[bytes], nbytes: int = PAGE, space: int = 0) -> None:
    """Store zeros with their checksums."""
    granted = engine.reserve(chain, nbytes, space=space)
    assert engine.commit(granted.reservation, checksums=checksum(bytes(nbytes)) * len(chain)) == len(chain)


def damage(bench: Bench, engine: BenchEngine, key: bytes, space: int = 0) -> None:
    block = bench.node.pool.table.find(pack_keys([key]), engine.spaces[space])[0]
    assert block is not None
    bench.memory.digests[block.slot.slab.segment.number, block.slot.offset] = b"x" * 16


def seen(engine: BenchEngine, chain: list[bytes], space: int = 0) -> tuple[list[int], list[int]]:
    """Descriptors and control words of blocks."""
    numbers, control = engine.bench.index.find(pack_keys(chain), engine.spaces[space])
    return numbers.tolist(), control.tolist()


def report(engine: BenchEngine, descriptors: list[int], controls: list[int]) -> int:
    message = Report(1, np.array(descriptors, np.uint32).tobytes(), np.array(controls, np.uint64).tobytes())
    return engine.bench.node.report(engine.client, message, engine.bench.now)


def test_a_corrupt_block_is_dropped_at_once_and_reported_with_its_finder() -> None:
    bench = Bench(make.MIB)
    writer, reader = bench.attach(), bench.attach()
    chain = make.keys(4)
    store_zeros(bench, writer, chain)
    damage(bench, writer, chain[1])
    damage(bench, writer, chain[3])
    bench.take_events()
    assert report(reader, *seen(reader, chain)) == 2
    assert reader.has(chain) == [True, False, True, False]
    totals = bench.node.pool.totals
    assert (totals.corrupt_blocks, totals.false_reports) == (2, 2)
    events = bench.events(BlockCorrupted)
    assert [(event.tenant, event.space, event.bytes, event.client) for event in events] == [
        ("_default", make.MODEL, PAGE, reader.client)
    ] * 2
    assert bench.pool.used_bytes == 2 * PAGE
    store_zeros(bench, writer, [chain[1]])


def test_a_liar_drops_nothing_and_is_counted() -> None:
    bench = Bench(make.MIB)
    writer, liar = bench.attach(), bench.attach()
    chain = make.keys(8)
    store_zeros(bench, writer, chain)
    for _ in range(10):
        assert report(liar, *seen(liar, chain)) == 0
    assert writer.has(chain) == [True] * 8
    assert bench.node.pool.totals.false_reports == 80


def test_a_liar_cannot_burn_the_nodes_time_and_others_are_still_heard() -> None:
    block = 8 * make.MIB
    bench = Bench(16 * block, segment_bytes=block)
    writer, liar, honest = bench.attach(), bench.attach(), bench.attach()
    chain = make.keys(16)
    store_zeros(bench, writer, chain, block)
    descriptors, controls = seen(liar, chain)
    for _ in range(100):
        report(liar, descriptors, controls)
    read = bench.node.pool.totals.false_reports * block
    assert read <= ENGINE_BYTES_PER_S + block
    assert bench.refused()["rate_limited"] >= 99 * 16
    damage(bench, writer, chain[15])
    assert report(liar, descriptors[15:], controls[15:]) == 0, "its share is used up"
    assert report(honest, descriptors[15:], controls[15:]) == 1
    bench.pass_time(1.0)
    damage(bench, writer, chain[14])
    assert report(liar, descriptors[14:15], controls[14:15]) == 1, "it gets another one"


def test_one_report_reads_a_bounded_number_of_bytes_and_any_block_can_be_reported() -> None:
    huge = MAX_BYTES_PER_REPORT + 4 * make.MIB
    bench = Bench(2 * huge, segment_bytes=huge)
    engine = bench.attach(make.space(block_bytes=huge))
    chain = make.keys(2)
    store_zeros(bench, engine, chain, huge)
    for key in chain:
        damage(bench, engine, key)
    descriptors, controls = seen(engine, chain)
    assert report(engine, descriptors, controls) == 1
    assert report(engine, descriptors, controls) == 0, "overdrawn"
    bench.pass_time(10.0)
    assert report(engine, descriptors, controls) == 1
    assert bench.pool.used_bytes == 0


def test_reports_of_other_than_ready_blocks_of_the_reporters_spaces_are_skipped() -> None:
    bench = Bench(make.MIB)
    writer, foreign = bench.attach(), bench.attach(make.space("other"))
    chain = make.keys(3)
    store_zeros(bench, writer, chain[:1])
    damage(bench, writer, chain[0])
    (number,), (control,) = seen(writer, chain[:1])
    writer.reserve(chain[1:2], PAGE)
    being_written = seen(writer, chain[1:2])
    assert being_written[1][0] & 0xFF == State.RESERVED
    assert report(foreign, [number], [control]) == 0
    assert report(writer, [number], [control + 256]) == 0
    assert report(writer, [number], [0]) == 0
    assert report(writer, [number + 1000, 2**32 - 1, 4096], [control] * 3) == 0
    assert report(writer, *being_written) == 0
    unsummed = writer.store(chain[2:], PAGE)
    assert unsummed.written == 1
    assert report(writer, *seen(writer, chain[2:])) == 0, "without a checksum it is unknown"
    totals = bench.node.pool.totals
    assert (totals.corrupt_blocks, totals.false_reports) == (0, 0)
    assert report(writer, [number] * 100, [control] * 100) == 1, "said often is one block"


def test_a_leased_corrupt_block_waits_outside_of_the_index() -> None:
    bench = Bench(make.MIB)
    writer, reader = bench.attach(), bench.attach()
    chain = make.keys(2)
    store_zeros(bench, writer, chain)
    assert reader.acquire(chain) == 2
    damage(bench, writer, chain[0])
    known = seen(writer, chain)
    assert report(writer, *known) == 1
    assert writer.lookup(chain) == 0
    assert report(writer, *known) == 0, "it is dropped already"
    assert bench.node.pool.totals.corrupt_blocks == 1
    assert bench.pool.blocks == 2
    bench.pass_time(0.1)
    assert bench.pool.blocks == 2
    store_zeros(bench, writer, chain[:1])  # its key can be stored again meanwhile
    assert (writer.lookup(chain), bench.pool.blocks) == (2, 3)
    reader.release()
    bench.pass_time(0.1)
    assert (writer.lookup(chain), bench.pool.blocks) == (2, 2)


@pytest.mark.parametrize(
    ("descriptors", "controls", "field"),
    [
        (b"", b"", "descriptors"),
        (b"abc", bytes(8), "descriptors"),
        (bytes(4 * 4097), bytes(8 * 4097), "descriptors"),
        (bytes(4), b"", "controls"),
        (bytes(4), bytes(7), "controls"),
        (bytes(8), bytes(8), "controls"),
    ],
)
def test_a_report_that_does_not_add_up_names_its_field(descriptors: bytes, controls: bytes, field: str) -> None:
    bench = Bench(make.MIB)
    engine = bench.attach()
    with refused(Code.MALFORMED, field):
        bench.node.report(engine.client, Report(1, descriptors, controls), bench.now)


@settings(max_examples=size(200, 50), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 12), st.integers(0, 2**32 - 1)),
            st.one_of(st.integers(0, 600), st.integers(0, 2**64 - 1)),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_no_report_drops_a_block_that_is_whole(reported: list[tuple[int, int]]) -> None:
    bench = Bench(make.MIB)
    engine = bench.attach()
    chain = make.keys(8)
    store_zeros(bench, engine, chain)
    bench.pass_time(0.1)
    assert report(engine, [number for number, _ in reported], [control for _, control in reported]) == 0
    assert engine.has(chain) == [True] * 8


def test_a_machine_that_cannot_check_reports_it_and_drops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(make.MIB)
    engine = bench.attach()
    chain = make.keys(2)
    store_zeros(bench, engine, chain)

    def refuse(segment: int, offset: int, nbytes: int) -> bytes:
        raise MemoryError

    monkeypatch.setattr(bench.memory, "digest", refuse)
    assert report(engine, *seen(engine, chain)) == 0
    assert bench.refused() == {"out_of_memory": 2}
    assert engine.has(chain) == [True, True]


def test_records_of_an_engine_end_with_it() -> None:
    bench = Bench(make.MIB)
    for _ in range(5):
        engine = bench.attach()
        store_zeros(bench, engine, [make.key(engine.client)])
        report(engine, *seen(engine, [make.key(engine.client)]))
        engine.detach_cleanly()
    assert bench.node.integrity._engines == {}


def test_a_block_too_large_to_look_at_is_refused_and_others_of_the_report_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dataplane.core.operator.integrity.MAX_BYTES_PER_BLOCK", make.MIB)
    assert MAX_BYTES_PER_BLOCK > make.MIB
    large = 2 * make.MIB
    bench = Bench(8 * make.MIB, segment_bytes=large)
    engine = bench.attach(make.space(), make.space("large", block_bytes=large))
    one, other = make.keys(2)
    store_zeros(bench, engine, [one], large, space=1)
    store_zeros(bench, engine, [other], make.MIB)
    damage(bench, engine, other)
    descriptors, controls = seen(engine, [one], 1)
    more = seen(engine, [other])
    assert report(engine, descriptors + more[0], controls + more[1]) == 1
    assert bench.refused() == {"rate_limited": 1}


def test_the_checksum_is_that_of_the_bytes_and_takes_no_page() -> None:
    memory = NodeMemory(1024)
    try:
        memory.create_segment(1, 64 * READ_BYTES)
        file = memory.segments[1]
        content = np.random.default_rng(7).bytes(3 * READ_BYTES + 17)
        os.pwrite(file.fd, content, READ_BYTES)
        taken = os.fstat(file.fd).st_blocks
        assert memory.digest(1, READ_BYTES, len(content)) == checksum(content)
        assert memory.digest(1, 8 * READ_BYTES, 40 * READ_BYTES) == checksum(bytes(40 * READ_BYTES))
        assert os.fstat(file.fd).st_blocks == taken
        with pytest.raises(MemoryError):
            memory.digest(1, 60 * READ_BYTES, 5 * READ_BYTES)
    finally:
        memory.close()

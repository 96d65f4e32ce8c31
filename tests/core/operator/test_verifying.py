"""Verification finds what is corrupt, drops it, and does not block."""

from __future__ import annotations

import pytest

from dataplane.core.operator import verifying
from dataplane.core.stats import node_stats
from dataplane.protocol.checksums import checksum
from dataplane.protocol.codes import Code
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.control.verification import VerificationState
from dataplane.protocol.events import BlockCorrupted, VerificationEnded
from dataplane.protocol.layout import pack_keys
from tests.core.tenancy import PAGE, bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine, refused

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
    events = bench.node.take_events()
    corrupt = [event for event in events if isinstance(event, BlockCorrupted)]
    assert [(event.tenant, event.bytes, event.client) for event in corrupt] == [("a", PAGE, 0)] * 2
    (done,) = [event for event in events if isinstance(event, VerificationEnded)]
    assert (done.verification, done.checked, done.corrupt, done.without_checksum) == (state.number, 6, 2, 3)
    assert node_stats(bench.node, bench.now).totals.corrupt_blocks == 2
    assert bench.faults() == []
    assert figures(verify(bench)) == (7, 4, 0, 3)


def test_a_leased_corrupt_block_is_a_miss_at_once_and_goes_with_the_lease() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(2)
    store(engine, chain)
    engine.acquire(chain)
    spoil(bench, chain[0])
    assert verify(bench).corrupt == 1
    assert engine.has(chain) == [False, True]
    assert len(bench.node.pool.table.blocks) == 2
    engine.release()
    bench.pass_time(0.1)
    assert len(bench.node.pool.table.blocks) == 1


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
        bench.node.operator.invalidate(Scope(keys=make.packed(chain[2:3])), bench.now)
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

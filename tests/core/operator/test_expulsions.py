"""An operator expels a process whose leases block its own spaces."""

from __future__ import annotations

import pytest

from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.events import EngineExpelled, EngineReadmitted
from dataplane.protocol.layout import A_EXPELLED
from tests.core.gateway import peer
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine, refused
from tests.dataplane.recovery.support.cuts import KillBench

PAGE = 4096
BLOCKS = 32


def blocked(bench: Bench) -> tuple[BenchEngine, BenchEngine]:
    """An engine that stores, and one of the same space that claims to hold everything."""
    engine = bench.attach(pid=1)
    assert engine.store(make.keys(BLOCKS), PAGE).written == BLOCKS
    holder = bench.attach(pid=2)
    holder.area.counters[:] = 1
    assert engine.store([make.key("new")], PAGE).refused == {Code.POOL_FULL}
    return engine, holder


def expel(bench: Bench, engine: BenchEngine, *, force: bool = True) -> int:
    return bench.node.expulsions.expel(engine.client, bench.now, force=force)


def bench_of() -> Bench:
    return Bench(BLOCKS * PAGE, segment_bytes=BLOCKS * PAGE, max_blocks=2 * BLOCKS)


def shown(bench: Bench, engine: BenchEngine) -> str:
    return next(each.expelled for each in bench.node.stats(bench.now).engines if each.client == engine.client)


def test_a_process_that_holds_blocks_is_expelled_by_force_only() -> None:
    bench = bench_of()
    engine, holder = blocked(bench)
    fences = bench.fences
    with pytest.raises(ProtocolError, match=f"process 2 holds {BLOCKS} blocks") as refused:
        expel(bench, holder, force=False)
    assert (refused.value.code, refused.value.field) == (Code.HOLDS_LEASES, "force")
    assert bench.fences > fences, "counters are summed after a barrier"
    assert holder.area.header[A_EXPELLED] == 0, "it may take leases as before"
    assert engine.store([make.key("new")], PAGE).refused == {Code.POOL_FULL}
    assert expel(bench, holder) == BLOCKS
    assert holder.area.header[A_EXPELLED] == 1
    assert engine.store([make.key("new")], PAGE).written == 1
    assert shown(bench, holder) == "barred"
    (event,) = bench.events(EngineExpelled)
    assert event == EngineExpelled(bench.now, holder.client, 2, "group-1-2", BLOCKS)


def test_a_process_without_leases_needs_no_force() -> None:
    bench = bench_of()
    idle = bench.attach(pid=2)
    assert expel(bench, idle, force=False) == 0
    assert shown(bench, idle) == "barred"


def test_all_attachments_of_the_process_go_and_those_of_others_stay() -> None:
    bench = bench_of()
    engine, holder = blocked(bench)
    second = bench.attach(pid=2)
    second.area.counters[:] = 1
    expel(bench, holder)
    assert (shown(bench, second), shown(bench, engine)) == ("barred", "")
    assert engine.store([make.key("new")], PAGE).written == 1


def test_it_may_not_attach_until_it_is_readmitted_and_then_begins_with_nothing() -> None:
    bench = bench_of()
    _, holder = blocked(bench)
    expel(bench, holder)
    holder.detach()
    with refused(Code.EXPELLED, match="an operator expelled process 2"):
        bench.attach(pid=2)
    bench.attach(pid=3)
    bench.node.expulsions.readmit(holder.client, bench.now)
    assert shown(bench, holder) == "readmitted"
    assert [event.client for event in bench.events(EngineReadmitted)] == [holder.client]
    again = bench.attach(pid=2)
    assert again.client != holder.client
    assert shown(bench, again) == ""


def test_its_ring_is_not_heard_any_more() -> None:
    bench = bench_of()
    engine = bench.attach(pid=1)
    chain = make.keys(BLOCKS)
    engine.store(chain, PAGE)
    reader = bench.attach(pid=2)
    expel(bench, reader)
    reader.acquire(chain[:1])
    bench.pass_time(1.0)
    assert bench.node.stats(bench.now).totals.read_bytes == 0


def test_a_restart_forgets_neither_that_its_leases_do_not_count_nor_that_it_is_barred() -> None:
    bench = KillBench(capacity_bytes=BLOCKS * PAGE, max_blocks=2 * BLOCKS)
    engine, holder = blocked(bench)
    expel(bench, holder)
    warm = KillBench(bench.image(), capacity_bytes=BLOCKS * PAGE, max_blocks=2 * BLOCKS)
    assert shown(warm, holder) == "barred"
    assert warm.resume(engine).store([make.key("new")], PAGE).written == 1
    with pytest.raises(ProtocolError, match="expelled process 2"):
        warm.resume(holder)
    warm.node.expulsions.readmit(holder.client, warm.now)
    warm = KillBench(warm.image(), capacity_bytes=BLOCKS * PAGE, max_blocks=2 * BLOCKS)
    assert shown(warm, holder) == "readmitted"
    assert warm.attach(pid=2).client != holder.client


def test_an_unknown_engine_and_one_of_a_gateway_are_refused() -> None:
    bench = Bench(BLOCKS * PAGE, named_bytes=4 * make.MIB)
    with refused(Code.UNKNOWN_ENGINE, "client"):
        bench.node.expulsions.expel(77, bench.now, force=True)
    worker = peer(bench)
    with refused(Code.UNSUPPORTED, match="gateway"):
        bench.node.expulsions.expel(worker.client, bench.now, force=True)

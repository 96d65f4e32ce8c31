"""The pool grows while it is in use; it never shrinks, and never beyond what the machine has."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dataplane.base.units import format_exact_size
from dataplane.client import attach
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.messages import ControlRefused
from dataplane.protocol.control.nodes import Resize, Resized
from dataplane.protocol.events import PoolResized
from dataplane.protocol.stats.node import NodeStats
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench
from tests.dataplane.plane import Plane, wait_for
from tests.threads import join


def fills(size_mib: int) -> Callable[[NodeStats], bool]:
    """Whether the pool is nearly full at a size."""
    return lambda stats: stats.pool.used_bytes > (size_mib - 4) * make.MIB


def test_a_pool_that_grew_holds_more_and_pins_more() -> None:
    bench = Bench(2 * make.MIB)
    engine = bench.attach()
    chain = make.keys(512)
    engine.store(chain, 4096)
    budget = bench.pool.pin_budget_bytes
    bench.take_events()
    bench.node.resize(4 * make.MIB, bench.now)
    assert engine.store(make.keys(512, "more"), 4096).written == 512
    assert all(engine.has(chain)), "nothing had to go"
    assert bench.pool.capacity_bytes == bench.memory.capacity_bytes == 4 * make.MIB
    assert bench.pool.pin_budget_bytes == 2 * budget
    assert bench.events(PoolResized) == [PoolResized(bench.now, 4 * make.MIB)]
    assert bench.faults() == []


def test_refused_blocks_are_stored_after_the_pool_grew() -> None:
    bench = Bench(2 * make.MIB)
    engine = bench.attach()
    chain = make.keys(512)
    engine.store(chain, 4096)
    engine.acquire(chain)
    for name in range(3):
        assert engine.store([make.key(name)], 4096).refused == {Code.POOL_FULL}
    bench.node.resize(4 * make.MIB, bench.now)
    assert engine.store([make.key("x")], 4096).written == 1


def test_pins_that_waited_for_budget_get_it() -> None:
    bench = Bench(2 * make.MIB)
    engine = bench.attach()
    chain = make.keys(512)
    engine.store(chain, 4096)
    snapshot, bodies = make.pins([make.pin("all", chain)])
    assert bench.apply(snapshot, bodies) == []
    before = bench.pin("all").guaranteed
    bench.node.resize(10 * make.MIB, bench.now)
    assert before < 512 == bench.pin("all").guaranteed
    assert bench.faults() == []


@pytest.mark.parametrize("size", [0, -1, 2 * make.MIB - 4096, 2 * make.MIB + 1, 1 << 62])
def test_a_size_that_cannot_be_is_refused_and_changes_nothing(size: int) -> None:
    bench = Bench(2 * make.MIB)
    with pytest.raises(ProtocolError) as caught:
        bench.node.resize(size, bench.now)
    assert (caught.value.code, caught.value.field) == (Code.CANNOT_RESIZE, "capacity_bytes")
    assert f"got {format_exact_size(size)}:" in caught.value.message
    assert bench.pool.capacity_bytes == 2 * make.MIB


def test_a_live_pool_grows_while_engines_store(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(pool_bytes="16MiB").start()
    stop = threading.Event()
    stored: list[int] = []
    failed: list[object] = []

    def engine() -> None:
        with attach(plane.socket, [make.space(block_bytes=65_536)], timeout_s=30) as client:
            number = 0
            while not stop.is_set():
                number += 1
                with client.reserve(make.keys(16, number), 65_536) as room:
                    for at in room.writable:
                        room.view(at)[:] = bytes([number % 251]) * 65_536
                    done = room.commit()
                    if done.blocks != 16:
                        failed.append((number, done, room.refused))
                stored.append(done.blocks)

    thread = threading.Thread(target=engine)
    thread.start()
    try:
        with plane.manager() as manager:
            for size in (32, 48, 64):
                answer = manager.ask(Resize(f"to {size}", size * make.MIB))
                assert answer == Resized(f"to {size}", size * make.MIB)
                plane.wait_stats(fills(size), "it fills what it got")
            refused = manager.ask(Resize("less", 32 * make.MIB))
            assert isinstance(refused, ControlRefused)
            assert (refused.code, refused.field, refused.nonce) == ("cannot_resize", "capacity_bytes", "less")
            assert isinstance(manager.ask(Resize("too much", 1 << 50)), ControlRefused)
    finally:
        stop.set()
        join(thread)
    assert failed == []
    wait_for(lambda: "pool.resized" in plane.log(), "the log says so")

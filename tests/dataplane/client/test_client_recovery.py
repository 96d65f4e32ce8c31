"""Data planes that are missing, slow, killed or replaced, and engines that are killed or forked."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable

import pytest

from dataplane.client import ClientEvent, Code
from tests.dataplane import factories as make
from tests.dataplane.blocks import attached_again, connect, connected, lost, read, store
from tests.dataplane.plane import Plane, contents, engine_process, line, wait_for

PAGE = 4096
SHORT_S = 3.0
"""Time-out of clients whose data plane is stopped. A data plane that runs answers sooner, also on a busy machine."""


def test_without_a_data_plane_lookups_miss_and_a_later_one_is_found(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane()
    events: list[ClientEvent] = []
    with connect(plane, on_event=events.append) as client:
        assert not client.connected
        assert client.epoch == 0
        assert client.lookup(make.keys(3)) == 0
        assert len(client.acquire(make.keys(3))) == 0
        reservation = client.reserve(make.keys(3), PAGE)
        assert reservation.refused == {Code.UNAVAILABLE: 3}
        assert reservation.writable == []
        assert reservation.commit().blocks == 0
        plane.start()
        attached_again(client)
        assert store(client, make.keys(3)) == 3
    assert [event.name for event in events][:1] == ["attached"]


def test_after_kill_9_reads_continue_stores_are_refused_and_a_new_data_plane_is_joined(plane: Plane) -> None:
    chain = make.keys(3)
    events: list[ClientEvent] = []
    with connect(plane, on_event=events.append) as client:
        store(client, chain)
        old = client.epoch
        lease = client.acquire(chain)
        plane.kill()
        lost(client)
        assert client.lookup(chain) == 3
        assert read(client, chain) == 3
        assert client.reserve(make.keys(1, "new"), PAGE).refused == {Code.UNAVAILABLE: 1}
        plane.start()
        attached_again(client)
        assert client.epoch not in (0, old)
        assert client.lookup(chain) == 0, "the new one starts cold"
        assert store(client, make.keys(2, "new")) == 2
        assert bytes(lease.view(2)) == contents(chain, PAGE)[2], "a lease of the old one stays valid"
        lease.release()
        del lease
        gc.collect()
        assert client.lookup(make.keys(2, "new")) == 2
    assert [event.name for event in events] == ["attached", "lost", "attached"]


def test_an_engine_that_never_mapped_the_pool_misses_without_a_data_plane_and_attaches_to_the_next(
    plane: Plane,
) -> None:
    chain = make.keys(3)
    with connect(plane) as writer, connect(plane) as reader:
        store(writer, chain)
        assert reader.lookup(chain) == 3, "it has mapped the index, and no segment"
        plane.kill()
        lost(reader)
        assert read(reader, chain) == 0
        assert read(writer, chain) == 3, "an engine that has mapped the segment still reads"
        plane.start()
        attached_again(reader)
        attached_again(writer)
        assert store(writer, chain) == 3
        assert read(reader, chain) == 3


def test_a_reservation_of_a_dead_data_plane_commits_nothing_in_the_next(plane: Plane) -> None:
    chain = make.keys(2)
    with connect(plane) as client:
        old = client.reserve(chain, PAGE)
        assert old.writable == [0, 1]
        plane.kill()
        lost(client)
        plane.start()
        attached_again(client)
        new = client.reserve(make.keys(2, "other"), PAGE)
        assert new.number == old.number, "the numbers mean other things now"
        old.view(0)[:] = b"x" * PAGE
        committed = old.commit()
        assert (committed.blocks, committed.code, committed.refused) == (0, Code.UNAVAILABLE, {Code.UNAVAILABLE: 2})
        assert client.lookup(chain) == client.lookup(make.keys(2, "other")) == 0
        assert new.commit().blocks == 2


def test_a_clean_stop_lets_the_memory_go(plane: Plane) -> None:
    chain = make.keys(2)
    with connect(plane) as client:
        store(client, chain)
        assert plane.stop() == 0
        lost(client)
        assert client.lookup(chain) == 0
        assert client.epoch == 0
        gc.collect()
        with open("/proc/self/maps", encoding="ascii") as maps:
            assert "larder-" not in maps.read()


def test_a_stopped_data_plane_costs_one_time_out_and_then_nothing(plane: Plane) -> None:
    chain = make.keys(2)
    events: list[ClientEvent] = []
    with connect(plane, timeout_s=SHORT_S, on_event=events.append) as client:
        store(client, chain)
        with plane.frozen():
            reservation = client.reserve(make.keys(2, "late"), PAGE)
            assert reservation.refused == {Code.TIMEOUT: 2}
            # A reservation that waited would be refused with TIMEOUT.
            assert client.reserve(make.keys(2, "later"), PAGE).refused == {Code.UNAVAILABLE: 2}
            assert read(client, chain) == 2, "reading does not depend on it"

        def given_back() -> bool:
            client.lookup(chain)
            return plane.describe().pool.reserved_bytes == 0

        wait_for(lambda: connected(client) and given_back(), "the late reservation is given back")
        wait_for(lambda: store(client, make.keys(2, "late")) == 2, "stores are served again")
    assert "timeout" in [event.name for event in events]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_reservation_that_ends_while_the_data_plane_is_stopped_is_given_back_later(plane: Plane, end: str) -> None:
    with connect(plane, timeout_s=SHORT_S) as client:
        reservation = client.reserve(make.keys(2, "open"), PAGE)
        with plane.frozen():
            assert client.reserve(make.keys(2, "late"), PAGE).refused == {Code.TIMEOUT: 2}
            if end == "commit":
                assert reservation.commit().blocks == 0
            else:
                reservation.abort()

        def nothing_reserved() -> bool:
            client.lookup(make.keys(1))
            return plane.describe().pool.reserved_bytes == 0

        wait_for(nothing_reserved, "nothing stays reserved")


def test_an_attach_to_a_stopped_data_plane_is_bounded_and_completes_later(plane: Plane) -> None:
    with plane.frozen():
        client = connect(plane, timeout_s=SHORT_S)
        assert not client.connected
        assert client.reserve(make.keys(1), PAGE).refused == {Code.UNAVAILABLE: 1}
    with client:
        wait_for(lambda: connected(client), "the attach is answered")
        assert store(client, make.keys(1)) == 1


# ---- engines that die


HALF_A_STORE = """
client = attach(sys.argv[1], [make.space()], timeout_s=30)
reservation = client.reserve(make.keys(4, "half"), 4096)
for at in (0, 1):
    reservation.view(at)[:] = b"h" * 4096
tell("half")
time.sleep(60)
"""

HOLD_A_LEASE = """
client = attach(sys.argv[1], [make.space()], timeout_s=30)
lease = client.acquire(make.keys(4, "held"))
tell(len(lease))
time.sleep(60)
"""


def test_an_engine_killed_in_the_middle_of_a_store_leaves_nothing_behind(plane: Plane) -> None:
    with connect(plane) as client, engine_process(HALF_A_STORE, plane.socket) as engine:
        assert line(engine) == "half"
        assert plane.describe().pool.reserved_bytes == 4 * PAGE
        engine.kill()
        stats = plane.wait_stats(lambda stats: len(stats.engines) == 1, "the engine is gone")
        assert stats.pool.used_bytes == 0
        assert client.lookup(make.keys(4, "half")) == 0
        assert store(client, make.keys(4, "half")) == 4


def test_leases_of_a_killed_engine_end(plane: Plane) -> None:
    with connect(plane) as client:
        store(client, make.keys(4, "held"), make.MIB)
        with engine_process(HOLD_A_LEASE, plane.socket) as engine:
            assert line(engine) == "4"
            for number in range(32):
                store(client, [make.key(number)], make.MIB)
            assert client.lookup(make.keys(4, "held")) == 4
            engine.kill()
        plane.wait_stats(lambda stats: len(stats.engines) == 1, "the engine is gone")
        assert sum(store(client, [make.key(("new", number))], make.MIB) for number in range(16)) == 16
        assert client.lookup(make.keys(4, "held")) == 0


# ---- fork


FORK = """
import gc, mmap
import numpy as np
client = attach(sys.argv[1], [make.space()], timeout_s=30)
chain = make.keys(2)
with client.reserve(chain, 1 << 20) as reservation:
    for at in reservation.writable:
        reservation.view(at)[:] = b"f" * (1 << 20)
    reservation.commit()
lease = client.acquire(chain)
view = lease.view(0)
start = lease.array(0).ctypes.data
open_reservation = client.reserve(make.keys(2, "open"), 4096)
child = os.fork()
if child == 0:
    code = 1
    try:
        assert client.lookup(chain) == 0
        assert not client.connected
        assert len(client.acquire(chain)) == 0
        assert client.reserve(chain, 4096).writable == []
        assert open_reservation.commit().blocks == 0
        open_reservation.abort()
        client.close()
        # Memory that the child takes now may lie where the parent's segments were: closing must not unmap it.
        mine = [np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8) for _ in range(60)]
        for each in mine:
            each[:] = 1
        reused = sum(start <= each.ctypes.data < start + (60 << 20) for each in mine)
        lease.release()
        del lease, view, client, open_reservation, reservation
        gc.collect()
        assert sum(int(each.sum()) for each in mine) == 60 << 20, reused
        with attach(sys.argv[1], [make.space()], timeout_s=30, group="child") as own:
            assert own.lookup(chain) == 2
        code = 0
    finally:
        os._exit(code)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert status == 0, status
assert client.connected
assert client.lookup(chain) == 2
assert bytes(view[:1]) == b"f"
assert open_reservation.commit().blocks == 2
tell("well")
"""


def test_a_forked_child_has_a_closed_client_and_the_parent_continues(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(pool_bytes="128MiB", dataplane__segment_bytes="64MiB").start()
    with engine_process(FORK, plane.socket) as engine:
        assert line(engine) == "well"
        assert engine.wait(timeout=60) == 0


def test_a_forked_child_that_lives_on_does_not_keep_the_parents_bytes(plane: Plane) -> None:
    code = HALF_A_STORE.replace(
        'tell("half")', "child = os.fork()\ntell(child) if child else None\nreservation = client = None\n"
    )
    with engine_process(code, plane.socket) as engine:
        child = int(line(engine))
        try:
            engine.kill()
            engine.wait(60)
            stats = plane.wait_stats(lambda stats: not stats.engines, "the parent is gone")
            assert stats.pool.used_bytes == 0
        finally:
            os.kill(child, signal.SIGKILL)

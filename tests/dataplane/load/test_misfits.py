"""Whatever one engine does, the others go on, and the node's accounts stay consistent. What it holds is shown."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dataplane.client import Code
from dataplane.protocol.stats.engines import EngineStats
from dataplane.protocol.stats.node import NodeStats
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect, read, store
from tests.dataplane.load.content import fill
from tests.dataplane.load.misfits import ROLES
from tests.dataplane.plane import Plane, engine_process, line, wait_for
from tests.forked import Forked

PAGE = 4096
NBYTES = 16 << 10
TURNS = 60


@contextmanager
def misfit(plane: Plane, role: str, seed: int = 1) -> Iterator[Forked]:
    process = Forked(
        "tests.dataplane.load.misfits", role, plane.socket, str(seed), env=dict(os.environ), stdout=subprocess.PIPE
    )
    try:
        assert line(process) == "ready", role
        yield process
    finally:
        process.kill()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


def shown(stats: NodeStats, pid: int) -> EngineStats:
    (engine,) = (each for each in stats.engines if each.pid == pid)
    return engine


def work(plane: Plane, turns: int = 50, seed: int = 3) -> tuple[int, int]:
    """Store and read like an honest engine, every byte checked; (stored, read) blocks."""
    rng = random.Random(seed)
    stored = seen = 0
    with connect(plane, group="honest", verify="always") as client:
        for _ in range(turns):
            number = rng.randrange(300)
            chain = make.keys(1 + number % 8, ("honest", number))
            stored += store(client, chain, NBYTES, f"t{number % 3}")
            seen += read(client, chain, NBYTES)
        assert client.connected
    return stored, seen


@pytest.mark.parametrize("role", sorted(ROLES))
def test_others_work_on_beside_a_misfit_and_nothing_of_it_is_left(plane: Plane, role: str) -> None:
    with misfit(plane, role, 1), misfit(plane, role, 2):
        stored, seen = work(plane, TURNS)
        assert stored > TURNS // 2
        assert seen > TURNS
        plane.describe()  # audits the accounts
    stats = plane.wait_stats(lambda stats: not stats.engines, "both are gone")
    assert (stats.pool.quarantined_bytes, stats.pool.reserved_bytes) == (0, 0)
    assert stats.totals.corrupt_blocks == 0
    with connect(plane, group="fresh") as client:
        fill(client, "fresh")
    assert "Traceback" not in plane.log()


def test_a_hung_writer_is_quarantined_and_harmless_when_it_continues(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(dataplane__reservation_ttl_s="0.3").start()
    with misfit(plane, "hang") as hanger:
        hanger.send_signal(signal.SIGSTOP)
        stats = plane.wait_stats(lambda stats: stats.pool.quarantined_bytes > 0, "its deadline passed")
        engine = shown(stats, hanger.pid)
        assert (engine.quarantined_bytes, engine.reserved_bytes) == (4 * PAGE, 0)
        assert (engine.connected, engine.alive, engine.waits_for_pids) == (True, True, [])
        stored, _ = work(plane)
        assert stored > 0
        hanger.send_signal(signal.SIGCONT)
        plane.wait_stats(lambda stats: stats.pool.quarantined_bytes == 0, "it continued and released")
        assert hanger.poll() is None
        stored, seen = work(plane)
        assert seen > 0
        plane.describe()


def test_bytes_of_a_lost_engine_name_the_process_they_wait_for(plane: Plane) -> None:
    code = """
client = attach(sys.argv[1], [make.space()], group="tp", timeout_s=30)
if sys.argv[2] == "scheduler":
    reservation = client.reserve(make.keys(3), 4096)
    lease = client.acquire(make.keys(1, "none"))
tell("here")
time.sleep(60)
"""
    with (
        engine_process(code, plane.socket, "worker") as worker,
        engine_process(code, plane.socket, "scheduler") as scheduler,
    ):
        assert (line(worker), line(scheduler)) == ("here", "here")
        scheduler.kill()
        stats = plane.wait_stats(
            lambda stats: stats.pool.quarantined_bytes and not shown(stats, scheduler.pid).alive,
            "the scheduler is gone",
        )
        lost = shown(stats, scheduler.pid)
        assert lost.quarantined_bytes == 3 * PAGE
        assert (lost.connected, lost.alive, lost.waits_for_pids) == (False, False, [worker.pid])
        here = shown(stats, worker.pid)
        assert (here.connected, here.alive, here.waits_for_pids, here.quarantined_bytes) == (True, True, [], 0)
        worker.kill()
        stats = plane.wait_stats(lambda stats: not stats.engines, "both are gone")
        assert stats.pool.used_bytes == 0


def test_views_that_are_never_released_are_shown_and_end_with_their_process(plane: Plane) -> None:
    code = """
client = attach(sys.argv[1], [make.space()], group="hoarder", timeout_s=30)
kept = []
for number in range(16):
    with client.reserve([make.key(("mine", number))], 1 << 20) as reservation:
        reservation.commit()
    with client.acquire([make.key(("mine", number))]) as lease:
        kept.append(lease.view(0))
client.close()
tell("holding")
time.sleep(60)
"""
    with connect(plane, group="honest") as client, engine_process(code, plane.socket) as hoarder:
        assert line(hoarder) == "holding"
        with client.reserve([make.key("new")], make.MIB) as reservation:
            assert set(reservation.refused) <= {Code.POOL_FULL, Code.FRAGMENTED}
        engine = shown(plane.describe(), hoarder.pid)
        assert engine.leased_blocks == 16
        assert (engine.connected, engine.waits_for_pids) == (False, [hoarder.pid]), "it closed its client"
        hoarder.kill()
        plane.wait_stats(lambda stats: len(stats.engines) == 1, "the hoarder is gone")
        with client.reserve([make.key("new")], make.MIB) as reservation:
            assert reservation.refused == {}


def test_a_process_that_attaches_without_detaching_is_refused_alone(make_plane: Callable[..., Plane]) -> None:
    code = """
import socket
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.engine import VERSION, Attach, Attached, EngineReply, SpaceRequest
request, answers = encode(Attach(1, VERSION, "crowd", [SpaceRequest(make.space())])), decoder(EngineReply)
taken = 0
for _ in range(150):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(sys.argv[1])
        connection.send(request)
        taken += isinstance(decode(answers, connection.recv(1 << 18)), Attached)
tell(taken)
time.sleep(60)
"""
    plane = make_plane(dataplane__max_clients="128").start()
    work(plane)  # takes the pool's segments
    before = plane.open_fds()
    with engine_process(code, plane.socket) as crowd:
        taken = int(line(crowd))
        assert taken == 64, "half of the places"
        stats = plane.describe()
        assert len(stats.engines) == taken
        assert {engine.pid for engine in stats.engines} == {crowd.pid}
        assert not any(engine.connected for engine in stats.engines)
        stored, seen = work(plane, seed=4)
        assert stored > 0
        assert seen > 0
        crowd.kill()
        plane.wait_stats(lambda stats: not stats.engines, "all went with their process")
    wait_for(lambda: plane.open_fds() <= before + 16, "their descriptors are closed")

"""A process claims to hold every block, loses its connection and lives on: the blocks that it holds, and how to end
it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dataplane.client import Client, ClientEvent, Code
from dataplane.protocol.control.messages import ControlRefused
from dataplane.protocol.control.nodes import Expel, Expelled
from dataplane.protocol.control.records import QuotaSpec
from dataplane.protocol.control.scopes import Clear
from dataplane.protocol.stats.engines import EngineStats
from dataplane.protocol.stats.node import NodeStats
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect
from tests.dataplane.plane import Plane, engine_process, line, wait_for
from tests.forked import Forked

BLOCK = make.MIB
BLOCKS = 16
"""As many as the pool holds."""

CLAIM = """
client = attach(sys.argv[1], [SpaceRequest(make.space(sys.argv[2]), writes=False)], group="claimant", timeout_s=30)
client._memory.current.area.counters[:] = 1
if sys.argv[3] == "lost":
    client._link._socket.close()
tell("claimed")
sys.stdin.readline()
try:
    attach(sys.argv[1], [SpaceRequest(make.space(sys.argv[2]), writes=False)], group="again", timeout_s=30)
    tell("attached")
except AttachRefused as refused:
    tell(refused.code.name)
sys.stdin.readline()
"""
WRITE = """
client = attach(sys.argv[1], [make.space()], group="writers", timeout_s=30)
reservation = client.reserve(make.keys(4, "half"), 1 << 20)
tell("writing")
sys.stdin.readline()
"""


@contextmanager
def claimant(plane: Plane, model: str, *, lost: bool = True) -> Iterator[Forked]:
    """A living process with all its counters up."""
    with engine_process(CLAIM, plane.socket, model, "lost" if lost else "") as process:
        assert line(process) == "claimed"
        if lost:
            plane.wait_stats(
                lambda stats: any(each.pid == process.pid and not each.connected for each in stats.engines),
                "the lost connection is noticed",
            )
        yield process


@pytest.fixture
def full(plane: Plane) -> Iterator[Client]:
    """A client of a pool that its blocks fill."""
    with connect(plane) as client:
        for number in range(BLOCKS):
            assert store(client, number) is None
        yield client


def store(client: Client, name: object, tenant: str = "") -> Code | None:
    """Why a block could not be stored; None when it was."""
    with client.reserve([make.key(name)], BLOCK, tenant=tenant) as reservation:
        reservation.commit()
        return next(iter(reservation.refused), None)


def engine_of(stats: NodeStats, process: Forked) -> EngineStats:
    return next(each for each in stats.engines if each.pid == process.pid)


def expel(plane: Plane, process: Forked, **options: bool) -> Expelled | ControlRefused:
    client = engine_of(plane.describe(), process).client
    with plane.manager() as manager:
        answer: Expelled | ControlRefused = manager.ask(Expel("n", client, **options))
    return answer


def clear(plane: Plane) -> None:
    with plane.manager() as manager:
        manager.ask(Clear("n"))


def test_a_client_of_another_space_keeps_no_tenant_from_storing_and_clear_frees_all(plane: Plane, full: Client) -> None:
    with plane.manager() as manager:
        manager.push(make.shares(QuotaSpec("acme", floor_bytes=4 * BLOCK)))
    with claimant(plane, "unrelated") as process:
        for number in range(2 * BLOCKS):
            assert store(full, ("new", number)) is None
        for number in range(4):
            assert store(full, ("floor", number), tenant="acme") is None
        assert engine_of(plane.describe(), process).leased_blocks == 0
        clear(plane)
        plane.wait_stats(lambda stats: stats.pool.used_bytes == 0, "everything is freed")


def test_a_client_of_the_same_space_is_expelled_and_its_blocks_go(plane: Plane, full: Client) -> None:
    with claimant(plane, make.MODEL) as process:
        assert store(full, "new") is Code.POOL_FULL
        assert engine_of(plane.describe(), process).leased_blocks == BLOCKS
        refused = expel(plane, process)
        assert isinstance(refused, ControlRefused)
        assert (refused.code, refused.field) == ("holds_leases", "force")
        assert store(full, "new") is Code.POOL_FULL, "nothing changed"
        done = expel(plane, process, force=True)
        assert isinstance(done, Expelled)
        assert (done.pid, done.leased_blocks, done.dropped, done.killed) == (process.pid, BLOCKS, True, False)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert line(process) == "EXPELLED", "it cannot attach again, and another one can"
        with connect(plane) as another:
            assert another.lookup([make.key(0)]) == 1
        assert store(full, "new") is None
        assert engine_of(plane.describe(), process).expelled == "barred"
        clear(plane)
        plane.wait_stats(lambda stats: stats.pool.used_bytes == 0, "everything is freed")
        process.kill()
        plane.wait_stats(lambda stats: [each.pid for each in stats.engines] == [os.getpid()], "its end is noticed")


def test_a_connected_engine_is_cut_off_and_killed_on_request(plane: Plane, full: Client) -> None:
    with claimant(plane, make.MODEL, lost=False) as process:
        assert store(full, "new") is Code.POOL_FULL
        engine = engine_of(plane.describe(), process)
        assert (engine.connected, engine.alive, engine.group) == (True, True, "claimant")
        done = expel(plane, process, kill=True)
        assert isinstance(done, Expelled)
        assert (done.killed, done.leased_blocks) == (True, BLOCKS)
        assert process.wait(timeout=60) == -9
        plane.wait_stats(lambda stats: len(stats.engines) == 1, "its end is noticed")
        assert store(full, "new") is None


def test_reservations_of_an_expelled_process_stay_quarantined_until_it_is_killed(plane: Plane) -> None:
    with engine_process(WRITE, plane.socket) as process:
        assert line(process) == "writing"
        done = expel(plane, process)
        assert isinstance(done, Expelled)
        assert (done.quarantined_bytes, done.waits_for_pids) == (4 * BLOCK, [process.pid])
        assert plane.describe().pool.quarantined_bytes == 4 * BLOCK
        assert isinstance(expel(plane, process, kill=True), Expelled)
        plane.wait_stats(lambda stats: stats.pool.used_bytes == 0, "its bytes come back")


def test_an_honest_client_stops_reading_at_once_and_continues_when_it_is_readmitted(plane: Plane, full: Client) -> None:
    chain = [make.key(0)]
    events: list[ClientEvent] = []
    with full.acquire(chain) as lease:
        assert len(lease) == 1
    stats = plane.describe()
    with plane.manager() as manager:
        done = manager.ask(Expel("n", stats.engines[0].client))
        assert isinstance(done, Expelled), done
        full._link.emit = events.append
        assert len(full.acquire(chain)) == 0, "the memory is there, and nothing of it is held"
        wait_for(lambda: full.lookup(chain) == 0 and any(each.name == "refused" for each in events), "it is reported")
        assert {each.fields["code"] for each in events if each.name == "refused"} == {Code.EXPELLED}
        assert isinstance(manager.ask(Expel("n", stats.engines[0].client, on=False)), Expelled)
    wait_for(lambda: full.lookup(chain) == 1, "it attaches again")
    assert len(full.acquire(chain)) == 1
    assert len(plane.describe().engines) == 2, "the expelled attachment stays until the process ends"

"""`kill -9` and planned restarts of the data plane under load: no READY block is lost, no read fails, it serves soon.

`LARDER_TEST_KILLS=200` (`make kills`) kills more often than CI has time for.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dataplane.client import Client
from dataplane.protocol.codec import encode
from dataplane.protocol.layout import H_MEMORY, H_PID, IndexMemory
from dataplane.protocol.states import State
from tests.dataplane import blocks
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect
from tests.dataplane.load.engine import HELD_BYTES
from tests.dataplane.load.engines import holders
from tests.dataplane.plane import START_TIMEOUT_S, wait_for
from tests.dataplane.recovery.support.cuts import listed
from tests.dataplane.recovery.support.harness import Supervised, supervised
from tests.lmcache.client import Client as LMCacheClient
from tests.lmcache.client import prompt
from tests.lmcache.planes import check as check_chunks
from tests.lmcache.planes import mapped, supervised_gateway, url_of
from tests.lmcache.planes import store as store_chunks
from tests.sizes import size
from tests.threads import join

KILLS = int(os.environ.get("LARDER_TEST_KILLS", size(20, 4)))
ENGINES = 4
BACK_S = 1.0
"""For the median of the kills that had a standby; asserted by `make kills`, which has the machine for itself."""
TIMED = "LARDER_TEST_KILLS" in os.environ


def left_behind(client: Client, dead: int) -> int | None:
    """Blocks that a killed data plane left readable; None when the next one has begun already."""
    index: IndexMemory = client._memory.current.index
    found = len(listed(index, State.READY, State.EVICTING))
    return found if index.cells[H_PID] == dead else None


def wait_gone(pid: int) -> None:
    """Until a process has ended; it is not our child."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(60_000)
    finally:
        os.close(pidfd)


def back_after(client: Client, killed: float, number: int) -> float:
    """Seconds from the kill to the first reservation that is served."""
    requests = 0
    while True:
        requests += 1
        reservation = client.reserve([make.key(("probe", number, requests))], HELD_BYTES)
        if reservation.number:
            after = time.monotonic() - killed
            reservation.abort()
            return after
        assert time.monotonic() - killed < START_TIMEOUT_S, "it came back"
        time.sleep(0.002)


def kill_once(plane: Supervised, client: Client, number: int, chance: random.Random) -> tuple[float, bool]:
    """One kill at a random moment; (seconds until it served again, whether the blocks could be counted)."""
    dead = plane.plane_pid
    adopted = len(plane.logged("memory.adopted"))
    if chance.random() < 0.3:  # in the middle of a snapshot
        with plane.manager() as manager:
            limits: dict[str, int | None] = {f"t{each}": 4 << 20 for each in range(5)}
            manager.socket.send(encode(make.quotas(limits, number + 2)))
            time.sleep(chance.random() * 0.004)
            killed = plane.kill_plane()
    else:
        killed = plane.kill_plane()
    wait_gone(dead)
    left = left_behind(client, dead)
    after = back_after(client, killed, number)
    plane.describe()  # asserts that the audit finds nothing
    wait_for(lambda: plane.plane_pid != dead, "the supervisor tells of the new process")
    wait_for(lambda: len(plane.logged("memory.adopted")) > adopted, "the adoption is logged")
    line = plane.logged("memory.adopted")[-1]
    if left is not None:
        assert line["blocks"] == left, "every READY block is there"
    assert plane.logged("memory.not_adopted") == []
    assert plane.logged("memory.incomplete") == []
    return after, left is not None


@pytest.mark.timeout(300 + 3 * KILLS)
def test_kills_under_load_lose_nothing_and_no_read_fails(socket_dir: Path) -> None:
    chance = random.Random(KILLS)
    with supervised(socket_dir) as plane, holders(plane, ENGINES) as end, connect(plane) as client:
        with plane.manager() as manager:
            manager.push(make.quotas({"t0": None}, 1))
        wait_for((plane.folder / "quotas.snapshot").exists, "the snapshot is saved, which an ACK does not wait for")
        memory = client._memory.current.index.cells[H_MEMORY]
        times: dict[bool, list[float]] = {True: [], False: []}
        counted = 0
        for number in range(KILLS):
            has_standby = number % 2 == 0
            if has_standby:
                wait_for(plane.standby_waits, "a standby waits")
            time.sleep(chance.random() * 0.3)
            after, whole = kill_once(plane, client, number, chance)
            times[has_standby].append(after)
            counted += whole
        assert client._memory.current.index.cells[H_MEMORY] == memory
        end()
        assert plane.describe().armed, "quotas are in force from the first moment"
        for has_standby, found in times.items():
            which = "with" if has_standby else "perhaps without"
            print(f"back {which} a standby: median {np.median(found):.3f} s, worst {max(found):.3f} s")
        print(f"{counted} of {KILLS} could be counted")
    assert counted > 0
    if TIMED:
        assert np.median(times[True]) <= BACK_S, times


# ---- planned restarts


REPLACED_ENGINES = 3
RESTARTS = size(3, 2)


@pytest.mark.full
def test_restarts_under_load_lose_nothing_and_no_read_fails(socket_dir: Path) -> None:
    with supervised(socket_dir) as plane, holders(plane, REPLACED_ENGINES) as end, connect(plane) as client:
        memory = client._memory.current.index.cells[H_MEMORY]
        pids = {plane.plane_pid}
        for _ in range(RESTARTS):
            plane.replace()
            wait_for(lambda: blocks.store(client, [make.key(plane.plane_pid)]) == 1, "stores are served again")
            pids.add(plane.plane_pid)
            start = plane.describe().start  # asserts that the audit finds nothing
            assert (start.kind, start.lost_blocks) == ("warm", 0)
        assert len(pids) == RESTARTS + 1
        assert client._memory.current.index.cells[H_MEMORY] == memory, "engines keep their memory"
        end()
        assert len(plane.wait_logged("memory.adopted", RESTARTS)) == RESTARTS
        assert plane.logged("memory.not_adopted") == []
        assert plane.logged("memory.kept") == [], "its holder is there: no other holder is needed"


def test_lmcache_clients_keep_their_connection_and_every_request_is_answered(socket_dir: Path) -> None:
    with (
        supervised_gateway(socket_dir) as plane,
        LMCacheClient(url_of(plane)) as worker,
        LMCacheClient(url_of(plane)) as scheduler,
        mapped(worker.register()) as segment,
    ):
        assert store_chunks(worker, segment, prompt(3), 0, "one")
        ended = threading.Event()
        looked: list[int] = []

        def look_up() -> None:
            while not ended.wait(0.002):
                request = f"r{len(looked)}"
                looked.append(scheduler.lookup(prompt(3), request))
                scheduler.ask("end_session", request)

        looking = threading.Thread(target=look_up, daemon=True)
        looking.start()
        before = plane.plane_pid
        plane.replace()
        count = len(looked)
        wait_for(lambda: len(looked) > count + 5, "look-ups go on")
        ended.set()
        join(looking)
        assert plane.plane_pid != before
        assert set(looked) == {3}
        assert check_chunks(worker, segment, prompt(3), 0, "again")

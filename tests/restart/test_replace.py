"""A planned restart of the data plane under load: no block is lost, no read fails, and no request of a client."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from dataplane.client import Client, attach
from dataplane.protocol.layout import H_MEMORY
from tests.dataplane import factories as make
from tests.dataplane.plane import wait_for
from tests.lmcache.client import Client as LMCacheClient
from tests.lmcache.client import prompt
from tests.lmcache.planes import check, mapped, store, supervised_gateway, url_of
from tests.restart.support.engine import BLOCK_BYTES
from tests.restart.support.harness import supervised
from tests.restart.support.load import engine, read_line
from tests.sizes import size
from tests.threads import join

ENGINES = 3
RESTARTS = size(3, 2)


def away_s(client: Client, number: int, ended: threading.Event) -> float:
    """The longest time in which no reservation was served."""
    worst, last, requests = 0.0, time.monotonic(), 0
    while not ended.is_set():
        requests += 1
        reservation = client.reserve([make.key(("probe", number, requests))], BLOCK_BYTES)
        if reservation.number:
            reservation.abort()
            worst, last = max(worst, time.monotonic() - last), time.monotonic()
        time.sleep(0.002)
    return worst


@pytest.mark.full
def test_restarts_under_load_lose_nothing_and_no_read_fails(socket_dir: Path) -> None:
    with ExitStack() as stack:
        plane = stack.enter_context(supervised(socket_dir))
        engines = [stack.enter_context(engine(plane.socket, seed)) for seed in range(ENGINES)]
        assert [read_line(each) for each in engines] == ["begun"] * ENGINES
        client = stack.enter_context(attach(plane.socket, [make.space()], timeout_s=30))
        memory = client._link.attachment.index.cells[H_MEMORY]
        away, pids = [], {plane.plane_pid}
        for number in range(RESTARTS):
            ended = threading.Event()
            seen: list[float] = []
            probe = threading.Thread(
                target=lambda n=number, e=ended, s=seen: s.append(away_s(client, n, e)), daemon=True
            )
            probe.start()
            try:
                plane.replace()
                time.sleep(0.5)  # for the probe to be served again
            finally:
                ended.set()
                join(probe)
            away += seen
            pids.add(plane.plane_pid)
            start = plane.describe().start  # asserts that the audit finds nothing
            assert (start.kind, start.lost_blocks) == ("warm", 0)
        assert len(pids) == RESTARTS + 1
        assert client._link.attachment.index.cells[H_MEMORY] == memory, "engines keep their memory"
        counts = []
        for each in engines:
            each.terminate()
            counts.append(json.loads(read_line(each)))
        wait_for(lambda: len(plane.logged("memory.adopted")) == RESTARTS, "each adoption is logged")
        adopted = plane.logged("memory.adopted")
        assert [each["quarantined_blocks"] >= 0 for each in adopted] == [True] * RESTARTS
        assert plane.logged("memory.not_adopted") == []
        assert plane.logged("memory.kept") == [], "its holder is there: no other holder is needed"
        print(f"no reservation was served for: {[round(each, 3) for each in away]} s")
    assert [each["own_misses"] for each in counts] == [0] * ENGINES
    assert [each["wrong_blocks"] for each in counts] == [0] * ENGINES
    assert all(each["verified_blocks"] > 0 for each in counts)


def test_lmcache_clients_keep_their_connection_and_every_request_is_answered(socket_dir: Path) -> None:
    with (
        supervised_gateway(socket_dir) as plane,
        LMCacheClient(url_of(plane)) as worker,
        LMCacheClient(url_of(plane)) as scheduler,
        mapped(worker.register()) as segment,
    ):
        assert store(worker, segment, prompt(3), 0, "one")
        ended = threading.Event()
        looked: list[int] = []

        def look_up() -> None:
            while not ended.is_set():
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
        assert check(worker, segment, prompt(3), 0, "again")

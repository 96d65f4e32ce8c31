"""A planned restart of the data plane under load: no block is lost, no read fails, and no request of a client."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dataplane.protocol.layout import H_MEMORY
from tests.dataplane import factories as make
from tests.dataplane.plane import wait_for
from tests.dataplane.recovery.support import blocks
from tests.dataplane.recovery.support.blocks import connect
from tests.dataplane.recovery.support.harness import supervised
from tests.dataplane.recovery.support.load import engines
from tests.lmcache.client import Client as LMCacheClient
from tests.lmcache.client import prompt
from tests.lmcache.planes import check, mapped, store, supervised_gateway, url_of
from tests.sizes import size
from tests.threads import join

ENGINES = 3
RESTARTS = size(3, 2)


@pytest.mark.full
def test_restarts_under_load_lose_nothing_and_no_read_fails(socket_dir: Path) -> None:
    with supervised(socket_dir) as plane, engines(plane.socket, ENGINES) as end, connect(plane) as client:
        memory = client._link.attachment.index.cells[H_MEMORY]
        pids = {plane.plane_pid}
        for _ in range(RESTARTS):
            plane.replace()
            wait_for(lambda: blocks.store(client, [make.key(plane.plane_pid)]) == 1, "stores are served again")
            pids.add(plane.plane_pid)
            start = plane.describe().start  # asserts that the audit finds nothing
            assert (start.kind, start.lost_blocks) == ("warm", 0)
        assert len(pids) == RESTARTS + 1
        assert client._link.attachment.index.cells[H_MEMORY] == memory, "engines keep their memory"
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
        assert store(worker, segment, prompt(3), 0, "one")
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
        assert check(worker, segment, prompt(3), 0, "again")

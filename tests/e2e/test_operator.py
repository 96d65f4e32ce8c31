"""What an operator says holds, and the page shows it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.e2e.larder import BLOCK_BYTES, MODEL, POOL_BLOCKS, Larder, cached, keys, running, store, until
from tests.run_marks import short_folder


@pytest.fixture(scope="module")
def shared() -> Iterator[Larder]:
    with short_folder() as folder, running(folder) as one:
        yield one


@pytest.fixture
def larder(shared: Larder) -> Larder:
    """A Larder without records and blocks."""
    for kind, key in (("quotas", "tenant"), ("pins", "name")):
        for record in shared.get(kind)["items"]:
            shared.delete(f"{kind}/{record[key]}")
    assert shared.api.post("/api/v1/actions/clear", json={"confirm": True}).is_success
    until(lambda: shared.node()["stats"]["pool"]["used_bytes"] == 0, "the pool is empty")
    return shared


def test_a_quota_is_acknowledged_and_binding_and_affects_no_other_tenant(larder: Larder) -> None:
    with larder.engine() as engine:
        mine, theirs = keys("mine", 30), keys("theirs", 20)
        assert store(engine, mine, "mine") == 30
        assert store(engine, theirs, "theirs") == 20
        record = larder.put("quotas/mine", limit_bytes=10 * BLOCK_BYTES, note="too much")
        assert record["status"]["applied"] is True
        assert cached(engine, mine) == 10, "usage fell to the limit, from the end of the prefix"
        assert cached(engine, theirs) == 20
        until(lambda: larder.tenant("mine")["bytes"] == 10 * BLOCK_BYTES, "the overview shows it")
        assert larder.tenant("theirs")["bytes"] == 20 * BLOCK_BYTES
        with engine.reserve(keys("more", 20), BLOCK_BYTES, tenant="mine") as reservation:
            assert len(reservation.writable) == 10
            assert {code.name: n for code, n in reservation.refused.items()} == {"OVER_LIMIT": 10}
        larder.delete("quotas/mine")
        until(lambda: not larder.tenant("mine").get("managed"), "the tenant is unmanaged again")
        assert store(engine, keys("again", 20), "mine") == 20


def test_a_pinned_prefix_survives_a_scan_of_three_pools_and_is_released_with_its_pin(larder: Larder) -> None:
    with larder.engine() as engine:
        prefix = keys("system prompt", 8)
        pin = larder.put("pins/prompt", model=MODEL, tenant="chat", keys=[key.hex() for key in prefix])
        assert pin["status"]["applied"] is True
        store(engine, prefix, "chat")
        for part in range(3 * POOL_BLOCKS // 8):
            store(engine, keys(f"scan {part}", 8), "scanner")
        assert cached(engine, prefix) == 8
        shown = until(lambda: (now := larder.get("pins/prompt"))["resident"] == 8 and now, "residency")
        assert (shown["resolved"], shown["guaranteed"], shown["bytes"]) == (8, 8, 8 * BLOCK_BYTES)
        larder.delete("pins/prompt")
        until(lambda: larder.node()["stats"]["pool"]["pinned_bytes"] == 0, "the pin is gone on the node")
        for part in range(POOL_BLOCKS // 8):
            store(engine, keys(f"second scan {part}", 8), "scanner")
        assert cached(engine, prefix) == 0


def test_the_data_plane_is_killed_and_all_clients_continue(larder: Larder) -> None:
    larder.put("quotas/mine", limit_bytes=4 * BLOCK_BYTES)
    with larder.engine() as engine:
        before = keys("before", 8)
        assert store(engine, before, "other") == 8
        killed = larder.node()
        os.kill(killed["pid"], signal.SIGKILL)
        while engine.connected:
            assert cached(engine, before) == 8, "no read fails while the data plane is gone"
            time.sleep(0.01)
        until(lambda: larder.node()["pid"] != killed["pid"] and larder.ready(), "a new data plane is in sync")
        until(lambda: cached(engine, keys("nothing", 1)) == 0 and engine.connected, "the engine re-attached")
        assert store(engine, keys("after", 8), "other") == 8
        assert store(engine, keys("limited", 8), "mine") == 4, "the quota was pushed to the new process"


def test_an_engine_is_killed_in_the_middle_of_a_store_and_its_bytes_come_back(larder: Larder) -> None:
    half = keys("half written", 16)
    child = os.fork()
    if child == 0:  # an engine of its own process, so that the kernel can prove its end
        engine = larder.engine(group="killed")
        reservation = engine.reserve(half, BLOCK_BYTES, tenant="killed")
        for at in reservation.writable[:8]:
            reservation.array(at)[:] = half[at][0]
        time.sleep(600)
        os._exit(1)
    until(lambda: larder.node()["stats"]["pool"]["reserved_bytes"] == 16 * BLOCK_BYTES, "the engine is writing")
    with larder.engine() as reader:
        assert cached(reader, half) == 0
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pool = until(lambda: (now := larder.node()["stats"]["pool"])["used_bytes"] == 0 and now, "the bytes came back")
        assert (pool["reserved_bytes"], pool["quarantined_bytes"]) == (0, 0)
        assert cached(reader, half) == 0, "no half-written block is ever readable"
        assert store(reader, half, "other") == 16

"""Look-ups that wait for tiers: how long, and what is left of their loads when they end first."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.tiering.tier_bench import TierBench, tier, with_tiers
from tests.lmcache.client import CHUNK_BYTES, NOTHING, Client, lookup_key, prompt
from tests.lmcache.gateway import Gateway

CHUNKS = 4


@pytest.fixture
def client(gateway: Gateway) -> Client:
    client = gateway.client()
    client.register()
    return client


def with_spilled(gateway: Gateway, client: Client, load_deadline_s: float = 5.0) -> TierBench:
    """Give the gateway's node a tier that holds all but the first chunk of `prompt(CHUNKS)`, which memory holds."""
    run = with_tiers(gateway.bench, tier(load_deadline_s=load_deadline_s))
    client.store(prompt(CHUNKS))
    client.ask("end_session", "r")
    run.settle()
    node = gateway.bench.node
    blocks = sorted(node.pool.table.blocks.values(), key=lambda block: block.number)
    stored = [block for block in blocks if block.nbytes == CHUNK_BYTES]
    node.room.evict(stored[1:], "room", run.now)
    run.tiering.catalog.directory.publish(
        0, waiting_bytes=0, bytes_per_s=1 << 20, latency_us=0, serves=True, shared=False
    )
    return run


def begin(client: Client, request: str = "r") -> None:
    assert client.ask("lookup", lookup_key(prompt(CHUNKS), request), 1) is NOTHING
    assert client.status(request) is None


@pytest.mark.parametrize(
    "end",
    [
        lambda client: client.ask("end_session", "r"),
        lambda client: client.ask("free_lookup_locks", lookup_key(prompt(CHUNKS)), 1),
        lambda client: client.close(),
    ],
    ids=["ended", "freed", "gone"],
)
def test_a_look_up_that_ends_cancels_its_loads(
    gateway: Gateway, client: Client, end: Callable[[Client], object]
) -> None:
    run = with_spilled(gateway, client)
    begin(client)
    assert len(run.tiering.loads) == 1
    end(client)
    gateway.until(lambda: not len(run.tiering.loads), "nothing waits to be loaded")
    run.begin()
    assert run.loads == []
    assert run.tiering.loads.given_up == 1


def test_a_look_up_waits_as_long_as_the_loads_of_a_tier_may_wait(gateway: Gateway, client: Client) -> None:
    run = with_spilled(gateway, client, load_deadline_s=20.0)
    begin(client)
    gateway.pass_time(19.0)
    assert client.status("r") is None
    gateway.pass_time(2.0)
    assert client.status("r") == 1
    run.begin()
    assert run.loads == []

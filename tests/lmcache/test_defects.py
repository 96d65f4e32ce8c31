"""What went wrong in the server that this gateway stands in for: none of it holds here.

Numbers are those of the list that was made when its defects were reproduced. D3, D4, D7 to D9 are in `test_lookups`,
`test_transfers` and `test_copies`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dataplane.core.stats import node_stats
from dataplane.policies.registry import POLICIES
from dataplane.protocol.control.snapshots import Ack
from dataplane.protocol.states import State
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, wait_for
from tests.lmcache.client import CHUNK_BYTES, NOTHING, Client, key, lookup_key, prompt
from tests.lmcache.gateway import Gateway
from tests.lmcache.planes import check, listed, mapped, store, supervised_gateway, url_of, wait_for_standby

POOL_CHUNKS = (16 << 20) // CHUNK_BYTES
"""Chunks for which the memory of a real data plane has room. A gateway in this process has room for half as many."""


FAILURES: list[tuple[str, list[Any], Any]] = [
    ("prepare_store", [key(prompt(1)), 404], {"context": {}}),
    ("commit_store", [key(prompt(1)), 404, b""], False),
    ("prepare_retrieve", [key(prompt(1)), 404], {"success": False, "data": b"", "context": {}}),
    ("commit_retrieve", [key(prompt(1)), 404], False),
    ("store", [key(prompt(1)), 404, [[1]], b""], [b"", False]),
    ("retrieve", [key(prompt(1)), 404, [[1]], b"", 0], [b"", False]),
    ("lookup", [lookup_key(prompt(1), model_name="nobody"), 1], NOTHING),
    ("query_prefetch_status", ["nobody"], 0),
    ("wait_prefetch_status", ["nobody", 300.0], 0),
    ("register_kv_cache_engine_driven_context", [{"instance_id": 1}], {"shm_name": "", "pool_size": 0}),
    ("unregister_kv_cache_engine_driven_context", [404], NOTHING),
    ("unregister_kv_cache", [404], NOTHING),
    ("ping", ["who"], False),
    ("noop", ["too", "many"], NOTHING),
]


def test_d1_every_failure_is_answered(worker: Client) -> None:
    for operation, arguments, answer in FAILURES:
        assert worker.ask(operation, *arguments) == answer, operation


def test_d2_unwritten_bytes_of_a_worker_that_unregisters_never_become_cache(worker: Client, gateway: Gateway) -> None:
    # Tenant A's bytes, which are then cleared: what lies there is stale.
    for name in range(4):
        assert worker.store(prompt(4, name), f"a{name}", cache_salt="a")
    worker.ask("clear", True)
    gateway.pass_time(1.0)
    assert gateway.bench.pool.used_bytes == 0, "everything is cleared"
    assert worker.prepare_store(prompt(4, 9), "b", cache_salt="b")["slots"]
    worker.ask("unregister_kv_cache_engine_driven_context", 7)
    worker.register(8)
    assert worker.lookup(prompt(4, 9), "b", cache_salt="b") == 0
    assert worker.prepare_retrieve(prompt(4, 9), "b", 8, cache_salt="b")["success"] is False
    states = {block.state for block in gateway.bench.node.pool.table.blocks.values() if block.tenant.salt == "b"}
    assert states <= {State.QUARANTINED}


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(name, marks=() if name in ("lru", "s3fifo") else pytest.mark.full)
        for name in sorted(set(POLICIES) - {"noop"})
    ],
)
def test_d5_every_eviction_policy_keeps_a_full_pool_usable(worker: Client, gateway: Gateway, algorithm: str) -> None:
    assert gateway.bench.apply(make.policy(algorithm=algorithm)) == []
    for name in range(POOL_CHUNKS // 8 + 80):
        assert worker.store(prompt(4, name), f"r{name}") is True
        assert worker.lookup(prompt(4, name), f"r{name}") == 4
        worker.ask("end_session", f"r{name}")
    stats = node_stats(gateway.bench.node, gateway.bench.now)
    assert stats.totals.evicted_blocks > 0
    assert stats.refused == {}


class TestD6QuotasHoldForWhatClientsCache:
    def test_a_tenant_never_has_more_than_its_limit(self, worker: Client, gateway: Gateway) -> None:
        gateway.bench.apply(make.quotas({"small": 8 * CHUNK_BYTES}))
        for name in range(20):
            worker.store(prompt(4, name), f"r{name}", cache_salt="small")
            assert gateway.bench.tenant("small").bytes <= 8 * CHUNK_BYTES
        assert worker.store(prompt(40, 50), "large", cache_salt="other") is True

    def test_its_limit_outlives_the_process(self, socket_dir: Path) -> None:
        with supervised_gateway(socket_dir) as plane, Client(url_of(plane)) as client:
            client.register()
            with plane.manager() as manager:
                assert isinstance(manager.push(make.quotas({"small": 2 * CHUNK_BYTES})), Ack)
            wait_for((socket_dir / "quotas.snapshot").exists, "it is written down")
            wait_for_standby(plane)
            plane.kill_plane()
            assert client.store(prompt(8), cache_salt="small") is False
            (tenant,) = [each for each in plane.describe().tenants if each.tenant == "small"]
            assert tenant.bytes <= 2 * CHUNK_BYTES


def test_d10_cached_blocks_are_listed_by_tenant(plane: Plane) -> None:
    with Client(url_of(plane)) as client:
        client.register()
        client.store(prompt(2), "a", cache_salt="a")
        client.store(prompt(3), "b", cache_salt="b")
        client.lookup(prompt(3), "b", cache_salt="b")
        assert [(each.tenant, each.leases) for each in listed(plane, tenant="a")] == 2 * [("a", 0)]
        assert {(each.model, each.state, each.bytes) for each in listed(plane)} == {("llama", "ready", CHUNK_BYTES)}
        assert [(each.tenant, each.leases) for each in listed(plane, tenant="b")] == 3 * [("b", 1)]
        assert len(listed(plane, gateway="lmcache")) == 5
        assert listed(plane, gateway="") == []


def test_d11_a_burst_of_half_again_the_pool_drops_nothing_silently(plane: Plane) -> None:
    with Client(url_of(plane)) as client, mapped(client.register()) as segment:
        prompts = POOL_CHUNKS * 3 // 2 // 16
        for name in range(prompts):
            assert store(client, segment, prompt(16, name), name, f"r{name}") is True
            # What was reported as stored is there, at once and whole.
            assert check(client, segment, prompt(16, name), name, f"r{name}")
        stats = plane.describe()
        assert stats.totals.stored_blocks == 16 * prompts
        assert stats.refused == {}
        segments = [check(client, segment, prompt(16, name), name, f"again{name}") for name in range(prompts)]
        assert segments.count(True) >= POOL_CHUNKS // 16 - 2
        assert segments == sorted(segments)  # the oldest ones went

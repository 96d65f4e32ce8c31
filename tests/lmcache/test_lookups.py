"""Look-ups: what they promise, and for how long they hold it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from dataplane.core.blocks.leases import LeaseTable
from dataplane.core.blocks.lookup_leases import LookupLease, LookupLeases, SpaceLock
from dataplane.core.inprocess import InProcess
from dataplane.core.operator.listing import list_blocks
from dataplane.gateways.lmcache.handlers.counters import Counters
from dataplane.gateways.lmcache.handlers.sessions import (
    MAX_LOOKUPS_PER_SCHEDULER,
    RESULTS,
    LeasedLookup,
    LookupSessions,
    delete_results,
    load_results,
    save_results,
)
from dataplane.gateways.lmcache.wire.tokens import CHUNK_TOKENS
from dataplane.gateways.lmcache.workers.transfers import LEASE_TTL_S
from dataplane.gateways.lmcache.zmtp import processes
from dataplane.policies.registry import POLICIES
from dataplane.protocol.control.lookups import ListBlocks
from dataplane.protocol.control.records import QuotaSpec
from dataplane.protocol.control.requests import RequestRecord
from dataplane.protocol.events import LeaseBroken
from dataplane.protocol.spaces import LMCACHE
from tests.core.tiering.tier_bench import TierBench, tier, with_tiers
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, wait_for
from tests.lmcache.client import CHUNK_BYTES, NOTHING, Client, key, lookup_key, prompt
from tests.lmcache.gateway import Gateway
from tests.lmcache.planes import Segment, check, gateway_plane, gateway_stats, leased, mapped, store, url_of
from tests.run_marks import short_folder


def test_a_lookup_finds_and_leases_stored_chunks(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(3))
    assert worker.lookup(prompt(4)) == 3
    assert gateway.leased() == 3
    assert [each.leases for each in list_blocks(gateway.bench.node.pool, ListBlocks("n"))[0]] == [1, 1, 1]
    assert worker.ask("end_session", "r") is NOTHING
    assert gateway.leased() == 0
    assert [each.leases for each in list_blocks(gateway.bench.node.pool, ListBlocks("n"))[0]] == [0, 0, 0]


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(name, marks=() if name in ("lru", "s3fifo") else pytest.mark.full)
        for name in sorted(set(POLICIES) - {"noop"})
    ],
)
def test_lookups_that_come_and_go_let_every_algorithm_make_room(
    worker: Client, gateway: Gateway, algorithm: str
) -> None:
    assert gateway.bench.apply(make.policy(algorithm=algorithm)) == []
    for name in range(gateway.bench.pool.capacity_bytes // CHUNK_BYTES // 4 + 80):
        assert worker.store(prompt(4, name), f"r{name}") is True
        assert worker.lookup(prompt(4, name), f"r{name}") == 4
        worker.ask("end_session", f"r{name}")
    stats = gateway.bench.node.stats(gateway.bench.now)
    assert stats.totals.evicted_blocks > 0
    assert stats.refused == {}


def broken(gateway: Gateway) -> list[tuple[str, int]]:
    """Reasons and blocks of leases that their holders had not released."""
    return [(event.reason, event.blocks) for event in gateway.bench.events(LeaseBroken)]


def test_the_result_is_returned_once_and_without_a_wait(worker: Client) -> None:
    worker.store(prompt(1))
    assert worker.lookup(prompt(1)) == 1
    assert worker.status("r") == 0
    assert worker.status("nobody") == 0
    assert worker.ask("lookup", lookup_key(prompt(1)), 1) is NOTHING
    assert worker.ask("wait_prefetch_status", "r", 100.0) == 1
    assert worker.ask("wait_prefetch_status", "r", 100) == 0


def test_a_repeated_lookup_keeps_one_set_of_leases(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(2))
    for _ in range(5):
        assert worker.lookup(prompt(2)) == 2
        assert gateway.leased() == 2
    worker.store(prompt(3))
    assert worker.lookup(prompt(3)) == 3
    assert gateway.leased() == 3
    assert worker.lookup(prompt(1)) == 1
    assert gateway.leased() == 1


@pytest.mark.parametrize(("name", "fields"), [(2, {}), (1, {"model_name": "other"})], ids=["tokens", "model"])
def test_a_request_that_comes_back_with_something_else_lets_the_first_go(
    worker: Client, gateway: Gateway, name: int, fields: dict[str, Any]
) -> None:
    worker.store(prompt(2, 1))
    assert worker.lookup(prompt(2, 1)) == 2
    assert worker.lookup(prompt(2, name), **fields) == 0
    assert gateway.leased() == 0


def test_two_schedulers_with_the_same_request_name_have_a_look_up_each(gateway: Gateway) -> None:
    one, two = gateway.client(), gateway.client()
    one.register()
    one.store(prompt(2, 1))
    assert one.ask("lookup", lookup_key(prompt(2, 1)), 1) is NOTHING
    assert two.ask("lookup", lookup_key(prompt(2, 9)), 1) is NOTHING
    assert (one.status("r"), two.status("r")) == (2, 0)
    two.ask("end_session", "r")
    assert gateway.leased() == 2


def test_a_look_up_does_not_wait_for_the_search_of_its_process(
    worker: Client, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search reads the descriptors of all processes, and the loop serves all engines."""

    def search(fds: object) -> dict[int, processes.Owner]:
        raise AssertionError("searched on the loop")

    worker.store(prompt(1))
    monkeypatch.setattr(processes.PidResolver, "resolve", lambda resolver, name, fd: None)
    monkeypatch.setattr("dataplane.gateways.lmcache.zmtp.connections.owners_of", search)
    assert gateway.client().lookup(prompt(1)) == 1


def test_every_rank_must_have_a_chunk(client: Client, gateway: Gateway) -> None:
    for rank in range(3):
        client.register(rank, world_size=3)
    for rank, chunks, hits in ((0, 4, 0), (1, 2, 0), (2, 3, 2)):
        client.store(prompt(chunks), instance=rank, world_size=3, worker_id=rank)
        assert client.lookup(prompt(4), world_size=3) == hits
        assert gateway.leased() == 3 * hits


def test_hits_are_common_to_two_forms_of_one_model(client: Client, gateway: Gateway) -> None:
    client.register(1)
    client.register(2, dtype_str="float8_e4m3fn")
    client.store(prompt(2), instance=1)
    assert client.lookup(prompt(2)) == 0
    client.store(prompt(1), instance=2)
    assert client.lookup(prompt(2)) == 1
    assert gateway.leased() == 2
    client.ask("unregister_kv_cache_engine_driven_context", 2)
    assert client.lookup(prompt(2)) == 2


def test_a_look_up_finds_whole_chunks_up_to_its_end_of_its_own_salt_and_model(client: Client) -> None:
    assert client.lookup(prompt(3), cache_salt="a") == 0, "no worker has registered"
    client.register()
    client.store(prompt(3), cache_salt="a")
    expected: list[tuple[dict[str, Any], int]] = [
        ({}, 3),
        ({"end": 600}, 2),
        ({"end": 255}, 0),
        ({"end": 10**9}, 3),
        ({"worker_id": 0}, 3),
        ({"cache_salt": "b"}, 0),
        ({"cache_salt": ""}, 0),
        ({"model_name": "other"}, 0),
        ({"world_size": 8}, 0),
        ({"start": -1}, 0),
        ({"end": -1}, 0),
        ({"start": 300, "end": 200}, 0),
        ({"cache_salt": "a/b"}, 0),
    ]
    for fields, hits in expected:
        request = {"cache_salt": "a", **fields}
        assert client.lookup(prompt(3), **request) == hits, fields
        assert client.ask("free_lookup_locks", lookup_key(prompt(3), **request), 1) is NOTHING


class TestTheEndOfLeases:
    def test_freed_chunks_are_released_and_others_stay(self, worker: Client, gateway: Gateway) -> None:
        worker.store(prompt(4))
        worker.lookup(prompt(4))
        assert worker.ask("free_lookup_locks", lookup_key(prompt(4), start=0, end=512), 1) is NOTHING
        assert gateway.leased() == 2
        worker.ask("free_lookup_locks", lookup_key(prompt(4), start=0, end=512), 1)
        assert gateway.leased() == 2
        worker.ask("free_lookup_locks", lookup_key(prompt(4), start=512, end=1024), 1)
        assert gateway.leased() == 0
        assert len(gateway.server.sessions) == 0

    def test_each_rank_that_read_lets_its_chunks_go(self, client: Client, gateway: Gateway) -> None:
        for rank in range(2):
            client.register(rank, world_size=2)
            client.store(prompt(2), instance=rank, world_size=2, worker_id=rank)
        client.lookup(prompt(2), world_size=2)
        assert gateway.leased() == 4
        for rank, left in ((0, 2), (1, 0)):
            fields: dict[str, Any] = {"instance": rank, "world_size": 2, "worker_id": rank}
            assert client.prepare_retrieve(prompt(2), **fields)["success"]
            assert client.commit_retrieve(prompt(2), **fields) is True
            assert gateway.leased() == left

    def test_blocks_that_several_workers_read_stay_until_the_last_of_them(
        self, client: Client, gateway: Gateway
    ) -> None:
        for worker in range(3):
            client.register(worker)
        client.store(prompt(2), instance=0)
        client.lookup(prompt(2), num_kv_readers=3)
        for worker, left in ((0, 2), (1, 2), (2, 0)):
            assert client.prepare_retrieve(prompt(2), instance=worker)["success"]
            assert client.commit_retrieve(prompt(2), instance=worker) is True
            assert gateway.leased() == left

    def test_clients_too_old_to_say_how_many_read_are_served(self, worker: Client, gateway: Gateway) -> None:
        worker.store(prompt(1))
        assert worker.ask("lookup", lookup_key(prompt(1), num_kv_readers=0), 2) is NOTHING
        assert worker.status("r") == 1
        for left in (1, 0):
            worker.prepare_retrieve(prompt(1))
            worker.commit_retrieve(prompt(1))
            assert gateway.leased() == left

    def test_a_retrieve_of_a_part_lets_that_part_go(self, worker: Client, gateway: Gateway) -> None:
        worker.store(prompt(4))
        worker.lookup(prompt(4))
        assert worker.prepare_retrieve(prompt(4), start=256, end=768)["success"]
        assert worker.commit_retrieve(prompt(4), start=256, end=768) is True
        assert gateway.leased() == 2

    def test_the_scheduler_is_gone(self, gateway: Gateway) -> None:
        worker, scheduler = gateway.client(), gateway.client()
        worker.register()
        worker.store(prompt(2))
        scheduler.lookup(prompt(2))
        assert gateway.leased() == 2
        scheduler.close()
        gateway.until(lambda: gateway.leased() == 0, "its leases end with its connection")
        gateway.pass_time(1)
        assert broken(gateway) == [("disconnected", 2)]
        assert len(gateway.server.sessions) == 0

    def test_leases_of_a_lookup_expire(self, worker: Client, gateway: Gateway) -> None:
        worker.store(prompt(2))
        worker.lookup(prompt(2))
        gateway.pass_time(LEASE_TTL_S - 1)
        assert gateway.leased() == 2
        gateway.pass_time(2)
        assert gateway.leased() == 0
        assert broken(gateway) == [("expired", 2)]
        assert worker.status("r") == 0

    def test_leased_blocks_are_not_evicted(self, make_gateway: Callable[..., Gateway]) -> None:
        gateway = make_gateway(capacity_bytes=2 << 20)
        client = gateway.client()
        client.register()
        client.store(prompt(4), "kept")
        assert client.lookup(prompt(4), "kept") == 4
        for at in range(100):
            client.store(prompt(3, 1 + at), f"r{at}")
        assert client.lookup(prompt(4), "other") == 4
        client.ask("end_session", "kept")
        client.ask("end_session", "other")
        for at in range(100):
            client.store(prompt(3, 1 + at), f"r{at}")
        assert client.lookup(prompt(4)) == 0


def lookup_sessions(released: list[int], handed_over: dict[tuple[bytes, str], int]) -> LookupSessions:
    """Sessions over a core that counts nothing and notes what they release."""
    cache = SimpleNamespace(
        lookups=LookupLeases(LeaseTable(lambda: None)),
        release=lambda client, numbers: released.extend(numbers),
        looked_up=lambda *arguments: None,
    )
    return LookupSessions(cast(InProcess, cache), Counters(), lambda: 0.0, handed_over)


def test_results_that_were_not_fetched_are_returned_by_the_next_data_plane(tmp_path: Path) -> None:
    before = lookup_sessions([], {})
    for request in ("fetched", "not fetched", "ended", "asked again"):
        before.begin(LeasedLookup(b"a", request, LookupLease(1), b"", 3, 1e9))
    assert before.take_result(b"a", "fetched") == 3
    save_results(tmp_path, before.not_fetched())
    after = lookup_sessions([], load_results(tmp_path))
    delete_results(tmp_path)
    assert list(tmp_path.iterdir()) == []
    after.end(b"a", "ended")
    after.begin(LeasedLookup(b"a", "asked again", LookupLease(1), b"", 5, 1e9))
    requests = ("fetched", "not fetched", "not fetched", "ended", "asked again")
    assert [after.take_result(b"a", each) for each in requests] == [0, 3, 0, 0, 5]
    assert after.take_result(b"another", "not fetched") == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\x91\x01",
        b"\x91\x93\x01\x02\x03",
        b"\x91\x93\xc4\x01a\xa1\xff\x01",  # not UTF-8
        b"\x91\x93\xc4\x01a\xa1a\xff",  # -1 hits
    ],
)
def test_results_that_cannot_be_read_are_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / RESULTS).write_bytes(data)
    assert load_results(tmp_path) == {}


def test_results_that_were_not_fetched_are_kept_until_a_gateway_listens(gateway: Gateway) -> None:
    save_results(gateway.folder, {(b"a", "not fetched"): 3})
    gateway.stop()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match="already in use"):
            gateway.begin(url)
    gateway.gpu_copies.close()
    gateway.devices.close()
    gateway.loop.close()
    assert load_results(gateway.folder) == {(b"a", "not fetched"): 3}
    gateway.begin("tcp://127.0.0.1:0")
    assert gateway.server.sessions.take_result(b"a", "not fetched") == 3
    assert load_results(gateway.folder) == {}


def test_abandoned_look_ups_are_bounded(gateway: Gateway) -> None:
    released: list[int] = []
    sessions = lookup_sessions(released, {})
    for at in range(5000):
        lease = LookupLease(1, {1: SpaceLock([at], [1])})
        sessions.begin(LeasedLookup(b"a", f"r{at}", lease, b"", 1, 1e9))
    assert len(sessions) == 4096
    assert len(released) == 5000 - 4096
    assert sessions.ended == {"crowded_out": 5000 - 4096}
    for scheduler in range(9):
        for at in range(4096):
            sessions.begin(LeasedLookup(b"s%d" % scheduler, f"r{at}", LookupLease(1), b"", 1, 1e9))
    assert len(sessions) == 32_768
    for name in (b"a", *(b"s%d" % each for each in range(9))):
        sessions.end_scheduler(name)
    assert len(sessions) == 0
    assert len(released) == 5000


def test_schedulers_beyond_the_limit_of_the_core_share_one_client(make_gateway: Callable[..., Gateway]) -> None:
    gateway = make_gateway(max_clients=4)
    clients = [gateway.client() for _ in range(8)]
    peers = gateway.server.connections._by_fd.values()
    gateway.until(lambda: all(peer.resolved_owner for peer in peers), "the process of each peer is known")
    clients[0].register()
    clients[0].store(prompt(1))
    assert [client.lookup(prompt(1), f"r{at}") for at, client in enumerate(clients)] == 8 * [1]
    assert gateway.leased() == 8
    assert len(gateway.bench.node.engines) == 4
    for client in clients[1:]:
        client.close()
    gateway.until(lambda: gateway.leased() == 1, "leases end with the connections that took them")


def retrieve(client: Client, start: int = 0, end: int = 2, **fields: Any) -> None:
    """Read the chunks of `prompt(3)` from number `start` to number `end`."""
    span = {"start": start * CHUNK_TOKENS, "end": end * CHUNK_TOKENS, "cache_salt": "a", **fields}
    assert client.prepare_retrieve(prompt(3), **span)["success"]
    assert client.commit_retrieve(prompt(3), **span) is True


def prepare(client: Client, gateway: Gateway) -> None:
    assert client.prepare_retrieve(prompt(3), end=2 * CHUNK_TOKENS, cache_salt="a")["success"]


def prepare_too_much(client: Client, gateway: Gateway) -> None:
    assert not client.prepare_retrieve(prompt(3), end=3 * CHUNK_TOKENS, cache_salt="a")["success"]


def free(client: Client, start: int = 0, end: int = 2) -> None:
    span: dict[str, Any] = {"start": start * CHUNK_TOKENS, "end": end * CHUNK_TOKENS, "cache_salt": "a"}
    client.ask("free_lookup_locks", lookup_key(prompt(3), **span), 1)


def each(*calls: Callable[[Client, Gateway], object]) -> Callable[[Client, Gateway], None]:
    def do(client: Client, gateway: Gateway) -> None:
        for call in calls:
            call(client, gateway)

    return do


def look_up_again(client: Client, gateway: Gateway) -> None:
    assert client.lookup(prompt(3), cache_salt="a") == 2


def crowd_out(client: Client, gateway: Gateway) -> None:
    for at in range(MAX_LOOKUPS_PER_SCHEDULER):
        lookup = LeasedLookup(next(iter(gateway.server.sessions._of_scheduler)), f"o{at}", LookupLease(1), b"", 0, 1e9)
        gateway.server.sessions.begin(lookup)


def take_back(client: Client, gateway: Gateway) -> None:
    assert gateway.bench.node.pool.lookups.take_back(1, lambda _: True)


def end(client: Client, gateway: Gateway) -> None:
    client.ask("end_session", "r")


@pytest.mark.parametrize(
    ("use", "requested", "hits"),
    [
        pytest.param(lambda client, _: retrieve(client), 3, 2, id="retrieved"),
        pytest.param(each(take_back, lambda client, _: retrieve(client), end), 3, 2, id="taken back and retrieved"),
        pytest.param(each(lambda client, _: retrieve(client, 0, 1), end), 3, 1, id="retrieved in part"),
        pytest.param(
            each(lambda client, _: free(client, 0, 1), lambda client, _: retrieve(client, 1, 2)),
            *(3, 2),
            id="freed in part, and the rest retrieved",
        ),
        pytest.param(
            each(lambda client, _: free(client, 1, 2), lambda client, _: retrieve(client, 0, 1)),
            *(3, 1),
            id="without the end that another server lacks",
        ),
        pytest.param(each(look_up_again, look_up_again, lambda client, _: retrieve(client)), 3, 2, id="repeated"),
        pytest.param(lambda client, _: free(client), 1, 0, id="freed"),
        pytest.param(end, 3, 0, id="ended"),
        pytest.param(each(look_up_again, end), 3, 0, id="repeated and ended"),
        pytest.param(each(prepare, end), 3, 0, id="prepared, not read, and ended"),
        pytest.param(each(prepare_too_much, end), 3, 0, id="not all there, and ended"),
        pytest.param(lambda _, gateway: gateway.pass_time(LEASE_TTL_S + 1), 3, 0, id="expired"),
        pytest.param(crowd_out, 3, 0, id="crowded out"),
        pytest.param(each(take_back, end), 3, 0, id="taken back"),
        pytest.param(lambda client, _: client.close(), 3, 0, id="disconnected"),
    ],
)
def test_only_chunks_that_a_request_uses_count_as_hits(
    worker: Client, gateway: Gateway, use: Callable[[Client, Gateway], None], requested: int, hits: int
) -> None:
    worker.store(prompt(2), cache_salt="a")
    assert worker.lookup(prompt(3), cache_salt="a") == 2
    use(worker, gateway)
    moved, tenant = gateway.server.counters.moved, gateway.bench.tenant
    gateway.until(lambda: moved.requested_chunks, "the look-up is counted")
    gateway.pass_time(0.1)
    assert (moved.requested_chunks, moved.hit_chunks) == (requested, hits)
    assert (tenant("a").requested_blocks, tenant("a").hit_blocks) == (requested, hits)
    assert tenant("a").hit_tokens == hits * CHUNK_TOKENS
    gateway.pass_time(100.0)
    lines, _ = gateway.bench.node.trace(0.0, 0)
    assert sum(msgspec.json.decode(line)["hit_blocks"] for line in lines.splitlines()) == hits


def test_what_several_ranks_read_counts_once(client: Client, gateway: Gateway) -> None:
    for rank in range(2):
        client.register(rank, world_size=2)
        client.store(prompt(2), instance=rank, world_size=2, worker_id=rank, cache_salt="a")
    assert client.lookup(prompt(3), world_size=2, cache_salt="a") == 2
    for rank in range(2):
        retrieve(client, instance=rank, world_size=2, worker_id=rank)
    moved = gateway.server.counters.moved
    assert (moved.requested_chunks, moved.hit_chunks, moved.chunks_out) == (3, 2, 4)


def test_chunks_that_are_freed_become_recent(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(2), cache_salt="a")
    gateway.pass_time(10.0)
    worker.lookup(prompt(3), cache_salt="a")
    free(worker)
    assert {block.used_at for block in gateway.bench.node.pool.table.blocks.values()} == {gateway.bench.now}


def test_engines_of_the_gateway_are_shown(client: Client, gateway: Gateway) -> None:
    client.register(42)
    client.lookup(prompt(1))
    groups = [engine.group for engine in gateway.bench.node.stats(gateway.bench.now).engines]
    assert f"{LMCACHE}:42" in groups
    assert any(group.startswith(f"{LMCACHE}:scheduler:") for group in groups)
    assert InProcess(gateway.bench.node).lost(LMCACHE) == []


FULL = 128
"""Chunks that 2 MiB hold."""


def fill(gateway: Gateway, client: Client, chunks: int = FULL, each: int = 4, **fields: Any) -> list[list[int]]:
    """Prompts of so many chunks in all, each of which was looked up by a request that does not end."""
    prompts = [prompt(each, 1000 + at) for at in range(chunks // each)]
    for at, tokens in enumerate(prompts):
        client.store(tokens, f"s{at}", **fields)
        assert client.lookup(tokens, f"r{at}", **fields) == each
    return prompts


def floors(gateway: Gateway, **floors: int) -> None:
    assert (
        gateway.bench.apply(make.shares(*(QuotaSpec(name, floor_bytes=floor) for name, floor in floors.items()))) == []
    )


class TestShortOfRoom:
    """Look-ups without an end fill the pool."""

    @pytest.fixture
    def gateway(self, make_gateway: Callable[..., Gateway]) -> Gateway:
        return make_gateway(capacity_bytes=2 << 20)

    def test_the_look_ups_that_have_waited_longest_give_way_to_a_store(self, worker: Client, gateway: Gateway) -> None:
        prompts = fill(gateway, worker)
        assert gateway.leased() == FULL
        assert worker.store(prompt(8, 1), "new")
        assert FULL - 32 <= gateway.leased() <= FULL - 8
        assert worker.lookup(prompt(8, 1), "new") == 8
        assert worker.ask("prepare_retrieve", key(prompts[-1], f"r{len(prompts) - 1}"), 7)["success"]
        assert not worker.ask("prepare_retrieve", key(prompts[0], "r0"), 7)["success"]
        assert worker.ask("free_lookup_locks", lookup_key(prompts[0], "r0"), 1) is NOTHING
        assert worker.ask("end_session", "r0") is NOTHING
        assert worker.lookup(prompts[0], "r0") == 0
        gateway.pass_time(1.0)
        taken = [(reason, blocks) for reason, blocks in broken(gateway) if reason == "taken_back"]
        assert 8 <= sum(blocks for _, blocks in taken) <= 32
        assert gateway.server.sessions.ended["taken_back"] >= 1

    def test_each_store_succeeds_however_many_requests_never_end(self, worker: Client, gateway: Gateway) -> None:
        fill(gateway, worker)
        for at in range(FULL // 2):
            assert worker.store(prompt(2, at), f"new{at}")
            assert worker.lookup(prompt(2, at), f"new{at}") == 2
        assert gateway.bench.node.stats(gateway.bench.now).refused == {}

    def test_a_result_that_was_not_fetched_becomes_a_miss(self, worker: Client, gateway: Gateway) -> None:
        worker.store(prompt(4, 1), "s")
        worker.ask("lookup", lookup_key(prompt(4, 1), "slow"), 1)
        fill(gateway, worker, FULL - 4)
        before = len(gateway.server.sessions)
        worker.store(prompt(4, 2), "new")
        assert worker.status("slow") == 0
        assert len(gateway.server.sessions) == before - 1

    def test_a_floor_is_not_blocked_by_the_look_ups_of_others(self, worker: Client, gateway: Gateway) -> None:
        fill(gateway, worker, cache_salt="greedy")
        floors(gateway, modest=FULL * CHUNK_BYTES // 2)
        for at in range(FULL // 8):
            assert worker.store(prompt(4, at), f"new{at}", cache_salt="modest")
        stats = {each.tenant: each for each in gateway.bench.node.stats(gateway.bench.now).tenants}
        assert stats["modest"].bytes == FULL * CHUNK_BYTES // 2
        assert stats["modest"].refused == {}

    def test_look_ups_within_a_floor_keep_what_they_hold(self, worker: Client, gateway: Gateway) -> None:
        prompts = fill(gateway, worker, cache_salt="guarded")
        floors(gateway, guarded=FULL * CHUNK_BYTES)
        assert not worker.store(prompt(4, 1), "new", cache_salt="other")
        assert gateway.leased() == FULL
        assert worker.ask("prepare_retrieve", key(prompts[0], "r0", cache_salt="guarded"), 7)["success"]

    def test_no_look_up_gives_way_when_that_makes_no_room(self, worker: Client, gateway: Gateway) -> None:
        prompts = fill(gateway, worker)
        for at, tokens in enumerate(prompts):
            assert worker.ask("prepare_retrieve", key(tokens, f"r{at}"), 7)["success"]
        assert not worker.store(prompt(4, 1), "new")
        assert gateway.leased() == 2 * FULL
        assert worker.ask("commit_retrieve", key(prompts[5], "r5"), 7) is True
        worker.ask("end_session", "r5")
        assert worker.store(prompt(4, 1), "new")
        assert gateway.leased() == 2 * (FULL - 4)

    def test_blocks_that_a_clear_left_to_look_ups_make_room(self, worker: Client, gateway: Gateway) -> None:
        fill(gateway, worker)
        gateway.bench.node.clear(gateway.bench.now, permanent=True)
        gateway.pass_time(1.0)
        assert gateway.bench.pool.used_bytes == FULL * CHUNK_BYTES
        assert worker.store(prompt(8, 1), "new")

    def test_the_look_ups_of_a_tenant_at_its_limit_make_room(self, worker: Client, gateway: Gateway) -> None:
        fill(gateway, worker, 64, cache_salt="a")
        gateway.bench.apply(make.quotas({"a": 64 * CHUNK_BYTES}))
        assert worker.store(prompt(4, 1), "new", cache_salt="a")
        assert gateway.bench.tenant("a").bytes == 64 * CHUNK_BYTES

    def test_look_ups_that_a_restart_left_make_room(self, worker: Client, gateway: Gateway) -> None:
        fill(gateway, worker)
        gateway.restart()
        again = gateway.client()
        again.register()
        assert again.store(prompt(8, 1), "new")

    def test_bytes_that_look_ups_hold_are_reported_by_tenant(self, worker: Client, gateway: Gateway) -> None:
        for salt, chunks in (("a", 6), ("b", 2)):
            worker.store(prompt(chunks, 3), salt, cache_salt=salt)
            for turn in range(3):
                worker.lookup(prompt(chunks, 3), f"{salt}{turn}", cache_salt=salt)
        assert {each: gateway.bench.tenant(each).lookup_bytes for each in ("a", "b")} == {
            "a": 6 * CHUNK_BYTES,
            "b": 2 * CHUNK_BYTES,
        }


# ---- records of requests


def record(gateway: Gateway) -> RequestRecord:
    (kept,) = gateway.bench.node.requests.find("r")
    return kept


def test_a_request_that_finds_nothing_is_recorded_with_the_reason(worker: Client, gateway: Gateway) -> None:
    assert worker.lookup(prompt(2)) == 0
    kept = record(gateway)
    assert (kept.prompt_tokens, kept.loaded_tokens, kept.missed_tokens, kept.reason) == (
        2 * CHUNK_TOKENS,
        {},
        2 * CHUNK_TOKENS,
        "never_stored",
    )
    tenant = gateway.bench.node.pool.tenants.get("")
    assert tenant.missed_tokens == {"never_stored": 2 * CHUNK_TOKENS}


def test_a_prompt_without_a_whole_chunk_is_recorded_and_counted_once(worker: Client, gateway: Gateway) -> None:
    tokens = prompt(1)[: CHUNK_TOKENS - 1]
    for _ in range(2):
        assert worker.lookup(tokens, end=0, cache_salt="a") == 0
    kept = record(gateway)
    found = (kept.tenant, kept.model, kept.prompt_tokens, kept.missed_tokens, kept.reason)
    assert found == ("a", "llama", len(tokens), len(tokens), "too_short")
    assert gateway.bench.node.pool.tenants.get("a").missed_tokens == {"too_short": len(tokens)}
    assert worker.lookup([], "empty") == worker.lookup(tokens, "r" * 257) == 0
    assert not gateway.bench.node.requests.find("empty")


def test_a_request_that_reads_its_hits_is_recorded_when_it_ends(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(2))
    assert worker.lookup(prompt(3)) == 2
    worker.prepare_retrieve(prompt(2))
    assert worker.commit_retrieve(prompt(2))
    worker.ask("end_session", "r")
    kept = record(gateway)
    assert (kept.loaded_tokens, kept.missed_tokens, kept.reason) == (
        {"host": 2 * CHUNK_TOKENS},
        CHUNK_TOKENS,
        "never_stored",
    )


def test_a_request_that_reads_no_hits_is_not_recorded(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(2))
    assert worker.lookup(prompt(3)) == 2
    worker.ask("end_session", "r")
    assert not gateway.bench.node.requests.find("r")


def test_an_invalidated_chunk_is_the_reason(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(2))
    worker.ask("clear", True)
    assert worker.lookup(prompt(2)) == 0
    assert record(gateway).reason == "invalidated"


def test_chunks_before_the_first_one_that_workers_read_are_those_of_the_engine(
    worker: Client, gateway: Gateway
) -> None:
    worker.store(prompt(4))
    assert worker.lookup(prompt(4)) == 4
    worker.ask("free_lookup_locks", lookup_key(prompt(4), end=3 * CHUNK_TOKENS), 1)
    worker.prepare_retrieve(prompt(4), start=3 * CHUNK_TOKENS)
    assert worker.commit_retrieve(prompt(4), start=3 * CHUNK_TOKENS)
    kept = record(gateway)
    assert (kept.engine_tokens, kept.loaded_tokens, kept.missed_tokens) == (3 * CHUNK_TOKENS, {"host": CHUNK_TOKENS}, 0)


def test_chunks_that_workers_read_in_parts_are_all_loaded(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(4))
    assert worker.lookup(prompt(4)) == 4
    for start in (2, 1):
        part: dict[str, Any] = {"start": start * CHUNK_TOKENS, "end": (start + 1) * CHUNK_TOKENS}
        worker.prepare_retrieve(prompt(4), **part)
        assert worker.commit_retrieve(prompt(4), **part)
    worker.ask("end_session", "r")
    kept = record(gateway)
    assert (kept.engine_tokens, kept.loaded_tokens) == (CHUNK_TOKENS, {"host": 2 * CHUNK_TOKENS})


def test_a_prompt_has_no_more_tokens_than_its_look_up_sent(worker: Client, gateway: Gateway) -> None:
    tokens = prompt(2)
    assert worker.lookup(tokens, end=(1 << 64) - 1) == 0
    assert record(gateway).prompt_tokens == len(tokens)


# ---- waits for tiers


CHUNKS = 4


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
    gateway: Gateway, worker: Client, end: Callable[[Client], object]
) -> None:
    run = with_spilled(gateway, worker)
    begin(worker)
    assert len(run.tiering.loads) == 1
    end(worker)
    gateway.until(lambda: not len(run.tiering.loads), "nothing waits to be loaded")
    run.begin()
    assert run.loads == []


def test_a_look_up_waits_as_long_as_the_loads_of_a_tier_may_wait(gateway: Gateway, worker: Client) -> None:
    run = with_spilled(gateway, worker, load_deadline_s=20.0)
    begin(worker)
    gateway.pass_time(19.0)
    assert worker.status("r") is None
    gateway.pass_time(2.0)
    assert worker.status("r") == 1
    run.begin()
    assert run.loads == []


# ---- tiers


_names = count(1)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A data plane whose memory holds 256 chunks, and whose tier holds more."""
    tier: Path = tmp_path_factory.mktemp("tier")
    settings = {"dataplane__disk_tier_directories": str(tier), "dataplane__disk_tier_bytes": "256MiB"}
    with short_folder() as folder, gateway_plane(folder, pool_bytes="4MiB", **settings) as running:
        yield running


@pytest.fixture
def disk_client(plane: Plane) -> Iterator[Client]:
    with Client(url_of(plane)) as client:
        yield client


@pytest.fixture
def segment(disk_client: Client) -> Iterator[Segment]:
    with mapped(disk_client.register()) as segment:
        yield segment


def begin_prompt(client: Client, tokens: list[int], request: str, **fields: Any) -> None:
    assert client.ask("lookup", lookup_key(tokens, request, **fields), 1) is NOTHING


def result(client: Client, request: str) -> int:
    """Return the result of a look-up, which is null while it is pending."""
    found: list[int | None] = [None]

    def known() -> bool:
        found[0] = client.ask("query_prefetch_status", request)
        return found[0] is not None

    wait_for(known, "the look-up ends")
    assert found[0] is not None
    return found[0]


def spilled(plane: Plane, client: Client, segment: Segment) -> tuple[list[int], int]:
    """Store a prompt, and others until memory holds no chunk of it any more. Return its tokens and its name."""
    first = next(_names)
    before = plane.describe()
    assert store(client, segment, prompt(CHUNKS, first), first, f"first-{first}")
    plane.wait_stats(lambda stats: not stats.tiers[0].waiting_blocks | stats.tiers[0].spilling_bytes, "it is on disk")
    for _ in range(4 << 20 >> 16):  # as much as memory holds
        name = next(_names)
        assert store(client, segment, prompt(CHUNKS, name), name, f"filler-{name}")
        client.ask("end_session", f"filler-{name}")
    after = plane.describe()
    assert after.totals.evicted_blocks >= before.totals.evicted_blocks + CHUNKS
    assert after.tiers[0].blocks >= before.tiers[0].blocks + CHUNKS
    assert after.tiers[0].refused == {}
    return prompt(CHUNKS, first), first


def test_chunks_on_disk_are_hits_and_have_their_bytes(plane: Plane, disk_client: Client, segment: Segment) -> None:
    tokens, name = spilled(plane, disk_client, segment)
    before, loaded = gateway_stats(plane), plane.describe().tiers[0].loaded_blocks
    begin_prompt(disk_client, tokens, "r")
    assert result(disk_client, "r") == CHUNKS
    assert check(disk_client, segment, tokens, name, "r")
    disk_client.ask("end_session", "r")
    after = gateway_stats(plane)
    assert plane.describe().tiers[0].loaded_blocks == loaded + CHUNKS
    assert after.hit_chunks - before.hit_chunks == CHUNKS
    assert after.tier_hit_chunks - before.tier_hit_chunks == CHUNKS


def test_a_client_may_wait_for_the_result(plane: Plane, disk_client: Client, segment: Segment) -> None:
    tokens, name = spilled(plane, disk_client, segment)
    begin_prompt(disk_client, tokens, "r")
    assert disk_client.ask("wait_prefetch_status", "r", 60.0) == CHUNKS
    assert disk_client.ask("wait_prefetch_status", "r", 60.0) == 0, "a result is fetched once"
    assert check(disk_client, segment, tokens, name, "r")
    disk_client.ask("end_session", "r")


def test_concurrent_look_ups_of_one_prompt_load_it_once(plane: Plane, disk_client: Client, segment: Segment) -> None:
    tokens, _ = spilled(plane, disk_client, segment)
    loaded = plane.describe().tiers[0].loaded_blocks
    begin_prompt(disk_client, tokens, "a")
    begin_prompt(disk_client, tokens, "b")
    assert [result(disk_client, "a"), result(disk_client, "b")] == [CHUNKS, CHUNKS]
    disk_client.ask("end_session", "a")
    disk_client.ask("end_session", "b")
    stats = plane.describe()
    assert stats.tiers[0].loaded_blocks == loaded + CHUNKS, "one load for each key"
    assert leased(stats) == 0


def test_a_client_that_leaves_while_its_look_up_waits_keeps_nothing(
    plane: Plane, disk_client: Client, segment: Segment
) -> None:
    tokens, _ = spilled(plane, disk_client, segment)
    with Client(url_of(plane)) as other:
        begin_prompt(other, tokens, "r")
    plane.wait_stats(lambda stats: leased(stats) == 0, "no lease is left")
    begin_prompt(disk_client, tokens, "again")
    assert result(disk_client, "again") == CHUNKS
    disk_client.ask("end_session", "again")


def test_chunks_that_no_tier_holds_are_a_miss_at_once(disk_client: Client, segment: Segment) -> None:
    begin_prompt(disk_client, prompt(CHUNKS, next(_names)), "r")
    assert disk_client.status("r") == 0

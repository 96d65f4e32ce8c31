"""Storing and retrieving by workers that copy by themselves: what is granted, published, held and refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dataplane.gateways.lmcache.wire.messages import Key, session_of
from dataplane.gateways.lmcache.workers.transfers import LEASE_TTL_S
from dataplane.protocol.control.sessions import ListSessions
from dataplane.protocol.events import BlocksStored
from tests.dataplane import factories as make
from tests.lmcache.client import CHUNK_BYTES, Client, key, packed, prompt
from tests.lmcache.gateway import Gateway

REFUSED: dict[str, object] = {}
"""A context without slots: to the client, no room."""
MISSED = {"success": False, "data": b"", "context": {}}


def failures(gateway: Gateway, operation: str) -> dict[str, int]:
    return dict(gateway.server.counters.of(operation).failures)


def test_bytes_come_back_as_they_were_written(worker: Client, gateway: Gateway) -> None:
    memory = gateway.pool.view()
    written = {}
    for chunk, slot in enumerate(worker.prepare_store(prompt(3))["slots"]):
        written[chunk] = bytes([chunk + 1]) * slot["length"]
        memory[slot["offset"] : slot["offset"] + slot["length"]] = written[chunk]
    assert worker.commit_store(prompt(3)) is True
    answer = worker.prepare_retrieve(prompt(3), "other")
    assert answer["success"] is True
    assert answer["data"] == b""
    for chunk, slot in enumerate(answer["context"]["slots"]):
        assert bytes(memory[slot["offset"] : slot["offset"] + slot["length"]]) == written[chunk]
    assert worker.commit_retrieve(prompt(3), "other") is True
    assert gateway.leased() == 0


def test_nothing_is_readable_before_its_commit(worker: Client) -> None:
    worker.prepare_store(prompt(2))
    assert worker.lookup(prompt(2)) == 0
    assert worker.prepare_retrieve(prompt(2)) == MISSED
    worker.commit_store(prompt(2))
    assert worker.lookup(prompt(2)) == 2


def test_only_missing_chunks_have_slots(worker: Client) -> None:
    worker.store(prompt(2))
    answer = worker.prepare_store(prompt(4))
    assert answer["chunk_indices"] == [2, 3]
    assert len(answer["slots"]) == 2
    assert worker.commit_store(prompt(4)) is True
    assert worker.prepare_store(prompt(4)) == {"slots": [], "chunk_indices": []}


def test_a_part_of_a_request_is_stored_behind_the_part_before(worker: Client) -> None:
    worker.store(prompt(4), start=0, end=512)
    answer = worker.prepare_store(prompt(4), start=512, end=1024)
    assert answer["chunk_indices"] == [0, 1]
    assert worker.commit_store(prompt(4), start=512, end=1024) is True
    assert worker.lookup(prompt(4)) == 4


def test_a_request_shorter_than_a_chunk_has_nothing_to_store(worker: Client) -> None:
    assert worker.prepare_store(prompt(1)[:200]) == {"slots": [], "chunk_indices": []}
    assert worker.prepare_store(prompt(2), start=256, end=256) == {"slots": [], "chunk_indices": []}


def test_a_repeated_request_has_one_reservation(worker: Client, gateway: Gateway) -> None:
    first = worker.prepare_store(prompt(2))
    assert worker.prepare_store(prompt(2)) == first
    assert gateway.bench.pool.reserved_bytes == 2 * CHUNK_BYTES
    assert worker.commit_store(prompt(2)) is True
    assert worker.commit_store(prompt(2)) is False
    assert worker.lookup(prompt(2)) == 2


def test_chunks_that_another_worker_writes_have_no_slot(client: Client) -> None:
    client.register(1)
    client.register(2)
    client.prepare_store(prompt(2), instance=1)
    assert client.prepare_store(prompt(3), instance=2)["chunk_indices"] == [2]
    assert client.commit_store(prompt(3), instance=2) is True
    assert client.commit_store(prompt(2), instance=1) is True
    assert client.lookup(prompt(3)) == 3


def test_a_full_pool_is_reported(make_gateway: Callable[..., Gateway]) -> None:
    gateway = make_gateway(capacity_bytes=2 << 20)
    client = gateway.client()
    client.register()
    hits = 0
    for at in range(40):  # 160 chunks, of which 128 fit
        client.store(prompt(4, at), f"r{at}")
        hits += client.lookup(prompt(4, at), f"r{at}")
        client.prepare_retrieve(prompt(4, at), f"r{at}")  # leases of reads are not taken back
    assert hits == 128
    assert client.prepare_store(prompt(4, 99), "late") == REFUSED
    assert client.commit_store(prompt(4, 99), "late") is False
    assert failures(gateway, "prepare_store")["refused"] > 0
    assert gateway.bench.node.stats(gateway.bench.now).refused.keys() == {"pool_full"}
    client.commit_retrieve(prompt(4, 0), "r0")
    client.ask("end_session", "r0")
    assert len(client.prepare_store(prompt(4, 99), "late")["slots"]) == 4


def test_a_store_with_room_for_a_part_publishes_and_reports_it(make_gateway: Callable[..., Gateway]) -> None:
    gateway = make_gateway(capacity_bytes=2 << 20)
    client = gateway.client()
    client.register()
    for at in range(31):
        client.store(prompt(4, at), f"r{at}")
        assert client.lookup(prompt(4, at), f"r{at}") == 4
        client.prepare_retrieve(prompt(4, at), f"r{at}")
    answer = client.prepare_store(prompt(8, 99))
    assert answer["chunk_indices"] == [0, 1, 2, 3]
    assert client.commit_store(prompt(8, 99)) is False
    assert client.lookup(prompt(8, 99)) == 4


def test_a_tenant_over_its_limit_is_refused(client: Client, gateway: Gateway) -> None:
    gateway.bench.apply(make.quotas({"a": 2 * CHUNK_BYTES}))
    client.register()
    client.store(prompt(2), "one", cache_salt="a")
    client.lookup(prompt(2), "one", cache_salt="a")
    client.prepare_retrieve(prompt(2), "one", cache_salt="a")
    assert client.prepare_store(prompt(2, 5), "two", cache_salt="a") == REFUSED
    assert client.store(prompt(2, 5), "three", cache_salt="b") is True


def test_a_draining_node_stores_nothing_and_serves_its_blocks(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(2))
    gateway.bench.node.drain(on=True)
    assert worker.prepare_store(prompt(3)) == REFUSED
    assert worker.lookup(prompt(3)) == 2
    assert worker.prepare_retrieve(prompt(2))["success"] is True
    assert worker.register(8) == {"shm_name": "", "pool_size": 0}


def test_bytes_that_come_in_the_message_are_refused_unread(worker: Client, gateway: Gateway) -> None:
    worker.prepare_store(prompt(1))
    # What would run `os.abort()` when it is unpickled.
    assert worker.commit_store(prompt(1), data=b"cos\nabort\n(tR.") is False
    assert failures(gateway, "commit_store") == {"pickled": 1}
    assert worker.lookup(prompt(1)) == 0
    assert gateway.bench.pool.used_bytes == 0
    assert worker.store(prompt(3)) is True
    assert worker.lookup(prompt(3)) == 3


def test_a_store_past_its_deadline_is_never_published(worker: Client, gateway: Gateway) -> None:
    worker.prepare_store(prompt(2))
    gateway.pass_time(31)
    assert gateway.bench.pool.quarantined_bytes == 2 * CHUNK_BYTES
    assert worker.commit_store(prompt(2)) is False
    assert gateway.bench.pool.quarantined_bytes == 0
    assert worker.lookup(prompt(2)) == 0
    assert worker.store(prompt(2)) is True


def test_a_worker_that_begins_again_gets_new_room(worker: Client, gateway: Gateway) -> None:
    worker.prepare_store(prompt(2))
    gateway.pass_time(31)
    assert len(worker.prepare_store(prompt(2))["slots"]) == 2
    assert gateway.bench.pool.quarantined_bytes == 0
    assert worker.commit_store(prompt(2)) is True


def test_a_retrieve_holds_its_blocks_until_its_commit(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(2))
    first = worker.prepare_retrieve(prompt(2))
    assert gateway.leased() == 2
    assert worker.prepare_retrieve(prompt(2)) == first
    assert gateway.leased() == 2
    assert worker.commit_retrieve(prompt(2)) is True
    assert worker.commit_retrieve(prompt(2)) is False
    assert gateway.leased() == 0


def test_a_retrieve_that_is_never_committed_ends_after_a_time(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(2))
    worker.prepare_retrieve(prompt(2))
    gateway.pass_time(LEASE_TTL_S + 1)
    assert gateway.leased() == 0


def test_a_retrieve_of_more_than_there_is_holds_nothing(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(2))
    assert worker.prepare_retrieve(prompt(3)) == MISSED
    assert worker.prepare_retrieve(prompt(1)[:100]) == MISSED
    assert gateway.leased() == 0
    assert failures(gateway, "prepare_retrieve") == {"not_cached": 1, "bad_arguments": 1}


def test_stores_and_reads_are_reported(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(2), cache_salt="a")
    (stored,) = gateway.bench.events(BlocksStored)
    assert (stored.tenant, stored.blocks, stored.bytes) == ("a", 2, 2 * CHUNK_BYTES)
    worker.prepare_retrieve(prompt(2), cache_salt="a")
    worker.commit_retrieve(prompt(2), cache_salt="a")
    gateway.pass_time(0.1)
    assert gateway.bench.node.stats(gateway.bench.now).totals.read_bytes == 2 * CHUNK_BYTES


@pytest.mark.parametrize(
    "fields",
    [
        {"worker_id": None},
        {"worker_id": 1},
        {"worker_id": -1},
        {"model_name": "other"},
        {"world_size": 2},
        {"start": 100},
        {"start": -256},
        {"end": 10_000},
        {"start": 512, "end": 256},
        {"cache_salt": "a/b"},
        {"request_id": "x" * 600},
        {"token_ids": [-1] * 512},
        {"token_ids": "tokens"},
        {"token_ids": None},
        {"end": "512"},
        {"request_id": 5},
    ],
    ids=str,
)
def test_a_wrong_key_is_refused_everywhere(worker: Client, gateway: Gateway, fields: dict[str, Any]) -> None:
    assert worker.prepare_store(prompt(2), **fields) == REFUSED
    assert worker.commit_store(prompt(2), **fields) is False
    assert worker.prepare_retrieve(prompt(2), **fields) == MISSED
    assert worker.commit_retrieve(prompt(2), **fields) is False
    assert failures(gateway, "prepare_store") == {"bad_arguments": 1}
    assert gateway.bench.pool.used_bytes == 0


def test_an_unregistered_worker_is_refused(client: Client, gateway: Gateway) -> None:
    client.register(7)
    for instance in (8, -7, 2**63, 2**64 - 1, 0):
        assert client.prepare_store(prompt(1), instance=instance) == REFUSED
        assert client.commit_store(prompt(1), instance=instance) is False
        assert client.prepare_retrieve(prompt(1), instance=instance) == MISSED
        assert client.commit_retrieve(prompt(1), instance=instance) is False
    assert failures(gateway, "prepare_store") == {"unknown_instance": 5}


class TestClear:
    def test_clear_removes_everything_that_is_not_leased(self, worker: Client, gateway: Gateway) -> None:
        worker.store(prompt(2, 1), "one")
        worker.store(prompt(2, 2), "two")
        worker.lookup(prompt(2, 1), "one")
        worker.ask("clear", False)
        gateway.pass_time(1)
        assert worker.lookup(prompt(2, 2), "two") == 0
        assert worker.lookup(prompt(2, 1), "one") == 2

    def test_clear_by_force_takes_that_too(self, worker: Client, gateway: Gateway) -> None:
        worker.store(prompt(2))
        worker.lookup(prompt(2))
        worker.ask("clear", True)
        assert worker.lookup(prompt(2)) == 0

    def test_an_operator_may_forbid_it(self, make_gateway: Callable[..., Gateway]) -> None:
        gateway = make_gateway(allow_clear=False)
        client = gateway.client()
        client.register()
        client.store(prompt(2))
        client.ask("clear", True)
        assert client.lookup(prompt(2)) == 2
        assert failures(gateway, "clear") == {"not_allowed": 1}


@pytest.mark.parametrize("hidden", [8, 128, 1000, 1024])
def test_the_memory_that_a_store_begins_to_use_is_known_before_it(
    make_gateway: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch, hidden: int
) -> None:
    """Until the pool is full. Chunks of 16 KiB to 2 MiB: many in a slab, and few in a segment."""
    gateway = make_gateway(capacity_bytes=64 << 20)
    requests: list[int] = []

    def lacking(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        requests.extend(base for base, _ in ranges)
        return []

    monkeypatch.setattr(gateway.pool, "lacking", lacking)
    client = gateway.client()
    client.register(hidden_dim_size=hidden)
    client.register(8, hidden_dim_size=hidden, model_name="another")
    bases = gateway.bench.memory.bases
    for turn in range(40):
        for model, instance in (("llama", 7), ("another", 8)):
            before, seen = set(bases.values()), len(requests)
            tokens = prompt(1 + turn % 5, turn * 10 + instance)
            assert client.store(tokens, f"r{turn}", instance, model_name=model)
            if gateway.bench.node.stats(gateway.bench.now).totals.evicted_blocks:
                assert hidden >= 1000
                break
            assert set(requests[seen:]) == set(bases.values()) - before
            assert client.store(tokens, f"again{turn}", instance, model_name=model)
            assert set(requests[seen:]) == set(bases.values()) - before, "for what is there already, none"
    assert requests


def test_a_request_names_its_session(worker: Client, gateway: Gateway) -> None:
    configs: dict[str, object] = {"lmcache.tag.user": "u", "lmcache.larder.session": "talk", "lmcache.x": {"y": [1]}}
    assert worker.store(prompt(3), request_configs=configs)
    assert worker.store(prompt(5), start=768, end=1280, request_configs=configs)
    (state,) = gateway.bench.node.list_sessions(ListSessions("n"), gateway.bench.now).sessions
    assert (state.session, state.chunks, state.private_bytes) == ("talk", 5, 5 * CHUNK_BYTES)


@pytest.mark.parametrize("name", ["a b", "", 7, None, ["talk"], "x" * (1 << 20)])
def test_a_wrong_name_of_a_session_is_ignored(worker: Client, gateway: Gateway, name: object) -> None:
    assert worker.store(prompt(2), request_configs={"lmcache.larder.session": name})
    assert worker.store(prompt(3), request_configs="lmcache.larder.session")
    assert worker.lookup(prompt(3)) == 3
    assert len(gateway.bench.node.pool.sessions) == 0


@pytest.mark.parametrize(
    "configs", [b"\xa1\xff", b"\x81\xb6lmcache.larder.session\xa2\xff\xfe", b"\x81\xa1\xff\xb6lmcache.larder.session"]
)
def test_options_that_are_not_utf_8_name_no_session(configs: bytes) -> None:
    raw = msgspec.msgpack.decode(packed({**key(prompt(1)), "request_configs": None}), type=Key)
    assert session_of(msgspec.structs.replace(raw, request_configs=msgspec.Raw(configs))) == ""

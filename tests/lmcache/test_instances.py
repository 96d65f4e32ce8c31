"""Registered workers: who they are, and what becomes of those that are silent, lost, gone, or of before a restart."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataplane.gateways.lmcache.workers.instances import LOST_TTL_S
from dataplane.gateways.lmcache.workers.registry import Registry
from dataplane.gateways.lmcache.workers.transfers import LEASE_TTL_S
from dataplane.gateways.lmcache.zmtp import processes
from tests.ipc.descriptors import free_descriptors
from tests.lmcache.client import CHUNK_BYTES, NOTHING, Client, prompt
from tests.lmcache.gateway import SHM_NAME, Gateway

NO_POOL = {"shm_name": "", "pool_size": 0}


def registration_files(gateway: Gateway) -> list[Path]:
    return sorted(gateway.folder.glob("*.registration"))


def groups(gateway: Gateway) -> list[str]:
    return [engine.group for engine in gateway.bench.node.engines.values() if engine.group != "lmcache:schedulers"]


def test_a_worker_that_registers_again_is_the_same(worker: Client, gateway: Gateway) -> None:
    worker.prepare_store(prompt(1))
    assert worker.register()["shm_name"] == SHM_NAME
    assert groups(gateway) == ["lmcache:7"]
    assert worker.commit_store(prompt(1)) is True


def test_a_worker_that_registers_as_something_else_is_another(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(1))
    worker.register(num_layers=4)
    assert worker.prepare_retrieve(prompt(1))["success"] is False
    assert worker.prepare_store(prompt(1))["slots"][0]["shape"] == [2, 4, 256, 8]
    assert groups(gateway) == ["lmcache:7"]


@pytest.mark.parametrize(
    "fields",
    [
        {"instance_id": -1},
        {"instance_id": -(2**63)},
        {"world_size": 0},
        {"world_size": 100_000},
        {"world_size": -1},
        {"num_layers": 0},
        {"num_layers": 2**40},
        {"hidden_dim_size": -5},
        {"num_physical_slots": 0},
        {"num_physical_slots": 2**24, "num_layers": 2**24, "hidden_dim_size": 2**24},
        {"block_size": 0},
        {"dtype_str": "Tensor"},
        {"dtype_str": "float9"},
        {"dtype_str": ""},
        {"model_name": ""},
        {"model_name": "x" * 300},
        {"model_name": "a\nb"},
        {"num_layers": "2"},
        {"use_mla": None},
    ],
    ids=str,
)
def test_a_wrong_registration_gets_no_segment(client: Client, gateway: Gateway, fields: dict[str, Any]) -> None:
    assert client.register(**fields) == NO_POOL
    assert client.ask("noop") == "OK"
    assert registration_files(gateway) == []
    assert groups(gateway) == []


@pytest.mark.parametrize("instance", [0, 1, 2**31, 2**63, 2**64 - 1])
def test_any_other_number_is_served(client: Client, instance: int) -> None:
    assert client.register(instance)["shm_name"] == SHM_NAME
    assert client.store(prompt(1), instance=instance) is True


def test_a_worker_that_unregisters_leaves_nothing(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(1))
    assert len(registration_files(gateway)) == 1
    assert worker.ask("unregister_kv_cache_engine_driven_context", 7) is NOTHING
    assert (registration_files(gateway), groups(gateway)) == ([], [])
    assert worker.ask("unregister_kv_cache_engine_driven_context", 7) is NOTHING
    assert worker.prepare_store(prompt(2)) == {}
    worker.register()
    assert worker.lookup(prompt(1)) == 1


def test_writes_of_an_unregistered_worker_are_never_published(client: Client, gateway: Gateway) -> None:
    client.register(1)
    client.register(2)
    client.prepare_store(prompt(2), instance=1)
    client.ask("unregister_kv_cache_engine_driven_context", 1)
    assert client.lookup(prompt(2)) == 0
    assert gateway.bench.pool.quarantined_bytes == 2 * CHUNK_BYTES
    assert client.store(prompt(2), instance=2) is True
    assert gateway.bench.pool.quarantined_bytes == 2 * CHUNK_BYTES
    gateway.pass_time(LOST_TTL_S + 1)
    assert gateway.bench.pool.quarantined_bytes == 0
    assert client.lookup(prompt(2)) == 2


def test_bytes_of_a_lost_worker_wait_for_the_end_of_its_process(
    gateway: Gateway, owner: dict[str, processes.Owner]
) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    owner["owner"] = child, 0
    client = gateway.client()
    client.register()
    client.prepare_store(prompt(2))
    client.close()
    gateway.until(lambda: gateway.bench.pool.quarantined_bytes == 2 * CHUNK_BYTES, "it is lost")
    gateway.pass_time(10 * LOST_TTL_S)
    assert gateway.bench.pool.quarantined_bytes == 2 * CHUNK_BYTES
    assert len(registration_files(gateway)) == 1
    os.close(writing)
    os.waitpid(child, 0)
    gateway.until(lambda: gateway.bench.pool.quarantined_bytes == 0, "its process is gone")
    assert (registration_files(gateway), groups(gateway)) == ([], [])


def test_two_processes_may_give_the_same_number(gateway: Gateway, owner: dict[str, processes.Owner]) -> None:
    owner["owner"] = os.getpid(), 0
    one = gateway.client()
    one.register(1000)
    owner["owner"] = 1, 0
    two = gateway.client()
    two.register(1000, num_layers=4)
    assert groups(gateway) == ["lmcache:1000", "lmcache:1000"]
    assert one.prepare_store(prompt(1), instance=1000)["slots"][0]["shape"] == [2, 2, 256, 8]
    assert two.prepare_store(prompt(1), instance=1000)["slots"][0]["shape"] == [2, 4, 256, 8]
    two.ask("unregister_kv_cache_engine_driven_context", 1000)
    assert one.commit_store(prompt(1), instance=1000) is True


def test_a_worker_with_a_closed_connection_continues_on_another(gateway: Gateway) -> None:
    one = gateway.client()
    one.register()
    one.store(prompt(1))
    one.close()
    gateway.until(lambda: not gateway.bench.node.engines[2].connected, "its connection is gone")
    two = gateway.client()
    assert two.ask("ping", 7) is True
    assert gateway.bench.node.engines[2].connected
    assert two.prepare_retrieve(prompt(1))["success"] is True


class TestSilence:
    def test_a_worker_with_pings_is_lost_after_two_minutes_and_returns_with_any_request(
        self, worker: Client, gateway: Gateway
    ) -> None:
        worker.ask("ping", 7)
        worker.prepare_store(prompt(2))
        gateway.pass_time(119)
        assert gateway.bench.node.engines[2].connected
        gateway.pass_time(2)
        assert not gateway.bench.node.engines[2].connected
        assert worker.lookup(prompt(2)) == 0
        assert worker.commit_store(prompt(2)) is False
        assert gateway.bench.node.engines[2].connected
        assert worker.store(prompt(2)) is True

    def test_a_worker_without_pings_is_lost_after_an_hour(self, worker: Client, gateway: Gateway) -> None:
        gateway.pass_time(3599)
        assert gateway.bench.node.engines[2].connected
        gateway.pass_time(2)
        assert not gateway.bench.node.engines[2].connected

    def test_requests_count_as_pings(self, worker: Client, gateway: Gateway) -> None:
        worker.ask("ping", 7)
        for at in range(10):
            gateway.pass_time(100)
            assert worker.store(prompt(1, at)) is True
        assert gateway.bench.node.engines[2].connected

    def test_a_lost_worker_does_not_reduce_hits_of_others(self, gateway: Gateway) -> None:
        one, two = gateway.client(), gateway.client()
        one.register(1)
        one.ask("ping", 1)
        two.register(2, num_layers=4)
        two.store(prompt(2), instance=2, end=512)
        assert two.lookup(prompt(2)) == 0
        gateway.pass_time(121)
        assert two.lookup(prompt(2)) == 2
        one.ask("ping", 1)
        assert two.lookup(prompt(2)) == 0

    def test_an_unregistered_worker_is_invited_to_register_once(self, client: Client) -> None:
        # Its client takes that for a server that is not well, and registers when it is well again.
        for instance in (0, -1, 2**64 - 1, 12_345):
            assert [client.ask("ping", instance) for _ in range(3)] == [False, True, True]
        assert client.ask("ping", None) is True
        assert client.call(22) == [b"\xc3"]
        client.register(12_346)
        assert client.ask("ping", 12_346) is True


class TestRestart:
    def test_workers_are_known_to_the_next_data_plane(self, worker: Client, gateway: Gateway) -> None:
        worker.store(prompt(2))
        gateway.restart()
        assert groups(gateway) == ["lmcache:7"]
        assert worker.prepare_retrieve(prompt(2))["success"] is True
        assert worker.lookup(prompt(2)) == 2
        assert worker.store(prompt(3)) is True
        assert gateway.bench.node.engines[2].connected

    def test_workers_that_map_the_memory_of_before_a_cold_start_are_made_to_register_again(
        self, worker: Client, gateway: Gateway
    ) -> None:
        worker.store(prompt(2))
        gateway.pool.identity = 2
        gateway.restart()
        assert registration_files(gateway) == []
        assert worker.prepare_store(prompt(1)) == {}
        assert worker.prepare_retrieve(prompt(2))["success"] is False
        assert [worker.ask("ping", 7) for _ in range(3)] == [False, True, True]
        worker.register()
        assert worker.ask("ping", 7) is True
        assert worker.store(prompt(3)) is True
        gateway.restart()
        assert worker.prepare_retrieve(prompt(3))["success"] is True

    def test_requests_that_waited_are_answered(self, worker: Client, gateway: Gateway) -> None:
        worker.store(prompt(2))
        url = gateway.stop()
        worker.send([b"\x01", b"\x16", b"\x07"])
        gateway.begin(url)
        assert worker.receive() == [b"\x01", b"\x16", b"\xc3"]

    def test_reserved_bytes_stay_quarantined_until_the_worker_reports_its_end(
        self, worker: Client, gateway: Gateway
    ) -> None:
        worker.prepare_store(prompt(2))
        for engine in list(gateway.bench.node.engines.values()):
            gateway.bench.node.detach(engine.client, "killed", gateway.bench.now)
        gateway.restart()
        assert gateway.bench.pool.quarantined_bytes == 2 * CHUNK_BYTES
        assert worker.lookup(prompt(2)) == 0
        assert worker.commit_store(prompt(2)) is False
        assert gateway.bench.pool.quarantined_bytes == 0
        assert worker.store(prompt(2)) is True

    def test_leases_of_before_end_after_a_time(self, worker: Client, gateway: Gateway) -> None:
        worker.store(prompt(2))
        worker.lookup(prompt(2))
        worker.prepare_retrieve(prompt(2))
        gateway.restart()
        assert gateway.leased() == 4
        gateway.pass_time(LEASE_TTL_S + 1)
        gateway.pass_time(1)
        assert gateway.leased() == 0

    def test_a_retrieve_that_it_interrupted_is_whole_if_it_was_leased_throughout(
        self, worker: Client, gateway: Gateway
    ) -> None:
        worker.store(prompt(3))
        worker.prepare_retrieve(prompt(2))
        gateway.restart()
        assert worker.commit_retrieve(prompt(3)) is False
        assert worker.commit_retrieve(prompt(2)) is True
        assert worker.commit_retrieve(prompt(2)) is False
        assert gateway.leased() == 0
        worker.prepare_retrieve(prompt(2))
        gateway.restart()
        gateway.pass_time(LEASE_TTL_S + 1)
        gateway.pass_time(1)
        assert worker.commit_retrieve(prompt(2)) is False

    def test_a_worker_of_an_ended_process_is_not_restored(
        self, gateway: Gateway, owner: dict[str, processes.Owner]
    ) -> None:
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        owner["owner"] = os.getpid(), 0
        client = gateway.client()
        client.register()
        (path,) = registration_files(gateway)
        path.unlink()
        registered = next(iter(gateway.server.registry)).registered
        registered.pid = child
        Registry(gateway.folder).save(registered)
        gateway.restart()
        assert len(gateway.server.registry) == 0
        assert registration_files(gateway) == []

    @pytest.mark.parametrize(
        "damage",
        [b"", b"LARDERLM1\n", b"rubbish" * 100, b"LARDERLM1\n" + bytes(32) + b"\x90"],
        ids=["empty", "cut", "rubbish", "wrong digest"],
    )
    def test_a_damaged_registration_is_set_aside(self, client: Client, gateway: Gateway, damage: bytes) -> None:
        client.register(1)
        client.register(2)
        registration_files(gateway)[0].write_bytes(damage)
        gateway.restart()
        assert len(gateway.server.registry) == 1
        assert len(list(gateway.folder.glob("*.corrupt"))) == 1
        assert client.prepare_store(prompt(1), instance=1) == {}
        assert "slots" in client.prepare_store(prompt(1), instance=2)

    def test_a_folder_that_cannot_be_written_costs_the_memory_alone(
        self, make_gateway: Callable[..., Gateway], tmp_path: Path
    ) -> None:
        gateway = make_gateway()
        gateway.folder.parent.mkdir(exist_ok=True)
        gateway.folder.write_text("a file where a folder should be")
        client = gateway.client()
        assert client.register()["shm_name"] == SHM_NAME
        assert client.store(prompt(1)) is True


def test_no_owner_is_found_without_free_descriptors() -> None:
    with free_descriptors(0):
        assert processes._holders({1}) == {}


def test_a_connection_of_another_process_is_found_in_the_kernels_tables() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            with socket.create_connection(("127.0.0.1", port)):
                os.close(writing)
                os.read(reading, 1)
            os._exit(0)
        os.close(reading)
        connection, _ = listener.accept()
        with connection:
            real = processes.owners_of([connection.fileno(), 10**6])
            assert real[connection.fileno()][0] == child
            assert real[connection.fileno()][1] > 0
            assert real[10**6] == processes.UNKNOWN
            assert processes.owners_of([10**6]) == {10**6: processes.UNKNOWN}
            assert processes._sockets_of("no process") == set()
        os.close(writing)
        os.waitpid(child, 0)

"""A real data plane with its gateway: memory that clients map, processes that end, a `kill -9` of the node."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from dataplane.memory.named import BACKUP_PREFIX
from tests import forked
from tests.dataplane.plane import WAIT_S, Plane, engine_process, line, wait_for
from tests.dataplane.recovery.support.relay import Relay
from tests.free_port import free_port
from tests.lmcache.client import CHUNK_BYTES, Client, key, lookup_key, packed, prompt
from tests.lmcache.engine_memory import EngineMemory
from tests.lmcache.planes import (
    FOLDER,
    check,
    content,
    gateway_plane,
    gateway_stats,
    leased,
    mapped,
    store,
    supervised_gateway,
    url_of,
    wait_for_standby,
)
from tests.sizes import size
from tests.threads import join


def backup_name_of(path: Path) -> Path:
    return path.with_name(BACKUP_PREFIX + path.name)


WORKER = """
from tests.lmcache.client import *
client = Client(sys.argv[1])
client.register(9)
tell(len(client.prepare_store(prompt(2, 50), instance=9)["slots"]))
sys.stdin.readline()
"""
"""Worker number 9, which has prepared a store of two chunks."""


ENGINE = """
from tests.lmcache.client import *
url, instance, dtype, role = sys.argv[1:]
instance = int(instance)

def store():
    client = Client(url)
    client.register(instance, dtype_str=dtype)
    client.store(prompt(2, instance), instance=instance)
    return client

if role == "two processes":
    (stored, storing), (ended, running) = os.pipe(), os.pipe()
    if not os.fork():
        os.close(running)
        store()
        os.write(storing, b".")
        os.read(ended, 1)
        os._exit(0)
    os.read(stored, 1)
client = Client(url) if role == "two processes" else store()
for turn in range(2):
    tell(client.lookup(prompt(2, instance), f"{instance}-{turn}"))
    sys.stdin.readline()
client.close()
"""
"""An engine in one process, or in two, of which the other one stores."""


@pytest.fixture
def client(plane: Plane) -> Iterator[Client]:
    with Client(url_of(plane)) as connected:
        yield connected


def test_the_segment_is_removed_when_the_node_stops(plane: Plane, client: Client) -> None:
    name = client.register()["shm_name"]
    assert (FOLDER / name).exists()
    assert plane.stop() == 0
    assert not (FOLDER / name).exists()


def name_events(plane: Plane, count: int) -> list[str]:
    """Lines of the log about the name of the memory, once there are so many."""
    found = [event for event in plane.log().splitlines() if "gateway.name" in event]
    return found if len(found) >= count else []


class TestTheNameOfItsMemory:
    """Other programs remove names in `/dev/shm`, or take them."""

    def test_it_is_put_back_for_the_same_bytes(self, plane: Plane, client: Client) -> None:
        answer = client.register()
        path = FOLDER / answer["shm_name"]
        inode = path.stat().st_ino
        with mapped(answer) as segment:
            assert store(client, segment, prompt(3), 0, "one")
            path.unlink()
            wait_for(path.exists, "the name is back")
            assert path.stat().st_ino == inode
            with Client(url_of(plane)) as other, mapped(other.register(8)) as theirs:
                assert check(other, theirs, prompt(3), 0, "two", instance=8)
                assert store(other, theirs, prompt(3, 9), 9, "three", instance=8)
            assert check(client, segment, prompt(3, 9), 9, "four")
        assert leased(plane.describe()) == 0
        wait_for(lambda: gateway_stats(plane).name_restored == 1, "it is counted")
        assert gateway_stats(plane).problem == ""
        events = wait_for(lambda: name_events(plane, 2), "the log tells of both")
        assert ["gateway.name_lost" in event for event in events] == [True, False]
        assert "was removed" in events[0]
        assert plane.stop() == 0
        assert not path.exists()
        assert not backup_name_of(path).exists()

    def test_a_worker_that_registers_before_that_is_noticed_gets_a_name_that_exists(
        self, plane: Plane, client: Client
    ) -> None:
        path = FOLDER / client.register()["shm_name"]
        for instance in range(8, 28):
            path.unlink()
            with mapped(client.register(instance)):
                pass

    def test_without_any_name_registered_workers_continue_and_new_ones_are_refused(
        self, plane: Plane, client: Client
    ) -> None:
        answer = client.register()
        path = FOLDER / answer["shm_name"]
        with mapped(answer) as segment:
            assert store(client, segment, prompt(3), 0, "one")
            backup_name_of(path).unlink()
            path.unlink()
            wait_for(lambda: gateway_stats(plane).problem, "it says so")
            assert f"restart the data plane (process {plane.pid})" in gateway_stats(plane).problem
            assert check(client, segment, prompt(3), 0, "two")
            assert store(client, segment, prompt(3, 5), 5, "three")
            with Client(url_of(plane)) as other:
                assert other.register(8) == {"shm_name": "", "pool_size": 0}
                assert other.ask("ping", 8) is True
        wait_for(lambda: "gateway.name_lost" in plane.log(), "the log says so")

    def test_a_refused_worker_is_invited_to_register_again(self, plane: Plane, client: Client) -> None:
        path = FOLDER / client.register()["shm_name"]
        foreign = path.with_name(f"foreign-{path.name}")
        foreign.write_bytes(b"foreign")
        foreign.replace(path)  # at once: the data plane puts a name back that is missing
        try:
            with Client(url_of(plane)) as other:
                assert other.register(8)["shm_name"] == ""
                assert [other.ask("ping", 8) for _ in range(3)] == [True] * 3
                assert path.read_bytes() == b"foreign"
                path.unlink()
                wait_for(lambda: not gateway_stats(plane).problem, "the name is back")
                assert other.ask("ping", 8) is False, "so it registers again"
                assert other.register(8)["shm_name"] == path.name
        finally:
            if path.exists() and path.stat().st_size < 4096:
                path.unlink()

    def test_a_restart_makes_new_memory_when_no_name_is_left(self, socket_dir: Path) -> None:
        with supervised_gateway(socket_dir) as plane, Client(url_of(plane)) as client:
            answer = client.register()
            path = FOLDER / answer["shm_name"]
            with mapped(answer) as segment:
                assert store(client, segment, prompt(3), 0, "one")
            backup_name_of(path).unlink()
            path.unlink()
            wait_for(lambda: gateway_stats(plane).problem, "it says so")
            plane.kill_plane()
            wait_for(path.exists, "new memory has the name")
            assert client.ask("ping", 7) is False, "so it registers again"
            with mapped(client.register()) as segment:
                assert client.lookup(prompt(3)) == 0
                assert store(client, segment, prompt(3), 0, "two")
            assert gateway_stats(plane).problem == ""
            wait_for(lambda: plane.logged("lmcache.memory_lost"), "the log says so")

    @pytest.mark.parametrize("foreign", [False, True])
    def test_a_name_that_is_lost_between_two_data_planes_costs_nothing(self, socket_dir: Path, foreign: bool) -> None:
        with supervised_gateway(socket_dir) as plane, Client(url_of(plane)) as client:
            answer = client.register()
            path = FOLDER / answer["shm_name"]
            with mapped(answer) as segment:
                assert store(client, segment, prompt(3), 0, "one")
                client.answered_twice = True
                before = plane.plane_pid
                os.kill(before, signal.SIGSTOP)  # it cannot put the name back
                path.unlink()
                if foreign:
                    path.write_bytes(b"foreign")
                plane.kill_plane()
                wait_for(lambda: plane.plane_pid != before, "the next one begins")
                assert check(client, segment, prompt(3), 0, "two")
                if foreign:
                    assert "is another file now" in gateway_stats(plane).problem
                    assert path.read_bytes() == b"foreign"
                    path.unlink()
                wait_for(lambda: not gateway_stats(plane).problem, "the name is back")
            with Client(url_of(plane)) as other, mapped(other.register(8)) as theirs:
                assert check(other, theirs, prompt(3), 0, "three", instance=8)
            assert gateway_stats(plane).name_restored == 1


class SlowMemory(Plane):
    """A data plane on a machine that takes `seconds` for every piece of memory."""

    seconds = 0.0

    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, "TEST_SECONDS": str(self.seconds)}


class TestMemoryThatWasNotUsedYet:
    @pytest.fixture
    def slow(self, socket_dir: Path) -> Iterator[SlowMemory]:
        plane = SlowMemory(socket_dir, {"lmcache_port": str(free_port())}, module="tests.lmcache.slow_memory")
        yield plane
        plane.kill()

    @pytest.mark.full
    def test_a_store_that_waits_for_memory_does_not_delay_others(self, slow: SlowMemory) -> None:
        slow.seconds = 4.0  # longer than the look-ups take on a busy machine
        slow.start()
        with Client(url_of(slow)) as client, Client(url_of(slow)) as other, mapped(client.register()) as segment:
            client.send([packed(9000), packed(16), packed(key(prompt(3))), packed(7)])
            for at in range(5):
                assert other.lookup(prompt(2), f"r{at}") == 0
            assert client.silent(0), "it waits"
            answer = client.receive()
            assert answer[:2] == [packed(9000), packed(16)]
            assert store(client, segment, prompt(3), 1, "r")
            assert check(client, segment, prompt(3), 1, "reads")
        assert "pages are taken on the loop" not in slow.log()

    @pytest.mark.full
    def test_a_peer_that_leaves_while_it_waits_for_memory_costs_nothing(self, slow: SlowMemory) -> None:
        slow.seconds = 4.0
        slow.start()
        with Client(url_of(slow)) as stays:
            with Client(url_of(slow)) as goes:
                goes.register(8)
                goes.send([packed(9000), packed(16), packed(key(prompt(3))), packed(8)])
                assert goes.ask("ping", 8) is True
            wait_for(lambda: any(each.failures for each in gateway_stats(slow).operations), "it is found out")
            stats = slow.describe()
            assert (stats.pool.used_bytes, stats.pool.reserved_bytes) == (0, 0)
            assert stays.ask("noop") == "OK"

    def test_a_store_that_waits_during_a_kill_fails_with_the_next_data_plane(self, socket_dir: Path) -> None:
        """The store was granted nothing: its client gets the answer that there is no room."""
        settings = {"lmcache_port": str(free_port())}
        plane = Relay(socket_dir, settings, fault="killed_while_waiting").start()
        try:
            with Client(url_of(plane)) as worker, mapped(worker.register()) as segment:
                worker.send([packed(9000), packed(16), packed(key(prompt(3))), packed(7)])
                assert plane.process.wait(WAIT_S) == -signal.SIGKILL
                plane.kill()
                plane.fault = ""
                plane.start()
                answer = worker.receive()
                assert answer[:2] == [packed(9000), packed(16)]
                assert msgspec.msgpack.decode(answer[2])["context"] == {}
                assert worker.ask("noop") == "OK"
                assert store(worker, segment, prompt(3), 1, "stores")
                assert check(worker, segment, prompt(3), 1, "reads")
            assert plane.stop() == 0
        finally:
            plane.end()

    def test_a_preallocated_pool_is_filled_without_waiting(self, slow: SlowMemory) -> None:
        slow.settings["dataplane__prefault"] = "true"
        slow.start()
        with Client(url_of(slow)) as client, mapped(client.register()) as segment:
            slow.wait_stats(lambda stats: stats.pool.prefaulted_bytes >= 16 << 20, "memory is ahead", 60)
            for at in range(100):
                assert store(client, segment, prompt(8, at), at, f"r{at}")
            assert slow.describe().pool.used_bytes >= 12 << 20
        assert "pages are taken on the loop" not in slow.log()


class TestAWorkerThatIsKilled:
    def test_reserved_bytes_are_freed_at_the_end_of_a_worker_and_never_published(
        self, plane: Plane, client: Client
    ) -> None:
        client.register()
        with engine_process(WORKER, url_of(plane)) as worker:
            assert line(worker) == "2"
            stats = plane.describe()
            assert stats.pool.reserved_bytes == 2 * CHUNK_BYTES
            assert worker.pid in [engine.pid for engine in stats.engines]
        plane.wait_stats(
            lambda stats: stats.pool.used_bytes == 0 and "lmcache:9" not in [e.group for e in stats.engines],
            "its bytes come back with its end",
        )
        assert client.lookup(prompt(2, 50)) == 0
        assert [each.instance for each in gateway_stats(plane).instances] == [7]

    def test_a_worker_that_is_stopped_keeps_its_bytes_quarantined_until_it_is_gone(self, socket_dir: Path) -> None:
        with gateway_plane(
            socket_dir, dataplane__lmcache_idle_timeout_s="3", dataplane__lmcache_first_ping_timeout_s="3"
        ) as plane:
            with engine_process(WORKER, url_of(plane)) as worker:
                assert line(worker) == "2"
                plane.wait_stats(lambda stats: stats.pool.quarantined_bytes == 2 * CHUNK_BYTES, "it is taken for lost")
            plane.wait_stats(lambda stats: stats.pool.used_bytes == 0, "its bytes come back with its end")


class TestAKilledDataPlane:
    def test_its_clients_find_registrations_answers_and_chunks_again(self, socket_dir: Path) -> None:
        with (
            supervised_gateway(socket_dir) as plane,
            Client(url_of(plane)) as worker,
            Client(url_of(plane)) as scheduler,
            mapped(worker.register()) as segment,
        ):
            for name in range(20):
                assert store(worker, segment, prompt(3, name), name, f"r{name}")
            assert scheduler.lookup(prompt(3, 5), "held") == 3
            wait_for_standby(plane)
            first = plane.plane_pid
            plane.kill_plane()
            # Sent without a data plane: the next data plane answers.
            worker.send([b"\x51", b"\x12", packed(key(prompt(3, 7), "r7")), packed(7)])
            scheduler.send([b"\x52", b"\x08", packed(lookup_key(prompt(4, 8), "late")), b"\x01"])
            assert worker.receive()[:2] == [b"\x51", b"\x12"]
            assert scheduler.receive() == [b"\x52", b"\x08"]
            assert plane.plane_pid != first
            assert scheduler.status("late") == 3
            assert worker.commit_retrieve(prompt(3, 7), "r7") is True
            for name in range(20):
                assert check(worker, segment, prompt(3, name), name, f"again{name}")
            assert store(worker, segment, prompt(5, 3), 3, "more")
            assert check(worker, segment, prompt(5, 3), 3, "more")
            (instance,) = gateway_stats(plane).instances
            assert (instance.instance, instance.attached) == (7, True)
            assert plane.describe().adopted_blocks == 60

    def test_a_store_that_it_interrupted_is_not_published(self, socket_dir: Path) -> None:
        with supervised_gateway(socket_dir) as plane, Client(url_of(plane)) as worker:
            worker.register()
            assert worker.store(prompt(1, 1), "before")
            assert len(worker.prepare_store(prompt(2))["slots"]) == 2
            wait_for_standby(plane)
            plane.kill_plane()
            assert worker.commit_store(prompt(2)) is False
            assert worker.lookup(prompt(2)) == 0
            assert worker.lookup(prompt(1, 1), "after") == 1
            plane.wait_stats(lambda stats: stats.pool.quarantined_bytes == 0, "the worker said it was done")
            assert worker.store(prompt(2)) is True

    def test_workers_that_are_copied_for_are_copied_for_again(self, socket_dir: Path) -> None:
        with supervised_gateway(socket_dir) as plane, Client(url_of(plane)) as worker, EngineMemory() as memory:
            memory.fill(9)
            worker.ask("register_kv_cache", *memory.registration())
            old, new = list(range(1, 33)), list(range(32, 64))
            expected = memory.blocks(old)
            assert worker.ask("store", key(prompt(2)), 7, [old], b"event") == [b"", True]
            wait_for_standby(plane)
            plane.kill_plane()
            assert worker.ask("retrieve", key(prompt(2)), 7, [new], b"event", 0) == [b"", True]
            assert np.array_equal(memory.blocks(new), expected)

    def test_many_kills_under_load_lose_no_chunk_and_no_byte(self, socket_dir: Path) -> None:
        with (
            supervised_gateway(socket_dir) as plane,
            Client(url_of(plane)) as worker,
            mapped(worker.register()) as segment,
        ):
            worker.answered_twice = True
            stored: list[int] = []
            name = 0
            for _ in range(size(3, 2)):
                wait_for_standby(plane)
                killer = threading.Timer(0.05, plane.kill_plane)
                killer.start()
                last = name + 60  # more than the time until the kill, and goes on behind it
                while name < last:
                    name += 1
                    if store(worker, segment, prompt(2, name), name, f"r{name}"):
                        stored.append(name)
                    for old in stored[-4:]:
                        assert check(worker, segment, prompt(2, old), old, f"r{old}")
                join(killer)
            assert not worker.was_lost()
            assert len(stored) >= name - 6
            for old in stored:
                assert check(worker, segment, prompt(2, old), old, f"last{old}")
            assert gateway_stats(plane).instances[0].attached

    @pytest.mark.parametrize("ahead", ["true", "false"])
    def test_room_that_may_have_been_granted_is_not_granted_again_by_the_next_data_plane(
        self, socket_dir: Path, ahead: str
    ) -> None:
        """Its client writes where the first answer says: other, unwritten room must not be published in its place.
        With memory ahead it answers at once, without later."""
        settings = {"lmcache_port": str(free_port()), "dataplane__prefault": ahead}
        plane = Relay(socket_dir, settings, fault="killed_on_answer").start()
        try:
            with Client(url_of(plane)) as worker, mapped(worker.register()) as segment:
                granted = worker.prepare_store(prompt(2))
                assert len(granted["slots"]) == 2
                assert plane.process.wait(WAIT_S) == -signal.SIGKILL
                plane.kill()
                plane.fault = ""
                plane.start()
                worker.answered_twice = True
                assert worker.ask("noop") == "OK"  # it has answered the same request by now
                for slot, chunk in zip(granted["slots"], granted["chunk_indices"], strict=True):
                    segment.write(slot, content(1, chunk, slot["length"]))
                assert worker.commit_store(prompt(2)) is False
                assert not check(worker, segment, prompt(2), 1, "reads")
                assert store(worker, segment, prompt(2), 1, "stores")
                assert check(worker, segment, prompt(2), 1, "reads again")
                assert gateway_stats(plane).instances[0].attached
            assert plane.stop() == 0
        finally:
            plane.end()

    def test_unanswered_requests_are_answered_by_the_next_data_plane(self, socket_dir: Path) -> None:
        with supervised_gateway(socket_dir) as plane, Client(url_of(plane)) as client:
            client.register()
            assert client.store(prompt(3))
            wait_for_standby(plane)
            os.kill(plane.plane_pid, signal.SIGSTOP)
            uids = [packed(1000 + at) for at in range(20)]
            for at, uid in enumerate(uids):  # 300 kB together: more than is read at once
                client.send([uid, b"\x08", packed(lookup_key(prompt(20), f"r{at}")), b"\x01"])
            client.send([packed(999), b"\x16", b"\xc0"])
            plane.kill_plane()
            assert [client.receive() for _ in uids] == [[uid, b"\x08"] for uid in uids]
            assert client.receive() == [packed(999), b"\x16", b"\xc3"]
            assert [client.status(f"r{at}") for at in range(20)] == 20 * [3]
            assert not client.was_lost()

    def test_a_client_that_closes_without_a_data_plane_is_forgotten(self, socket_dir: Path) -> None:
        with supervised_gateway(socket_dir) as plane, Client(url_of(plane)) as stays:
            with Client(url_of(plane)) as goes:
                goes.register(8)
                wait_for_standby(plane)
                os.kill(plane.plane_pid, signal.SIGSTOP)
            plane.kill_plane()
            assert stays.ask("noop") == "OK"
            wait_for(lambda: gateway_stats(plane).connections == 1, "the one that is there is left")


@contextmanager
def dealers(plane: Plane, count: int) -> Iterator[list[zmq.Socket[bytes]]]:
    """So many connections."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, count + 24)
    sockets = []
    try:
        for _ in range(count):
            sockets.append(context.socket(zmq.DEALER))
            sockets[-1].linger = 0
            sockets[-1].connect(url_of(plane))
        yield sockets
    finally:
        for each in sockets:
            each.close()
        context.term()


def test_a_burst_of_half_again_the_pool_drops_the_oldest_prompts_alone(plane: Plane) -> None:
    with Client(url_of(plane)) as client, mapped(client.register()) as segment:
        room = plane.describe().pool.capacity_bytes // CHUNK_BYTES // 16
        prompts = room * 3 // 2
        for name in range(prompts):
            assert store(client, segment, prompt(16, name), name, f"r{name}") is True
            # What was reported as stored is there, at once and whole.
            assert check(client, segment, prompt(16, name), name, f"r{name}")
        stats = plane.describe()
        assert stats.totals.stored_blocks == 16 * prompts
        assert stats.refused == {}
        whole = [check(client, segment, prompt(16, name), name, f"again{name}") for name in range(prompts)]
        assert whole.count(True) >= room - 2
        assert whole == sorted(whole)  # the oldest ones went


def test_a_thousand_connections_lease_and_release_their_hits(plane: Plane) -> None:
    count = size(1000, 12)
    with Client(url_of(plane)) as worker:
        worker.register()
        worker.store(prompt(1))
        with dealers(plane, count) as sockets:
            for at, each in enumerate(sockets):
                each.send_multipart([b"\x01", b"\x08", packed(lookup_key(prompt(1), f"r{at}")), b"\x01"])
                each.send_multipart([b"\x02", b"\x09", packed(f"r{at}")])
                each.send_multipart([b"\x03", b"\x16", b"\xc0"])
            for each in sockets:
                for answer in ([b"\x01", b"\x08"], [b"\x02", b"\x09", b"\x01"], [b"\x03", b"\x16", b"\xc3"]):
                    assert each.poll(60_000)
                    assert each.recv_multipart() == answer
            assert (gateway_stats(plane).connections, gateway_stats(plane).lookups) == (count + 1, count)
        wait_for(lambda: gateway_stats(plane).connections == 1, "connections are forgotten when they close")
        wait_for(lambda: gateway_stats(plane).lookups == 0, "look-ups end with their schedulers")
        plane.wait_stats(lambda stats: leased(stats) == 0, "so do their leases")


class DefaultPort(Plane):
    """A data plane without a port in its settings."""

    @property
    def environ(self) -> dict[str, str]:
        return {name: value for name, value in super().environ.items() if name != "LARDER_LMCACHE_PORT"}


class TestThePort:
    def test_a_named_port_that_is_taken_fails_the_start_with_one_line(self, socket_dir: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            plane = Plane(socket_dir, {"lmcache_port": str(port), "dataplane__lmcache_shm_name": f"t{port}"})
            done = forked.run("dataplane", env=plane.environ)
        assert done.returncode == 1
        last = done.stderr.strip().splitlines()[-1]
        assert "lmcache_port" in last
        assert f"tcp://127.0.0.1:{port}" in last
        assert "already in use" in last
        assert "Traceback" not in done.stderr
        assert not (FOLDER / f"lmcache_l1_pool_t{port}").exists()

    def test_the_default_port_that_is_taken_leaves_the_gateway_out(self, socket_dir: Path) -> None:
        listener = None
        with suppress(OSError):  # it is in use already
            listener = socket.create_server(("127.0.0.1", 5555))
        plane = DefaultPort(socket_dir)
        try:
            plane.start()
            wait_for(lambda: '"lmcache.off"' in plane.log(), "the log says so")
            assert plane.describe().gateway is None
        finally:
            plane.kill()
            if listener is not None:
                listener.close()

    def test_no_gateway_means_no_socket_and_no_segment(self, socket_dir: Path) -> None:
        plane = Plane(socket_dir)
        try:
            plane.start()
            assert plane.describe().gateway is None
            assert "lmcache" not in plane.log()
        finally:
            plane.kill()

    def test_an_address_that_others_reach_is_logged(self, socket_dir: Path) -> None:
        with gateway_plane(socket_dir, dataplane__lmcache_host="0.0.0.0") as plane:
            with Client(url_of(plane)) as client:
                client.register()
                client.store(prompt(1))
                client.ask("clear", True)  # off loopback this needs the setting
                assert client.lookup(prompt(1)) == 1
            wait_for(lambda: '"lmcache.open_to_others"' in plane.log(), "the log says so")


@pytest.mark.parametrize("role", ["one process", "two processes"])
def test_an_engine_keeps_its_hits_when_one_of_another_dtype_registers_under_its_model(plane: Plane, role: str) -> None:
    with ExitStack() as stack:
        engines = []
        for instance, dtype in ((1, "float16"), (2, "float8_e4m3fn")):
            engines.append(stack.enter_context(engine_process(ENGINE, url_of(plane), str(instance), dtype, role)))
            assert line(engines[-1]) == "2"
        for engine in engines:
            assert engine.stdin is not None
            engine.stdin.write(b"\n")
            engine.stdin.flush()
            assert line(engine) == "2"
        wait_for(lambda: "lmcache.layouts_differ" in plane.log(), "the log says so")
        for engine in engines:
            engine.communicate(b"\n", timeout=WAIT_S)

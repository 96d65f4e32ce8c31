"""The holder has all memory from the start: however a data plane ends, the next one has every block."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from dataplane.base.child_command import module_command, standalone_command
from dataplane.client import Client, attach
from dataplane.holding import connection as connection_module
from dataplane.holding import requests
from dataplane.holding.connection import HolderConnection
from dataplane.holding.folder import DATA_PLANE_LOCK_NAME, SOCKET_NAME
from dataplane.holding.memory import CLOSED_OFFSET
from dataplane.holding.messages import MAX_FDS_PER_DATAGRAM, VERSION, close_all, receive, receive_memory, send
from dataplane.holding.process import CHECK_S, MAX_CONNECTIONS, WARM_STARTS
from dataplane.holding.requests import HolderFailed, answer_to, describe, release
from dataplane.protocol.layout import H_CLOSED
from dataplane.protocol.signals import HAND_OVER_SIGNAL, HANDED_OVER_EXIT_CODE, RELEASE_SIGNAL
from tests.dataplane import factories as make
from tests.dataplane.plane import contents, wait_for
from tests.free_port import free_port
from tests.lmcache.client import Client as LMCacheClient
from tests.lmcache.client import prompt
from tests.lmcache.planes import FOLDER as SHM
from tests.lmcache.planes import check as check_chunks
from tests.lmcache.planes import gateway_plane, mapped, url_of
from tests.lmcache.planes import store as store_chunks
from tests.restart.support.harness import Supervised
from tests.restart.support.load import engine, read_line
from tests.restart.support.relay import MemoryFile, Relay, hold, writer
from tests.threads import join

PAGE_BYTES = 4096


@pytest.fixture
def make_plane(socket_dir: Path) -> Iterator[Callable[..., Relay]]:
    made: list[Relay] = []

    def new(**settings: str) -> Relay:
        made.append(Relay(socket_dir, {"dataplane__keep_memory_s": "60", **settings}))
        return made[-1]

    yield new
    for each in made:
        each.end()
    requests.signal_holders(socket_dir, signal.SIGKILL)


@pytest.fixture
def plane(make_plane: Callable[..., Relay]) -> Relay:
    return make_plane().start()


def holders(folder: Path) -> list[int]:
    return requests.signal_holders(folder, 0)


def connect(plane: Relay) -> Client:
    return attach(plane.socket, [make.space()], timeout_s=30)


def store(client: Client, chain: list[bytes], tenant: str = "") -> int:
    with client.reserve(chain, PAGE_BYTES, tenant=tenant) as reservation:
        for at in reservation.writable:
            reservation.view(at)[:] = contents(chain, PAGE_BYTES)[at]
        return reservation.commit().blocks


def store_alone(plane: Relay, blocks: int = 3) -> None:
    with connect(plane) as client:
        assert store(client, make.keys(blocks)) == blocks


def read(client: Client, chain: list[bytes]) -> int:
    """Leading blocks, each with the right bytes."""
    with client.acquire(chain) as lease:
        for at in range(len(lease)):
            assert bytes(lease.view(at)) == contents(chain, PAGE_BYTES)[at]
        return len(lease)


def read_alone(plane: Relay, blocks: int = 3) -> int:
    with connect(plane) as client:
        return read(client, make.keys(blocks))


def connected(client: Client) -> bool:
    client.lookup(make.keys(1))
    return client.connected


def ask(folder: Path, message: object) -> dict[str, Any]:
    """The holder's answer to any bytes; empty when there is none."""
    connection = requests.connect(folder)
    assert connection is not None
    with connection:
        connection.settimeout(60)
        connection.send(message if isinstance(message, bytes) else json.dumps(message).encode())
        answer, fds = receive(connection)
        close_all(fds)
        return answer or {}


def record(plane: Relay) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((plane.folder / "cache.json").read_text())
    return found


def freeze(pid: int) -> None:
    """SIGSTOP; returns when the process has stopped."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: "State:\tT" in Path(f"/proc/{pid}/status").read_text(), "the process stops")


# ---- stops and kills


def ended_by(plane: Relay, number: int) -> int:
    plane.signal(number)
    assert plane.process is not None
    return plane.process.wait(60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, HAND_OVER_SIGNAL])
def test_an_end_and_a_start_keep_every_block_lease_and_view(plane: Relay, number: int) -> None:
    chain = make.keys(5)
    code = {signal.SIGKILL: -9, HAND_OVER_SIGNAL: HANDED_OVER_EXIT_CODE}.get(signal.Signals(number), 0)
    (pid,) = holders(plane.folder)
    with connect(plane) as client:
        assert store(client, chain, "a") == 5
        lease = client.acquire(chain)
        view, attachment = lease.view(2), client._link.attachment
        for cycle in range(3):
            assert ended_by(plane, number) == code
            wait_for(lambda: not connected(client), "the loss is noticed")
            assert read(client, chain) == 5, "engines read on while nothing serves"
            assert not client.reserve(make.keys(1, "refused"), PAGE_BYTES).number
            plane.start()
            wait_for(lambda: connected(client), "the client attaches again")
            assert client._link.attachment is attachment, "with the same memory"
            assert bytes(view) == contents(chain, PAGE_BYTES)[2]
            assert store(client, make.keys(3, ("new", cycle))) == 3
        stats = plane.describe()
        assert {each.tenant: each.blocks for each in stats.tenants} == {"a": 5, "_default": 9}
        start = stats.start
        assert (start.kind, start.blocks, start.bytes, start.lost_blocks) == ("warm", 11, 11 * PAGE_BYTES, 0)
        lease.release()
    assert holders(plane.folder) == [pid], "one holder for all of them"
    records = [(each["blocks"], each["seconds"], each["pid"]) for each in plane.logged("memory.kept")]
    assert records == ([] if code else [(5, 60.0, pid), (8, 60.0, pid), (11, 60.0, pid)])


def test_memory_that_comes_and_goes_is_followed(plane: Relay) -> None:
    def kinds() -> list[str]:
        found = requests.peek(plane.folder)
        close_all([fd for _, _, fd in found])
        return [kind for kind, _, _ in found]

    wait_for(lambda: sorted(kinds()) == ["books", "index", "names"], "the first memory is held")
    with connect(plane) as client:
        store(client, make.keys(3))
        wait_for(lambda: {"segment", "area"} <= set(kinds()), "what was added is held")
    wait_for(lambda: "area" not in kinds(), "the area of an engine that left is not")


def test_a_data_plane_that_is_killed_before_its_holder_runs_leaves_the_memory_to_it(socket_dir: Path) -> None:
    """The socket has its name, and the memory is on its way, before the process of the holder runs."""
    fd = os.memfd_create("index")
    first = HolderConnection(socket_dir, 60)
    assert first.take() == ([], "")
    first.list_all([("index", 0, MemoryFile(fd))])
    assert first._connection is not None
    first._connection.close()  # at once, as a kill does
    second = HolderConnection(socket_dir, 60)
    taken, failure = second.take()
    second.end()
    assert (failure, [(kind, number) for kind, number, _ in taken]) == ("", [("index", 0)])
    close_all([fd, *(each for _, _, each in taken)])
    requests.signal_holders(socket_dir, signal.SIGKILL)


def test_a_data_plane_that_is_killed_while_its_supervisor_stops_loses_nothing(plane: Relay) -> None:
    assert plane.stop() == 0
    supervised = Supervised(plane.folder, plane.settings).start()
    try:
        store_alone(plane, 4)
        pid = supervised.plane_pid
        freeze(pid)
        supervised.signal(signal.SIGTERM)
        os.kill(pid, signal.SIGKILL)
        assert supervised.process is not None
        assert supervised.process.wait(60) == 0
    finally:
        supervised.kill_process()
    plane.start()
    assert plane.describe().start.kind == "warm"
    assert read_alone(plane, 4) == 4


def test_a_holder_that_is_killed_is_replaced_and_has_everything(plane: Relay) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
        for _ in range(2):
            (killed,) = requests.signal_holders(plane.folder, signal.SIGKILL)
            wait_for(lambda: len(peeked(plane)) == 5, "another one has all memory")
            assert killed not in holders(plane.folder)
        assert len(plane.logged("holder.lost")) == len(plane.wait_logged("holder.replaced")) == 2
        plane.kill()
        plane.start()
        wait_for(lambda: connected(client), "the client attaches again")
        assert read(client, make.keys(3)) == 3


def test_a_start_after_the_death_of_the_holder_is_cold_and_logged(plane: Relay) -> None:
    store_alone(plane)
    assert plane.stop() == 0
    requests.signal_holders(plane.folder, signal.SIGKILL)
    plane.start()
    start = plane.describe().start
    assert (start.kind, start.lost_blocks, start.lost_bytes) == ("cold", 3, 3 * PAGE_BYTES)
    assert start.reason == "the holder of the memory ended, too"
    wait_for(lambda: record(plane)["blocks"] == 0, "the record is the one of this data plane")
    plane.kill()
    requests.signal_holders(plane.folder, signal.SIGKILL)
    plane.start()
    assert plane.describe().start.kind == "first", "the same blocks were reported as lost twice"


@pytest.mark.full
def test_engines_under_load_read_on_through_stops_and_kills_and_lose_nothing(plane: Relay) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(engine(plane.socket, seed)) for seed in range(2)]
        assert [read_line(each) for each in engines] == ["begun"] * 2
        client = stack.enter_context(connect(plane))
        for away_s in (0.0, 1.0, 2.0):
            for number in (signal.SIGTERM, signal.SIGKILL):
                ended_by(plane, number)
                wait_for(lambda: not connected(client), "the loss is noticed")
                time.sleep(away_s)
                plane.start()
                start = plane.describe().start  # asserts that the audit finds nothing
                assert (start.kind, start.lost_blocks) == ("warm", 0)
                wait_for(lambda: connected(client), "engines attach again")
                assert store(client, make.keys(1, ("after", away_s, number))) == 1
        seen = []
        for each in engines:
            each.terminate()
            seen.append(json.loads(read_line(each)))
    assert [each["own_misses"] for each in seen] == [0, 0]
    assert [each["wrong_blocks"] for each in seen] == [0, 0]
    assert all(each["verified_blocks"] > 50 for each in seen)


def test_blocks_of_lmcache_clients_survive_a_stop_and_a_start(socket_dir: Path) -> None:
    with gateway_plane(socket_dir, dataplane__keep_memory_s="60") as plane, LMCacheClient(url_of(plane)) as client:
        registered = client.register()
        name = registered["shm_name"]
        with mapped(registered) as segment:
            assert store_chunks(client, segment, prompt(3), 0, "one")
            assert plane.stop() == 0
            assert (SHM / name).exists(), "the name lives on with the memory"
            plane.start()
            assert plane.describe().start.kind == "warm"
            with LMCacheClient(url_of(plane)) as other:
                assert other.register(8)["shm_name"] == name
                assert other.lookup(prompt(3), "two") == 3
                assert check_chunks(other, segment, prompt(3), 0, "two", instance=8)
        assert plane.stop() == 0
        released = release(plane.folder, "by an operator")
        assert released is not None
        assert released.blocks == 3
        assert not (SHM / name).exists(), "the name goes with the memory"
        assert [path.name for path in SHM.iterdir() if path.name.endswith(name)] == [], "the backup name too"


def test_a_kill_keeps_the_connections_of_lmcache_clients(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane(lmcache_port=str(free_port())).start()
    with LMCacheClient(url_of(plane)) as client, mapped(client.register()) as segment:
        client.answered_twice = True
        tokens = prompt(1)
        assert store_chunks(client, segment, tokens, 1, "r1")
        for request in ("r2", "r3"):
            plane.kill()
            plane.start()
            assert check_chunks(client, segment, tokens, 1, request)


def test_connections_of_lmcache_clients_end_after_a_while(make_plane: Callable[..., Relay]) -> None:
    """Without a data plane, a client would wait for an answer that does not come."""
    plane = make_plane(lmcache_port=str(free_port())).start()
    wait_for(lambda: "listener" in {each[0] for each in peeked(plane)}, "the listener is held")
    with socket.create_connection(("127.0.0.1", int(plane.settings["lmcache_port"]))) as client:
        plane.kill()
        assert "listener" in {each[0] for each in peeked(plane)}
        client.settimeout(60)
        with suppress(ConnectionResetError):
            while client.recv(4096):  # the greeting, then the end
                pass
    assert "index" in {each[0] for each in peeked(plane)}, "the memory stays"


def peeked(plane: Relay) -> list[tuple[str, int]]:
    return peeked_in(plane.folder)


def peeked_in(folder: Path) -> list[tuple[str, int]]:
    found = requests.peek(folder)
    close_all([fd for _, _, fd in found])
    return [(kind, number) for kind, number, _ in found]


# ---- what ends the memory


def test_nothing_is_kept_of_an_empty_cache(plane: Relay) -> None:
    assert plane.stop() == 0
    wait_for(lambda: not holders(plane.folder), "the holder ends")
    plane.start()
    assert plane.describe().start.kind == "first"


def test_without_time_to_keep_it_the_memory_is_released_by_a_stop_alone(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane(dataplane__keep_memory_s="0").start()
    with connect(plane) as client:
        store(client, make.keys(3))
        plane.kill()
        plane.start()
        wait_for(lambda: connected(client), "the client attaches again")
        assert read(client, make.keys(3)) == 3
        assert plane.stop() == 0
        wait_for(lambda: not connected(client), "the loss is noticed")
        assert client.lookup(make.keys(3)) == 0, "engines stop reading it"
    wait_for(lambda: not holders(plane.folder), "the holder ends")
    plane.start()
    start = plane.describe().start
    assert (start.kind, start.released, start.lost_blocks) == ("cold", True, 3)
    assert "keep_memory_s = 0" in start.reason


def test_the_memory_is_released_when_its_time_is_over(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane(dataplane__keep_memory_s="0.5").start()
    with connect(plane) as client:
        store(client, make.keys(3))
        attachment = client._link.attachment
        assert plane.stop() == 0
        wait_for(lambda: int(attachment.index.header[H_CLOSED]), "engines learn that it is released")
        assert client.lookup(make.keys(3)) == 0 or not client.connected
    wait_for(lambda: not holders(plane.folder), "the holder ends")
    assert not (plane.folder / SOCKET_NAME).exists()
    reason = record(plane)["reason"]
    assert "no data plane started within 0.5 s" in reason
    plane.start()
    start = plane.describe().start
    assert (start.kind, start.released, start.lost_blocks) == ("cold", False, 3)
    assert start.reason == reason
    (line,) = plane.wait_logged("cache.started_cold")
    assert (line["lost_blocks"], line["level"]) == (3, "warning")


def test_the_release_signal_releases(plane: Relay) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
        attachment = client._link.attachment
        assert ended_by(plane, RELEASE_SIGNAL) == 0
        assert int(attachment.index.header[H_CLOSED]) == 1
    wait_for(lambda: not holders(plane.folder), "the holder ends")


def test_a_holder_that_is_stopped_releases_the_memory(plane: Relay) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
        attachment = client._link.attachment
        assert plane.stop() == 0
        requests.signal_holders(plane.folder, signal.SIGTERM)
        wait_for(lambda: int(attachment.index.header[H_CLOSED]), "engines learn that it is released")
    wait_for(lambda: not holders(plane.folder), "it ends")
    assert "SIGTERM" in record(plane)["reason"]
    assert not (plane.folder / SOCKET_NAME).exists()


def test_a_holder_that_is_stopped_while_its_memory_is_served_loses_nothing(plane: Relay) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
        (pid,) = requests.signal_holders(plane.folder, signal.SIGTERM)
        wait_for(lambda: [each for each in holders(plane.folder) if each != pid], "another one runs")
        assert read(client, make.keys(3)) == 3
        assert int(client._link.attachment.index.header[H_CLOSED]) == 0


def test_a_deleted_state_directory_releases_the_memory(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane(lmcache_port=str(free_port()), dataplane__keep_memory_s="600")
    plane.folder /= "state"
    plane.folder.mkdir()
    plane.start()
    pattern = f"*{plane.environ['LARDER_DATAPLANE__LMCACHE_SHM_NAME']}"
    with connect(plane) as client:
        store(client, make.keys(3))
        attachment = client._link.attachment
        assert plane.stop() == 0
        assert list(SHM.glob(pattern))
        shutil.rmtree(plane.folder)
        wait_for(lambda: not holders(plane.folder), "the holder ends")
        assert int(attachment.index.header[H_CLOSED]) == 1
    assert not list(SHM.glob(pattern))


def test_a_renamed_state_directory_and_a_removed_socket_keep_the_memory(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane()
    plane.folder /= "state"
    plane.folder.mkdir()
    plane.start()
    store_alone(plane)
    assert plane.stop() == 0
    plane.folder = plane.folder.rename(plane.folder.parent / "renamed")
    (plane.folder / SOCKET_NAME).unlink()
    wait_for(lambda: (plane.folder / SOCKET_NAME).exists(), "the socket gets its name again")
    plane.start()
    assert plane.describe().start.kind == "warm"


def test_memory_of_other_settings_is_not_adopted_and_the_loss_is_logged(
    plane: Relay, make_plane: Callable[..., Relay]
) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
        attachment = client._link.attachment
        assert plane.stop() == 0
        other = make_plane(dataplane__max_blocks="128").start()
        wait_for(lambda: int(attachment.index.header[H_CLOSED]) == 1, "engines let the old memory go")
    start = other.describe().start
    assert (start.kind, start.released, start.lost_blocks) == ("cold", False, 3)
    assert "block descriptors, the settings say 128" in start.reason
    store_alone(other)
    other.kill()
    other.start()
    assert other.describe().start.kind == "warm", "the new memory is held"


# ---- starts that fail


def fail_to_start(plane: Relay, **environ: str) -> int:
    """The exit code of a data plane that cannot start."""
    failed = subprocess.run(
        module_command("dataplane"),
        env={**plane.environ, **environ},
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    return failed.returncode


def test_starts_that_fail_for_another_reason_leave_the_memory(plane: Relay) -> None:
    with connect(plane) as client:
        store(client, make.keys(2))
        attachment = client._link.attachment
        assert plane.stop() == 0
        for _ in range(WARM_STARTS + 1):
            assert fail_to_start(plane, LARDER_CONTROL_URL="ipc:///proc/none/control.sock") == 1
        assert int(attachment.index.header[H_CLOSED]) == 0
        released = release(plane.folder, "by an operator")
        assert released is not None
        assert int(attachment.index.header[H_CLOSED]) == 1
    assert record(plane)["reason"] == "by an operator"


def begin_and_end(plane: Relay, *messages: str) -> None:
    """A start that takes the memory, says something, and dies."""
    connection = wait_for(lambda: requests.connect(plane.folder), "the holder listens")
    with connection:
        answer_to(connection, {"do": "take", "version": VERSION, "keep_s": 60, "adopt": True})
        close_all([fd for _, _, fd in receive_memory(connection)])
        for do in messages:
            send(connection, {"do": do})


@pytest.mark.parametrize("messages", [("adopting", "failed"), ("adopting",)], ids=" ".join)
def test_starts_that_fail_because_of_the_memory_give_it_up(plane: Relay, messages: tuple[str, ...]) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
        attachment = client._link.attachment
        plane.kill()
        for _ in range(WARM_STARTS):
            assert int(attachment.index.header[H_CLOSED]) == 0
            begin_and_end(plane, *messages)
        plane.start()
        assert int(attachment.index.header[H_CLOSED]) == 1
    start = plane.describe().start
    assert (start.kind, start.reason) == ("cold", f"{WARM_STARTS} starts with it failed")


@pytest.mark.parametrize("messages", [(), ("adopting", "leave")], ids=["killed", "left"])
def test_starts_that_end_before_or_beside_the_adoption_do_not_count(plane: Relay, messages: tuple[str, ...]) -> None:
    store_alone(plane)
    plane.kill()
    for _ in range(WARM_STARTS + 1):
        begin_and_end(plane, *messages)
    plane.start()
    assert read_alone(plane) == 3


TAKES = """
import resource, sys
from pathlib import Path
from dataplane.holding.connection import HolderConnection
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
try:
    HolderConnection(Path(sys.argv[1]), 60).take()
except OSError as error:
    print(error.strerror)
"""


def test_a_start_without_enough_descriptors_leaves_the_memory(socket_dir: Path) -> None:
    fd = os.memfd_create("segment")
    hold(socket_dir, [("segment", number, fd) for number in range(200)])
    for _ in range(WARM_STARTS + 1):
        ran = subprocess.run(
            [sys.executable, "-c", TAKES, str(socket_dir)], capture_output=True, text=True, check=False, timeout=60
        )
        assert ran.stdout == "Too many open files\n", ran.stderr
    second = HolderConnection(socket_dir, 60)
    taken, failure = second.take()
    assert (len(taken), failure) == (200, "")
    second.list_all([(kind, number, MemoryFile(fd)) for kind, number, fd in taken])
    (pid,) = holders(socket_dir)
    wait_for(lambda: second.is_current and len(peeked_in(socket_dir)) == 200, "it has all again")
    assert len(os.listdir(f"/proc/{pid}/fd")) < 230, "none of them twice"
    second.end()
    close_all([fd, *(each for _, _, each in taken)])
    release(socket_dir, "the test is over")


def test_a_start_that_succeeds_forgives_those_that_failed(plane: Relay) -> None:
    store_alone(plane)
    for _ in range(2):
        plane.kill()
        for _ in range(WARM_STARTS - 1):
            with writer(plane.folder) as (connection, _):
                send(connection, {"do": "failed"})
        plane.start()
        assert plane.describe().start.kind == "warm"


def test_a_start_that_fails_without_any_memory_leaves_no_holder(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane()
    assert fail_to_start(plane, LARDER_CONTROL_URL="ipc:///proc/none/control.sock") == 1
    wait_for(lambda: not holders(plane.folder), "the holder ends")


def test_a_data_plane_that_dies_while_it_takes_the_memory_leaves_it_to_the_next(plane: Relay) -> None:
    store_alone(plane, 4)
    assert plane.stop() == 0
    with writer(plane.folder, adopt=True):
        with pytest.raises(HolderFailed, match="is taking it over"):
            release(plane.folder, "by an operator")
        second = requests.connect(plane.folder)
        assert second is not None
        with second, pytest.raises(HolderFailed, match="another data plane is connected"):
            answer_to(second, {"do": "take", "version": VERSION, "keep_s": 1, "adopt": True})
    plane.start()
    assert plane.describe().start.kind == "warm"
    assert read_alone(plane, 4) == 4


def test_the_deadline_waits_for_a_data_plane_that_takes_the_memory(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane(dataplane__keep_memory_s="1").start()
    with connect(plane) as client:
        store(client, make.keys(2))
        attachment = client._link.attachment
        assert plane.stop() == 0
        with writer(plane.folder, adopt=True):
            time.sleep(2)  # beyond the deadline: nothing may happen, so there is nothing to wait for
            assert int(attachment.index.header[H_CLOSED]) == 0
        assert "index" in {kind for kind, _ in peeked(plane)}


def test_memory_of_a_live_data_plane_is_not_marked_as_released(socket_dir: Path) -> None:
    """It has lost its connection, and serves on."""
    fd = os.memfd_create("index")
    os.truncate(fd, PAGE_BYTES)
    hold(socket_dir, [("index", 0, fd)])
    with (socket_dir / DATA_PLANE_LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with writer(socket_dir, adopt=True) as (connection, _):
            answer_to(connection, {"do": "stop", "keep_s": 0, "blocks": 1, "bytes": 1})
        with pytest.raises(HolderFailed, match="a data plane uses the state directory"):
            release(socket_dir, "by an operator")
        time.sleep(2 * CHECK_S)  # nothing may happen, so there is nothing to wait for
        assert os.pread(fd, 8, CLOSED_OFFSET) == bytes(8)
    wait_for(lambda: os.pread(fd, 8, CLOSED_OFFSET) != bytes(8), "then it is released")
    os.close(fd)


# ---- the process itself


def test_the_holder_knows_the_word_of_the_index_header_without_numpy() -> None:
    assert CLOSED_OFFSET == H_CLOSED * 8


def test_the_holder_is_small(plane: Relay) -> None:
    (pid,) = holders(plane.folder)
    status = wait_for(lambda: describe(plane.folder) and Path(f"/proc/{pid}/status").read_text(), "the holder answers")
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident is not None
    assert int(resident[1]) <= 15_000


@contextmanager
def external(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A holder that a service manager runs."""
    with subprocess.Popen(standalone_command(requests.PROGRAM, str(folder)), stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_holder_of_a_service_stays_and_is_awaited(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane(dataplane__external_holder="true")
    shutil.rmtree(plane.folder)
    with external(plane.folder) as process:
        wait_for(lambda: (plane.folder / SOCKET_NAME).exists(), "it makes the folder and listens")
        assert plane.folder.stat().st_mode & 0o777 == 0o700
        for blocks in (0, 3):
            plane.start()
            assert holders(plane.folder) == [process.pid]
            assert read_alone(plane) == blocks
            if not blocks:
                store_alone(plane)
            plane.kill()
        released = release(plane.folder, "by an operator")
        assert released is not None
        assert released.files
        described = describe(plane.folder)
        assert described is not None
        assert (described.files, described.seconds_left, described.connected) == (0, None, False)
        with external(plane.folder) as second:
            assert second.wait(60) == 1
            assert second.stderr is not None
            assert b"another holder serves" in second.stderr.read()
        assert process.poll() is None


def test_a_holder_of_a_service_that_is_restarted_gets_everything_again(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane(dataplane__external_holder="true")
    with external(plane.folder):
        wait_for(lambda: (plane.folder / SOCKET_NAME).exists(), "it listens")
        plane.start()
        store_alone(plane)
    plane.wait_logged("holder.lost")
    with external(plane.folder):
        plane.wait_logged("holder.replaced")
        plane.kill()
        plane.start()
        assert read_alone(plane) == 3


def test_a_holder_that_does_not_come_is_replaced_by_an_own_one(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "EXTERNAL_S", 0.2)
    connection = HolderConnection(socket_dir, 1.0, external=True)
    with capture_logs() as lines:
        assert connection.take() == ([], "")
    assert [line["event"] for line in lines] == ["holder.absent"]
    wait_for(lambda: len(holders(socket_dir)) == 1, "an own one runs")
    connection.end()
    wait_for(lambda: not holders(socket_dir), "it ends with its only data plane")


def test_a_holder_of_another_user_is_refused(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(socket_dir / SOCKET_NAME))
        if os.geteuid():
            listener.listen()
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
        else:
            os.seteuid(65534)
            try:
                listener.listen()
            finally:
                os.seteuid(0)
        with pytest.raises(HolderFailed, match=f"runs as uid [0-9]+, expected {os.geteuid()} or 0"):
            describe(socket_dir)


TAKE = {"do": "take", "version": VERSION, "keep_s": 1, "adopt": False}


@pytest.mark.parametrize(
    "messages",
    [
        b"\x00" * 100,
        b"\xff" * 1000,
        b"[" * 50_000,
        b"9" * 50_000,
        b"null",
        ["take"],
        {},
        {"do": None},
        {"do": ["take"]},
        {"do": "no such"},
        {"do": "hold", "memory": []},
        {"do": "stop", "keep_s": 1, "blocks": 1, "bytes": 1},
        {**TAKE, "version": VERSION + 1},
        {**TAKE, "keep_s": "1"},
        {**TAKE, "keep_s": True},
        {**TAKE, "keep_s": -1},
        {"do": "take", "version": 1},
        {"do": "release"},
        {"do": "release", "reason": 5},
    ],
    ids=lambda messages: str(messages)[:40],
)
def test_no_message_of_a_peer_ends_the_holder(plane: Relay, messages: object) -> None:
    store_alone(plane, 2)
    assert plane.stop() == 0
    assert "expected " in ask(plane.folder, messages)["refused"]
    described = describe(plane.folder)
    assert described is not None
    assert (described.blocks, described.bytes, described.connected) == (2, 2 * PAGE_BYTES, False)


@pytest.mark.parametrize(
    "messages",
    [
        {"do": "hold"},
        {"do": "hold", "memory": 1},
        {"do": "hold", "memory": [["index", 0, 1]]},
        {"do": "hold", "memory": [["index", 0]], "last": True},
        {"do": "drop", "memory": [["index"]]},
        {"do": "drop", "memory": [[["index"], 0]]},
        {"do": "serving"},
        {"do": "serving", "named_paths": [1]},
        {"do": "stop"},
        {"do": "stop", "keep_s": 1, "blocks": "x", "bytes": 0},
    ],
    ids=lambda messages: str(messages)[:60],
)
def test_bad_messages_of_a_data_plane_are_refused(plane: Relay, messages: dict[str, Any]) -> None:
    store_alone(plane, 2)
    assert plane.stop() == 0
    with writer(plane.folder) as (connection, _):
        send(connection, messages)
        answer, _ = receive(connection)
        assert answer is not None
        assert ": expected " in answer["refused"]
    plane.start()
    assert read_alone(plane, 2) == 2


def test_a_data_plane_displaces_a_writer_that_does_not_own_the_folder(plane: Relay) -> None:
    store_alone(plane)
    assert plane.stop() == 0
    (pid,) = holders(plane.folder)
    with writer(plane.folder):
        plane.start()
        assert read_alone(plane) == 3
    assert holders(plane.folder) == [pid]


def test_peers_that_do_not_read_or_never_pause_block_no_other(plane: Relay) -> None:
    store_alone(plane)
    assert plane.stop() == 0
    (pid,) = holders(plane.folder)
    done = threading.Event()

    def flood(connection: socket.socket) -> None:
        with suppress(OSError):
            while not done.is_set():
                send(connection, {"do": "describe"})

    with ExitStack() as stack:
        for do in ("peek", "describe", "describe"):
            silent = stack.enter_context(requests.connect(plane.folder))  # type: ignore[arg-type]
            for _ in range(50):
                with suppress(OSError):
                    send(silent, {"do": do}, flags=socket.MSG_DONTWAIT)
        busy = stack.enter_context(requests.connect(plane.folder))  # type: ignore[arg-type]
        flooding = threading.Thread(target=flood, args=(busy,), daemon=True)
        flooding.start()
        plane.start()
        assert read_alone(plane) == 3
        done.set()
    join(flooding)
    assert holders(plane.folder) == [pid]


def test_a_file_that_its_owner_truncates_does_not_end_the_holder(socket_dir: Path) -> None:
    fd = os.memfd_create("index")
    for _ in range(20):
        hold(socket_dir, [("index", 0, fd)])
        os.ftruncate(fd, 0)
        assert release(socket_dir, "by an operator") is not None
    os.close(fd)


@pytest.mark.parametrize("path", ["/dev/shm/a\0b", "/dev/shm/\ud800", "relative", ""])
def test_names_that_are_not_paths_are_refused(plane: Relay, path: str) -> None:
    assert plane.stop() == 0
    plane.start()
    store_alone(plane)
    plane.kill()
    with writer(plane.folder) as (connection, _):
        send(connection, {"do": "serving", "named_paths": [path]})
        answer, _ = receive(connection)
        assert answer == {"refused": "named_paths: expected a list of paths"}
    released = release(plane.folder, "by an operator")
    assert released is not None


@pytest.mark.parametrize("connections", [0, 20])
def test_a_holder_that_was_frozen_hands_the_memory_over(plane: Relay, connections: int) -> None:
    store_alone(plane, 2)
    assert plane.stop() == 0
    (pid,) = holders(plane.folder)
    freeze(pid)
    with ExitStack() as stack:
        for _ in range(connections):
            idle = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            idle.setblocking(False)
            try:
                idle.connect(str(plane.folder / SOCKET_NAME))
            except BlockingIOError:  # the backlog is full, which is the point
                break
        plane.start()
    assert plane.describe().start.kind == "warm"


def test_idle_connections_do_not_keep_a_data_plane_from_the_memory(plane: Relay) -> None:
    store_alone(plane, 2)
    assert plane.stop() == 0
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS + 2):
            idle = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            idle.connect(str(plane.folder / SOCKET_NAME))
            assert describe(plane.folder) is not None
        plane.start()
    assert plane.describe().start.kind == "warm"


NEVER_ANSWERS = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen(int(sys.argv[2]))
print("listens", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("backlog", [0, 16])
def test_a_holder_that_never_answers_is_killed_and_replaced(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch, backlog: int
) -> None:
    monkeypatch.setattr(connection_module, "SILENT_S", 0.5)
    monkeypatch.setattr(requests, "ANSWER_TIMEOUT_S", 0.2)
    arguments = [str(socket_dir / SOCKET_NAME), str(backlog), requests.PROGRAM, str(socket_dir)]
    with subprocess.Popen([sys.executable, "-c", NEVER_ANSWERS, *arguments], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"listens\n"
            connection = HolderConnection(socket_dir, 1.0)
            with capture_logs() as lines:
                memory, reason = connection.take()
            assert memory == []
            assert reason.startswith("the holder of the memory ")
            assert [(line["event"], line["killed"]) for line in lines] == [("memory.not_taken", [process.pid])]
            assert process.wait(60) == -signal.SIGKILL
        finally:
            process.kill()
    wait_for(lambda: len(holders(socket_dir)) == 1, "another one runs")
    connection.end()


def test_more_descriptors_than_fit_a_datagram_arrive_in_order(socket_dir: Path) -> None:
    count = 2 * MAX_FDS_PER_DATAGRAM + 7
    fds = [os.memfd_create(f"m{number}") for number in range(count)]
    for number, fd in enumerate(fds):
        os.write(fd, number.to_bytes(4, "little"))
    hold(socket_dir, [("segment", number, fd) for number, fd in enumerate(fds)])
    wait_for(lambda: len(peeked_in(socket_dir)) == count, "the holder has received all")
    described = requests.peek(socket_dir)
    try:
        assert [number for _, number, _ in described] == list(range(count))
        assert [int.from_bytes(os.pread(fd, 4, 0), "little") for _, _, fd in described] == list(range(count))
    finally:
        close_all([*fds, *(fd for _, _, fd in described)])
        release(socket_dir, "the test is over")


# ---- the record


@pytest.mark.parametrize("content", [b'{"x":' + b"[" * 4000, b'{"blocks":-5}', b"\xff" * 100, b"null", b""])
def test_a_record_that_cannot_be_read_is_none(plane: Relay, content: bytes) -> None:
    assert plane.stop() == 0
    (plane.folder / "cache.json").write_bytes(content)
    plane.start()
    assert plane.describe().start.kind == "first"


def test_a_pipe_instead_of_the_record_does_not_block(plane: Relay) -> None:
    assert plane.stop() == 0
    (plane.folder / "cache.json").unlink(missing_ok=True)
    os.mkfifo(plane.folder / "cache.json")
    plane.start()
    assert plane.describe().start.kind == "first"

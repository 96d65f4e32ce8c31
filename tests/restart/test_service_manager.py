"""systemd holds the memory of a data plane that serves: after a kill the next process has every block."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dataplane.client import Client, attach
from dataplane.protocol.signals import HAND_OVER_SIGNAL, HANDED_OVER_EXIT_CODE
from dataplane.recovery.kept_cache import WARM_STARTS
from tests.dataplane import factories as make
from tests.dataplane.plane import START_TIMEOUT_S, contents, wait_for
from tests.free_port import free_port
from tests.lmcache.client import Client as LMCacheClient
from tests.lmcache.client import prompt
from tests.lmcache.planes import check as check_chunks
from tests.lmcache.planes import mapped, url_of
from tests.lmcache.planes import store as store_chunks
from tests.restart.support.service_manager import Serviced

PAGE_BYTES = 4096
LARGE_BYTES = 1 << 20


@pytest.fixture
def make_plane(socket_dir: Path) -> Iterator[Callable[..., Serviced]]:
    made: list[Serviced] = []

    def new(**settings: str) -> Serviced:
        assert not made
        made.append(Serviced(socket_dir, {"dataplane__keep_memory_s": "60", **settings}))
        return made[-1]

    yield new
    for each in made:
        each.close()
        for process in Path("/proc").iterdir():
            try:
                arguments = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"dataplane.recovery.keeper" in arguments and str(each.folder).encode() in arguments:
                with suppress(ProcessLookupError):  # its time may just be over
                    os.kill(int(process.name), signal.SIGKILL)


@pytest.fixture
def plane(make_plane: Callable[..., Serviced]) -> Serviced:
    return make_plane().begin()


def connect(plane: Serviced) -> Client:
    return attach(plane.socket, [make.space()], timeout_s=30)


def store(client: Client, chain: list[bytes], nbytes: int = PAGE_BYTES) -> int:
    with client.reserve(chain, nbytes) as reservation:
        for at in reservation.writable:
            reservation.view(at)[:] = contents(chain, nbytes)[at]
        return reservation.commit().blocks


def read(plane: Serviced, chain: list[bytes], nbytes: int = PAGE_BYTES) -> int:
    """Leading blocks, each with the right bytes."""
    with connect(plane) as client, client.acquire(chain) as lease:
        for at in range(len(lease)):
            assert bytes(lease.view(at)) == contents(chain, nbytes)[at]
        return len(lease)


def start_of(plane: Serviced) -> tuple[str, str]:
    start = plane.describe().start
    return start.kind, start.reason


def kinds(plane: Serviced) -> set[str]:
    plane.read()
    return {name.partition("-")[0] for name in plane.stored}


def test_a_kill_keeps_every_block_and_lease(plane: Serviced) -> None:
    chain, large = make.keys(5), make.keys(6, "large")
    assert {"index", "books", "names"} <= kinds(plane)
    with connect(plane) as client:
        assert store(client, chain) == 5
        lease = client.acquire(chain)
        for _ in range(2):  # the second process goes on with what the first one was passed and made
            plane.die()
            wait_for(lambda: client.lookup(chain) == 5 and not client.connected, "the loss is noticed")
            assert {"segment", "area"} <= kinds(plane)
            assert bytes(lease.view(2)) == contents(chain, PAGE_BYTES)[2]
            plane.begin()
            assert start_of(plane)[0] == "warm"
            assert any(each.startswith("STATUS=Serving; kept ") for each in plane.said)
            wait_for(lambda: client.lookup(chain) == 5 and client.connected, "the client attaches again")
            segments = len(plane.stored)
            if not read(plane, large, LARGE_BYTES):
                assert store(client, large, LARGE_BYTES) == 6
                plane.read()
                assert len(plane.stored) > segments
        lease.release()
    assert read(plane, chain) == 5
    assert read(plane, large, LARGE_BYTES) == 6


def test_memory_that_is_freed_leaves_the_store(plane: Serviced) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
        assert "area" in kinds(plane)
    wait_for(lambda: "area" not in kinds(plane), "the area of an engine that left is removed")


def test_a_restart_goes_by_the_keeper_and_the_store_ends_with_the_process(plane: Serviced) -> None:
    chain = make.keys(3)
    with connect(plane) as client:
        store(client, chain)
    for _ in range(2):
        assert plane.end() == 0
        assert plane.stored == {}
        assert "STOPPING=1" in plane.said
        plane.begin()
        assert start_of(plane)[0] == "warm"
    assert read(plane, chain) == 3
    plane.die()
    plane.begin()  # what came from the keeper is in the store
    assert start_of(plane)[0] == "warm"
    assert read(plane, chain) == 3


def test_the_keeper_precedes_the_store_after_a_kill_in_the_middle_of_a_stop(plane: Serviced) -> None:
    chain = make.keys(3)
    with connect(plane) as client:
        store(client, chain)
    plane.read()
    stored = {name: os.dup(fd) for name, fd in plane.stored.items()}
    assert plane.end() == 0
    plane.stored |= stored
    plane.begin()
    assert start_of(plane)[0] == "warm"
    assert {name: os.fstat(fd).st_ino for name, fd in plane.stored.items() if "area" not in name} == {
        name: os.fstat(fd).st_ino for name, fd in stored.items() if "area" not in name
    }
    assert read(plane, chain) == 3
    plane.die()
    plane.begin()
    assert read(plane, chain) == 3


@pytest.mark.parametrize("keep_s", ["0", "0.3"])
def test_released_memory_does_not_come_back_from_the_store(
    make_plane: Callable[..., Serviced], keep_s: str
) -> None:
    plane = make_plane(dataplane__keep_memory_s=keep_s).begin()
    with connect(plane) as client:
        store(client, make.keys(3))
    plane.read()
    stored = {name: os.dup(fd) for name, fd in plane.stored.items()}
    inodes = {os.fstat(fd).st_ino for fd in stored.values()}
    assert plane.end() == 0
    assert plane.stored == {}
    wait_for(lambda: not (plane.folder / "keeper.sock").exists(), "the keeper's time is over")
    plane.stored |= stored  # a unit with FileDescriptorStorePreserve=, whose data plane could not remove them
    plane.begin()
    kind, reason = start_of(plane)
    assert kind == "cold"
    assert "released" in reason
    assert not inodes & {os.fstat(fd).st_ino for fd in plane.stored.values()}, "the old memory is free"


def test_a_data_plane_without_time_to_keep_memory_outlives_a_kill(
    make_plane: Callable[..., Serviced],
) -> None:
    plane = make_plane(dataplane__keep_memory_s="0").begin()
    with connect(plane) as client:
        store(client, make.keys(3))
    plane.die()
    plane.begin()
    assert read(plane, make.keys(3)) == 3


def test_the_hand_over_signal_leaves_the_memory_in_the_store(plane: Serviced) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
    plane.read_all()
    plane.signal(HAND_OVER_SIGNAL)
    assert plane.process is not None
    assert plane.process.wait(60) == HANDED_OVER_EXIT_CODE
    plane.read()
    plane.begin()
    assert read(plane, make.keys(3)) == 3


def test_a_kill_keeps_the_connections_of_lmcache_clients(make_plane: Callable[..., Serviced]) -> None:
    plane = make_plane(lmcache_port=str(free_port())).begin()
    with LMCacheClient(url_of(plane)) as client, mapped(client.register()) as segment:
        client.answered_twice = True
        tokens = prompt(1)
        assert store_chunks(client, segment, tokens, 1, "r1")
        for request in ("r2", "r3"):
            plane.die()
            assert {"named", "listener", "connection"} <= kinds(plane)
            plane.begin()
            assert check_chunks(client, segment, tokens, 1, request)
    assert plane.end() == 0
    assert plane.stored == {}


def test_starts_that_die_give_the_memory_up(plane: Serviced) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
    plane.die()
    (plane.folder / "starts").write_text(str(WARM_STARTS - 1))
    plane.begin()
    assert start_of(plane)[0] == "warm"
    wait_for(lambda: not (plane.folder / "starts").exists(), "starts that die are counted anew")
    plane.die()
    (plane.folder / "starts").write_text(str(WARM_STARTS))
    plane.begin()
    kind, reason = start_of(plane)
    assert (kind, f"{WARM_STARTS} starts" in reason) == ("cold", True)
    with connect(plane) as client:
        assert store(client, make.keys(3)) == 3


def test_memory_of_other_settings_is_a_cold_start_and_leaves_the_store(plane: Serviced) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
    plane.die()
    inodes = {os.fstat(fd).st_ino for fd in plane.stored.values()}
    plane.settings["dataplane__max_blocks"] = "128"
    plane.begin()
    kind, reason = start_of(plane)
    assert (kind, "block descriptors" in reason) == ("cold", True)
    assert not inodes & {os.fstat(fd).st_ino for fd in plane.stored.values()}


BAD: dict[str, Callable[[dict[str, int]], list[tuple[str, int]]]] = {
    "unknown names": lambda stored: [("stored", stored["books-0"]), ("http", 0), ("segment--1", 1)],
    "no names": lambda stored: [("", fd) for fd in stored.values()],
    "the index is missing": lambda stored: [each for each in stored.items() if each[0] != "index-0"],
    "swapped": lambda stored: [("index-0", stored["books-0"]), ("books-0", stored["index-0"])],
    "one for all": lambda stored: [(name, stored["index-0"]) for name in stored],
    "no memory": lambda stored: [(name, 1) for name in stored],
    "no sockets": lambda stored: [("listener-0", stored["index-0"]), ("connection-7", 1)],
    "huge number": lambda stored: [*stored.items(), (f"segment-{10**17}", 1)],
    "too huge": lambda stored: [*stored.items(), (f"segment-{10**40}", stored["books-0"])],
    "two of a name": lambda stored: [*stored.items(), ("segment-1", stored["index-0"])],
    "two indexes": lambda stored: [*stored.items(), ("index-1", stored["index-0"])],
}


@pytest.mark.parametrize("what", BAD)
def test_bad_descriptors_do_not_stop_the_start(plane: Serviced, what: str) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
    plane.die()
    plane.begin(BAD[what](plane.stored))
    with connect(plane) as client:
        assert store(client, make.keys(2, "more")) == 2
    plane.read()
    plane.die()
    plane.begin()
    assert start_of(plane)[0] == "warm"
    assert read(plane, make.keys(2, "more")) == 2


@pytest.mark.parametrize(
    "environment",
    [
        {"LISTEN_FDS": "x"},
        {"LISTEN_FDS": "-1"},
        {"LISTEN_FDS": "0"},
        {"LISTEN_FDS": "9" * 5000},
        {"LISTEN_FDS": "100000"},
        {"LISTEN_FDS": "2"},
        {"LISTEN_FDNAMES": ""},
        {"LISTEN_FDNAMES": ":::"},
        {"LISTEN_FDNAMES": "index-0\udcff:" * 100},
        {"LISTEN_PID": "1"},
        {"LISTEN_PID": "x"},
        {"FDSTORE": "many"},
    ],
    ids=lambda environment: "=".join(*environment.items())[:24],
)
def test_bad_variables_do_not_stop_the_start(plane: Serviced, environment: dict[str, str]) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
    plane.die()
    plane.environment = environment
    plane.begin()
    with connect(plane) as client:
        assert store(client, make.keys(2, "more")) == 2


@pytest.mark.parametrize("address", ["vsock:2:1", "/nowhere/notify", "relative", "@larder-nothing-listens"])
def test_an_unreachable_service_manager_does_not_stop_the_start(
    make_plane: Callable[..., Serviced], address: str
) -> None:
    plane = make_plane()
    plane.environment = {"NOTIFY_SOCKET": address}
    plane.launch()
    wait_for(plane._accepts, "it serves", START_TIMEOUT_S)
    with connect(plane) as client:
        assert store(client, make.keys(2)) == 2
    assert plane.end() == 0


def test_a_service_manager_that_is_slow_gets_everything_later(make_plane: Callable[..., Serviced]) -> None:
    plane = make_plane()
    plane.launch()
    plane.fill()
    wait_for(plane._accepts, "it serves all the same", START_TIMEOUT_S)
    with connect(plane) as client:
        assert store(client, make.keys(6), LARGE_BYTES) == 6
    wait_for(lambda: plane.is_said("READY=1"), "the rest arrives")
    plane.die()
    assert {"index", "books", "names", "segment"} <= kinds(plane), "the memory, too"
    plane.begin()
    assert read(plane, make.keys(6), LARGE_BYTES) == 6


def test_the_keeper_holds_the_memory_until_the_store_has_it(plane: Serviced) -> None:
    chain = make.keys(6)
    with connect(plane) as client:
        store(client, chain, LARGE_BYTES)
    assert plane.end() == 0
    plane.fill()
    plane.launch([])
    wait_for(plane._accepts, "it serves", START_TIMEOUT_S)
    assert read(plane, chain, LARGE_BYTES) == 6
    assert (plane.folder / "keeper.sock").exists()
    plane.die()
    assert "index-0" not in plane.stored
    plane.begin()
    assert start_of(plane)[0] == "warm"
    wait_for(lambda: not (plane.folder / "keeper.sock").exists(), "the keeper ends")
    plane.die()
    plane.begin()
    assert read(plane, chain, LARGE_BYTES) == 6


def test_a_stop_before_the_store_has_the_memory_keeps_it(plane: Serviced) -> None:
    chain = make.keys(6)
    with connect(plane) as client:
        store(client, chain, LARGE_BYTES)
    assert plane.end() == 0
    plane.fill()
    plane.launch([])
    wait_for(plane._accepts, "it serves", START_TIMEOUT_S)
    assert plane.end() == 0
    plane.begin([])
    assert start_of(plane)[0] == "warm"
    assert read(plane, chain, LARGE_BYTES) == 6


def test_a_store_that_is_too_small_is_reported(make_plane: Callable[..., Serviced]) -> None:
    plane = make_plane()
    plane.environment = {"FDSTORE": "2"}
    plane.begin()
    wait_for(lambda: '"fd_store.full"' in plane.log(), "the log says it")
    assert plane.log().count('"fd_store.full"') == 1


def test_children_get_neither_variables_nor_descriptors(plane: Serviced) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
    plane.die()
    plane.begin()
    assert plane.end() == 0

    def keeper() -> Any:
        for process in Path("/proc").iterdir():
            try:
                if str(plane.folder).encode() in (process / "cmdline").read_bytes().split(b"\0"):
                    return process
            except OSError:
                continue
        return None

    environ = wait_for(keeper, "the keeper runs").joinpath("environ").read_bytes().split(b"\0")
    assert not [each for each in environ if each.startswith((b"NOTIFY_", b"LISTEN_", b"FDSTORE"))]

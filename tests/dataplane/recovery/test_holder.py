"""The holder as a process: its peers, its messages, its limits, and holders that a service manager runs."""

from __future__ import annotations

import fcntl
import json
import os
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

from dataplane.base.child_command import standalone_command
from dataplane.holding import connection as connection_module
from dataplane.holding import requests
from dataplane.holding.connection import HolderConnection
from dataplane.holding.folder import DATA_PLANE_LOCK_NAME, SOCKET_NAME
from dataplane.holding.memory import CLOSED_OFFSET
from dataplane.holding.messages import MAX_FDS_PER_DATAGRAM, VERSION, close_all, receive, send
from dataplane.holding.process import CHECK_S, MAX_CONNECTIONS, WARM_STARTS
from dataplane.holding.requests import HolderFailed, answer_to, describe, release
from dataplane.protocol.layout import H_CLOSED
from tests.dataplane.blocks import PAGE_BYTES, read_alone, store_alone
from tests.dataplane.plane import wait_for
from tests.dataplane.recovery.support.relay import MemoryFile, Relay, hold, peeked, writer
from tests.ipc.descriptors import free_descriptors, opened
from tests.threads import join

STORED = 3


@pytest.fixture
def stopped(plane: Relay) -> Relay:
    """A data plane that stopped and left blocks to its holder."""
    store_alone(plane, STORED)
    assert plane.stop() == 0
    return plane


def goes_on(plane: Relay) -> bool:
    """Whether the next data plane has all blocks, from the same holder."""
    holders = plane.holders()
    plane.start()
    return read_alone(plane, STORED) == STORED and plane.holders() == holders


@pytest.fixture
def index(socket_dir: Path) -> Iterator[int]:
    """The descriptor of an index of which a holder without a data plane has a duplicate."""
    fd = os.memfd_create("index")
    os.truncate(fd, PAGE_BYTES)
    hold(socket_dir, [("index", 0, fd)])
    yield fd
    os.close(fd)
    requests.signal_holders(socket_dir, signal.SIGKILL)


def is_closed(index: int) -> bool:
    return os.pread(index, 8, CLOSED_OFFSET) != bytes(8)


# ---- starts


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


def test_many_descriptors_arrive_in_order_and_stay_if_a_start_may_not_open_as_many(socket_dir: Path) -> None:
    count = 3 * MAX_FDS_PER_DATAGRAM + 7
    fds = [os.memfd_create(f"m{number}") for number in range(count)]
    for number, fd in enumerate(fds):
        os.write(fd, number.to_bytes(4, "little"))
    hold(socket_dir, [("segment", number, fd) for number, fd in enumerate(fds)])
    for _ in range(WARM_STARTS + 1):
        ran = subprocess.run(
            [sys.executable, "-c", TAKES, str(socket_dir)], capture_output=True, text=True, check=False, timeout=60
        )
        assert ran.stdout == "Too many open files\n", ran.stderr
    second = HolderConnection(socket_dir, 60)
    taken, failure = second.take()
    assert failure == ""
    assert [number for _, number, _ in taken] == list(range(count))
    assert [int.from_bytes(os.pread(fd, 4, 0), "little") for _, _, fd in taken] == list(range(count))
    second.list_all([(kind, number, MemoryFile(fd)) for kind, number, fd in taken])
    (pid,) = requests.signal_holders(socket_dir, 0)
    wait_for(lambda: second.is_current and len(peeked(socket_dir)) == count, "it has all again")
    assert len(os.listdir(f"/proc/{pid}/fd")) < count + 30, "none of them twice"
    second.end()
    close_all([*fds, *(each for _, _, each in taken)])
    release(socket_dir, "the test is over")


def test_memory_of_a_live_data_plane_is_not_marked_as_released(socket_dir: Path, index: int) -> None:
    """It has lost its connection, and serves on."""
    with (socket_dir / DATA_PLANE_LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with writer(socket_dir, adopt=True) as (connection, _):
            answer_to(connection, {"do": "stop", "keep_s": 0, "blocks": 1, "bytes": 1})
        with pytest.raises(HolderFailed, match="a data plane uses the state directory"):
            release(socket_dir, "by an operator")
        time.sleep(2 * CHECK_S)  # nothing may happen, so there is nothing to wait for
        assert not is_closed(index)
    wait_for(lambda: is_closed(index), "then it is released")


# ---- the process itself


def test_the_holder_knows_the_word_of_the_index_header_without_numpy() -> None:
    assert CLOSED_OFFSET == H_CLOSED * 8


def imports(*arguments: str) -> int:
    """Return the number of modules that a bare interpreter imports for a program."""
    command = [sys.executable, "-X", "importtime", "-I", "-S", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return ran.stderr.count("import time:")


def test_the_holder_is_small() -> None:
    of_holder = imports(requests.PROGRAM, "--help") - imports("-c", "pass")
    assert 0 < of_holder < 75, "54 with Python 3.11; asyncio alone takes 106"


def test_the_holder_maps_nothing_of_the_memory(plane: Relay) -> None:
    store_alone(plane)
    (holder,) = plane.holders()
    assert len(peeked(plane.folder)) > 1
    of_plane, of_holder = (Path(f"/proc/{pid}/maps").read_text() for pid in (plane.pid, holder))
    assert "/memfd:" in of_plane
    assert "/memfd:" not in of_holder


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
            assert plane.holders() == [process.pid]
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
    wait_for(lambda: len(requests.signal_holders(socket_dir, 0)) == 1, "an own one runs")
    connection.end()
    wait_for(lambda: not requests.signal_holders(socket_dir, 0), "it ends with its only data plane")


@pytest.mark.parametrize("free", range(7))
def test_a_lost_holder_is_replaced_once_there_are_descriptors(socket_dir: Path, free: int) -> None:
    connection = HolderConnection(socket_dir, 1.0)
    assert connection.take() == ([], "")
    before = opened()
    wait_for(lambda: requests.signal_holders(socket_dir, signal.SIGKILL), "it runs, and is killed")
    with free_descriptors(free):
        connection.step()
        assert requests.signal_holders(socket_dir, 0) == []
    assert opened() == before - 1, "all are closed, as is the connection"
    connection._replace(socket_dir)
    assert opened() == before
    connection.end()
    requests.signal_holders(socket_dir, signal.SIGKILL)


# ---- peers


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


TAKE: dict[str, Any] = {"do": "take", "version": VERSION, "keep_s": 1, "adopt": False}
BAD_MESSAGES: list[Any] = [
    *(b"\x00" * 100, b"\xff" * 1000, b"[" * 50_000, b"9" * 50_000, b"null"),
    *(["take"], {}, {"do": None}, {"do": ["take"]}, {"do": "no such"}),
    {"do": "hold", "memory": []},
    {"do": "stop", "keep_s": 1, "blocks": 1, "bytes": 1},
    {**TAKE, "version": VERSION + 1},
    *({**TAKE, "keep_s": keep_s} for keep_s in ("1", True, -1)),
    {"do": "take", "version": 1},
    {"do": "release"},
    {"do": "release", "reason": 5},
]
BAD_MESSAGES_OF_A_WRITER: list[dict[str, Any]] = [
    *({"do": "hold", **memory} for memory in ({}, {"memory": 1}, {"memory": [["index", 0, 1]]})),
    {"do": "hold", "memory": [["index", 0]], "last": True},
    {"do": "drop", "memory": [["index"]]},
    {"do": "drop", "memory": [[["index"], 0]]},
    {"do": "serving"},
    *({"do": "serving", "named_paths": [path]} for path in (1, "/dev/shm/a\0b", "/dev/shm/\ud800", "relative", "")),
    {"do": "stop"},
    {"do": "stop", "keep_s": 1, "blocks": "x", "bytes": 0},
]


def test_no_message_of_a_peer_ends_the_holder_or_its_memory(socket_dir: Path, index: int) -> None:
    for message in BAD_MESSAGES:
        connection = requests.connect(socket_dir)
        assert connection is not None
        with connection:
            connection.settimeout(60)
            connection.send(message if isinstance(message, bytes) else json.dumps(message).encode())
            answer, _ = receive(connection)
        assert answer is not None
        assert "expected " in answer["refused"], message
    for message in BAD_MESSAGES_OF_A_WRITER:
        with writer(socket_dir) as (connection, _):
            send(connection, message)
            answer, _ = receive(connection)
        assert answer is not None
        assert ": expected " in answer["refused"], message
    assert peeked(socket_dir) == [("index", 0)]
    described = describe(socket_dir)
    assert described is not None
    assert not described.connected
    assert not is_closed(index)
    assert release(socket_dir, "by an operator") is not None
    assert is_closed(index)


def test_a_data_plane_displaces_a_writer_that_does_not_own_the_folder(stopped: Relay) -> None:
    with writer(stopped.folder):
        assert goes_on(stopped)


def test_peers_that_do_not_read_or_never_pause_block_no_other(stopped: Relay) -> None:
    done = threading.Event()

    def flood(connection: socket.socket) -> None:
        with suppress(OSError):
            while not done.is_set():
                send(connection, {"do": "describe"})

    with ExitStack() as stack:
        for do in ("peek", "describe", "describe"):
            silent = stack.enter_context(requests.connect(stopped.folder))  # type: ignore[arg-type]
            for _ in range(50):
                with suppress(OSError):
                    send(silent, {"do": do}, flags=socket.MSG_DONTWAIT)
        busy = stack.enter_context(requests.connect(stopped.folder))  # type: ignore[arg-type]
        flooding = threading.Thread(target=flood, args=(busy,), daemon=True)
        flooding.start()
        assert goes_on(stopped)
        done.set()
    join(flooding)


def test_a_file_that_its_owner_truncates_does_not_end_the_holder(socket_dir: Path) -> None:
    fd = os.memfd_create("index")
    for _ in range(20):
        hold(socket_dir, [("index", 0, fd)])
        os.ftruncate(fd, 0)
        assert release(socket_dir, "by an operator") is not None
    os.close(fd)


@pytest.mark.parametrize(("frozen", "connections"), [(True, 0), (True, 20), (False, MAX_CONNECTIONS + 2)])
def test_a_holder_that_was_frozen_or_has_idle_peers_hands_the_memory_over(
    stopped: Relay, frozen: bool, connections: int
) -> None:
    if frozen:
        (pid,) = requests.signal_holders(stopped.folder, signal.SIGSTOP)
        wait_for(lambda: "State:\tT" in Path(f"/proc/{pid}/status").read_text(), "the holder stops")
    with ExitStack() as stack:
        for _ in range(connections):
            idle = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            idle.setblocking(False)
            try:
                idle.connect(str(stopped.folder / SOCKET_NAME))
            except BlockingIOError:  # the backlog of one that is frozen is full, which is the point
                break
            assert frozen or describe(stopped.folder) is not None
        assert goes_on(stopped)


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
    wait_for(lambda: len(requests.signal_holders(socket_dir, 0)) == 1, "another one runs")
    connection.end()

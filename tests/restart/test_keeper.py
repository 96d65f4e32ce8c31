"""A data plane that is stopped hands its memory to a keeper, and the next one has every block."""

from __future__ import annotations

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
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.supervisor import memory_keeper
from app.supervisor.memory_keeper import KeeperUnavailable
from dataplane.client import Client, attach
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.engine import MAX_FDS_PER_DATAGRAM, HeldMemory
from dataplane.protocol.keeper import (
    SOCKET_NAME,
    DescribeMemory,
    Keep,
    KeeperRefused,
    Keeping,
    Release,
    Released,
    Reply,
    Take,
    Taken,
)
from dataplane.protocol.keeper import VERSION as KEEPER_VERSION
from dataplane.protocol.layout import H_CLOSED, H_PID
from dataplane.protocol.signals import HAND_OVER_SIGNAL, HANDED_OVER_EXIT_CODE, RELEASE_SIGNAL
from dataplane.recovery import keeper as keeper_module
from dataplane.recovery import kept as kept_module
from dataplane.recovery import kept_cache
from dataplane.recovery.kept import KeeperFailed, KeptMemory, hand_over
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, contents, wait_for
from tests.free_port import free_port
from tests.lmcache.client import Client as LMCacheClient
from tests.lmcache.client import prompt
from tests.lmcache.planes import FOLDER as SHM
from tests.lmcache.planes import check as check_chunks
from tests.lmcache.planes import gateway_plane, mapped, url_of
from tests.lmcache.planes import store as store_chunks
from tests.require import require
from tests.restart.support.harness import Supervised
from tests.restart.support.load import engine, read_line
from tests.threads import join

PAGE_BYTES = 4096
_replies = decoder(Reply)


class Stopped(Plane):
    """A data plane whose memory outlives its stop."""

    def start(self) -> Stopped:
        super().start()
        return self

    def logged(self, event: str) -> list[dict[str, Any]]:
        found = []
        for line in self.log().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("event") == event:
                found.append(entry)
        return found

    def ask_keeper(self, message: object) -> Reply | None:
        """The keeper's answer; None when there is no keeper, or it ends."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(60)
            try:
                connection.connect(str(self.folder / SOCKET_NAME))
                connection.send(message if isinstance(message, bytes) else encode(message))
                answer = connection.recv(4096)
            except OSError:
                return None
            return decode(_replies, answer) if answer else None

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "cache.json").read_text())
        return found


def keepers(folder: Path) -> list[int]:
    """Processes that hold memory for this folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if b"dataplane.recovery.keeper" in arguments and str(folder).encode() in arguments:
            found.append(int(process.name))
    return found


@pytest.fixture
def make_plane(socket_dir: Path) -> Iterator[Callable[..., Stopped]]:
    made: list[Stopped] = []

    def new(**settings: str) -> Stopped:
        made.append(Stopped(socket_dir, {"dataplane__keep_memory_s": "60", **settings}))
        return made[-1]

    yield new
    for each in made:
        each.kill()
    for pid in keepers(socket_dir):
        with suppress(ProcessLookupError):  # its time may just be over
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def plane(make_plane: Callable[..., Stopped]) -> Stopped:
    return make_plane().start()


def connect(plane: Plane) -> Client:
    return attach(plane.socket, [make.space()], timeout_s=30)


def store(client: Client, chain: list[bytes], tenant: str = "") -> int:
    with client.reserve(chain, PAGE_BYTES, tenant=tenant) as reservation:
        for at in reservation.writable:
            reservation.view(at)[:] = contents(chain, PAGE_BYTES)[at]
        return reservation.commit().blocks


def read(client: Client, chain: list[bytes]) -> int:
    """Leading blocks, each with the right bytes."""
    with client.acquire(chain) as lease:
        for at in range(len(lease)):
            assert bytes(lease.view(at)) == contents(chain, PAGE_BYTES)[at]
        return len(lease)


def connected(client: Client) -> bool:
    client.lookup(make.keys(1))
    return client.connected


def test_the_keeper_knows_the_words_of_the_index_header_without_numpy() -> None:
    assert (H_PID * 8, H_CLOSED * 8) == (keeper_module.PID_OFFSET, keeper_module.CLOSED_OFFSET)


def test_more_descriptors_than_fit_a_datagram_arrive_in_order() -> None:
    count = 2 * MAX_FDS_PER_DATAGRAM + 7
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, ExitStack() as stack:
        fds = []
        for number in range(count):
            fd = os.memfd_create(f"m{number}")
            stack.callback(os.close, fd)
            os.write(fd, number.to_bytes(4, "little"))
            fds.append(fd)
        theirs.settimeout(60)
        sending = threading.Thread(
            target=keeper_module.send,
            args=(ours, [(HeldMemory("segment", number, 4), fd) for number, fd in enumerate(fds)]),
            daemon=True,
        )
        sending.start()
        received = keeper_module.receive(theirs)
        join(sending)
        for _, fd in received:
            stack.callback(os.close, fd)
        assert [each.number for each, _ in received] == list(range(count))
        assert [int.from_bytes(os.pread(fd, 4, 0), "little") for _, fd in received] == list(range(count))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_and_a_start_keep_every_block_lease_and_view(plane: Stopped, number: int) -> None:
    chain = make.keys(5)
    with connect(plane) as client:
        assert store(client, chain, "a") == 5
        lease = client.acquire(chain)
        view, world = lease.view(2), client._link.world
        plane.signal(number)
        assert plane.process.wait(60) == 0
        (kept,) = plane.logged("memory.kept")
        assert (kept["blocks"], kept["bytes"], kept["seconds"]) == (5, 5 * PAGE_BYTES, 60.0)
        wait_for(lambda: not connected(client), "the loss is noticed")
        assert read(client, chain) == 5, "engines read on while nothing serves"
        assert not client.reserve(make.keys(1, "refused"), PAGE_BYTES).number
        plane.start()
        wait_for(lambda: connected(client), "the client attaches again")
        assert client._link.world is world, "with the same memory"
        assert bytes(view) == contents(chain, PAGE_BYTES)[2]
        assert store(client, make.keys(3, "new")) == 3
        stats = plane.describe()
        assert {each.tenant: each.blocks for each in stats.tenants} == {"a": 5, "_default": 3}
        start = stats.start
        assert (start.kind, start.blocks, start.bytes, start.lost_blocks) == ("warm", 5, 5 * PAGE_BYTES, 0)
        lease.release()
    wait_for(lambda: not keepers(plane.folder), "the keeper ends when the memory is served")
    assert plane.ask_keeper(DescribeMemory()) is None


def freeze(pid: int) -> None:
    """SIGSTOP; returns when the process has stopped."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: "State:\tT" in Path(f"/proc/{pid}/status").read_text(), "the process stops")


def has_pending(pid: int, number: int) -> bool:
    """Whether a signal waits for a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("ShdPnd:")[2].split()[0], 16) >> number - 1 & 1)


@pytest.mark.parametrize("arguments", [(), ("--no-spare",)])
def test_a_data_plane_that_is_killed_while_its_supervisor_stops_loses_nothing(
    plane: Stopped, arguments: tuple[str, ...]
) -> None:
    chain = make.keys(4)
    assert plane.stop() == 0
    supervised = Supervised(plane.folder, plane.settings, arguments=arguments).start()
    try:
        with connect(plane) as client:
            store(client, chain)
        if not arguments:
            wait_for(supervised.spare_waits, "the standby waits")
        pid = supervised.plane_pid
        freeze(pid)
        supervised.signal(signal.SIGTERM)
        wait_for(lambda: has_pending(pid, signal.SIGTERM), "the data plane is asked to end")
        os.kill(pid, signal.SIGKILL)
        assert supervised.process is not None
        assert supervised.process.wait(60) == 0
    finally:
        supervised.kill()
    plane.start()
    assert plane.describe().start.kind == "warm"
    with connect(plane) as client:
        assert read(client, chain) == 4


def test_a_keeper_of_another_user_is_refused(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        refusal = f"runs as uid [0-9]+, expected {os.geteuid()} or 0"
        with pytest.raises(KeeperFailed, match=refusal):
            KeptMemory.find(socket_dir)
        with pytest.raises(KeeperUnavailable, match=refusal):
            memory_keeper.describe(socket_dir)


def test_two_stops_in_a_row_keep_the_blocks(plane: Stopped) -> None:
    chain = make.keys(4)
    with connect(plane) as client:
        store(client, chain)
    for _ in range(2):
        assert plane.stop() == 0
        plane.start()
        assert plane.describe().start.kind == "warm"
    with connect(plane) as client:
        assert read(client, chain) == 4


def test_nothing_is_kept_of_an_empty_cache(plane: Stopped) -> None:
    assert plane.stop() == 0
    assert keepers(plane.folder) == []
    plane.start()
    assert plane.describe().start.kind == "first"


def test_without_time_to_keep_it_the_memory_is_released(make_plane: Callable[..., Stopped]) -> None:
    plane = make_plane(dataplane__keep_memory_s="0").start()
    with connect(plane) as client:
        store(client, make.keys(3))
        assert plane.stop() == 0
        wait_for(lambda: not connected(client), "the loss is noticed")
        assert client.lookup(make.keys(3)) == 0, "engines stop reading it"
    assert keepers(plane.folder) == []
    plane.start()
    start = plane.describe().start
    assert (start.kind, start.released, start.lost_blocks) == ("cold", True, 3)
    assert "keep_memory_s = 0" in start.reason


def test_the_memory_is_released_when_its_time_is_over(make_plane: Callable[..., Stopped]) -> None:
    plane = make_plane(dataplane__keep_memory_s="0.5").start()
    with connect(plane) as client:
        store(client, make.keys(3))
        world = client._link.world
        assert plane.stop() == 0
        wait_for(lambda: int(world.index.header[H_CLOSED]), "engines learn that it is released")
        assert client.lookup(make.keys(3)) == 0 or not client.connected
    wait_for(lambda: not keepers(plane.folder), "the keeper ends")
    record = plane.record()
    assert "no data plane started within 0.5 s" in record["reason"]
    plane.start()
    start = plane.describe().start
    assert (start.kind, start.released, start.lost_blocks) == ("cold", False, 3)
    assert start.reason == record["reason"]
    (line,) = wait_for(lambda: plane.logged("cache.started_cold"), "a cold cache is logged")
    assert (line["lost_blocks"], line["level"]) == (3, "warning")


def test_a_keeper_that_is_killed_makes_the_next_start_cold_and_says_so(plane: Stopped) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
    assert plane.stop() == 0
    for pid in keepers(plane.folder):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not keepers(plane.folder), "it is gone")
    plane.start()
    start = plane.describe().start
    assert (start.kind, start.lost_blocks, start.lost_bytes) == ("cold", 3, 3 * PAGE_BYTES)
    assert start.reason == "every process that held the memory of the previous data plane ended"


def test_a_keeper_whose_state_directory_is_deleted_releases_the_memory(
    make_plane: Callable[..., Stopped],
) -> None:
    plane = make_plane(lmcache_port=str(free_port()), dataplane__keep_memory_s="600")
    plane.folder /= "state"
    plane.folder.mkdir()
    plane.start()
    pattern = f"*{plane.environ['LARDER_DATAPLANE__LMCACHE_SHM_NAME']}"
    with connect(plane) as client:
        store(client, make.keys(3))
        world = client._link.world
        assert plane.stop() == 0
        (pid,) = keepers(plane.folder)
        assert list(SHM.glob(pattern))
        shutil.rmtree(plane.folder)
        try:
            wait_for(lambda: not keepers(plane.folder), "the keeper ends")
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert int(world.index.header[H_CLOSED]) == 1
    assert not list(SHM.glob(pattern))


def test_a_keeper_whose_state_directory_is_renamed_keeps_the_memory(
    make_plane: Callable[..., Stopped],
) -> None:
    plane = make_plane()
    plane.folder /= "state"
    plane.folder.mkdir()
    plane.start()
    with connect(plane) as client:
        store(client, make.keys(3))
    assert plane.stop() == 0
    plane.folder = plane.folder.rename(plane.folder.parent / "renamed")
    time.sleep(2 * keeper_module.CHECK_S)  # nothing may happen, so there is nothing to wait for
    plane.start()
    assert plane.describe().start.kind == "warm"


@pytest.mark.filterwarnings("ignore:.*Popen.__del__")  # the second keeper is a child of this process
def test_a_keeper_whose_memory_another_keeper_holds_ends_and_leaves_it(plane: Stopped) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
        world = client._link.world
        assert plane.stop() == 0
        (first,) = keepers(plane.folder)
        taker = KeptMemory.find(plane.folder)
        assert taker is not None
        files = [(kind, number, fd, os.fstat(fd).st_size) for kind, number, fd in taker.files()]
        keep = Keep(KEEPER_VERSION, 60, 3, 3 * PAGE_BYTES, plane.pid, taker.keeping.memory)
        second = hand_over(plane.folder, keep, files)
        for _, _, fd, _ in files:
            os.close(fd)
        taker.close()
        wait_for(lambda: keepers(plane.folder) == [second], "the first keeper ends")
        assert second != first
        assert int(world.index.header[H_CLOSED]) == 0
    plane.start()
    assert plane.describe().start.kind == "warm"


def test_a_keeper_that_is_stopped_releases_the_memory(plane: Stopped) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
        world = client._link.world
        assert plane.stop() == 0
        (pid,) = keepers(plane.folder)
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: int(world.index.header[H_CLOSED]), "engines learn that it is released")
    wait_for(lambda: not keepers(plane.folder), "it ends")
    assert "SIGTERM" in plane.record()["reason"]
    assert not (plane.folder / SOCKET_NAME).exists()


def test_the_release_signal_releases_and_the_hand_over_signal_leaves_it_to_holders(plane: Stopped) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
        world = client._link.world
        plane.signal(RELEASE_SIGNAL)
        assert plane.process.wait(60) == 0
        assert int(world.index.header[H_CLOSED]) == 1
    plane.start()
    with connect(plane) as client:
        store(client, make.keys(3))
        world = client._link.world
        plane.signal(HAND_OVER_SIGNAL)
        assert plane.process.wait(60) == HANDED_OVER_EXIT_CODE
        assert int(world.index.header[H_CLOSED]) == 0
    assert keepers(plane.folder) == []


def test_memory_of_other_settings_is_not_adopted_and_what_is_lost_is_said(
    plane: Stopped, make_plane: Callable[..., Stopped]
) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
        world = client._link.world
        assert plane.stop() == 0
        other = make_plane(dataplane__max_blocks="128").start()
        wait_for(lambda: int(world.index.header[H_CLOSED]) == 1, "engines let the old memory go")
    start = other.describe().start
    assert (start.kind, start.released, start.lost_blocks) == ("cold", False, 3)
    assert "block descriptors, the settings say 128" in start.reason
    wait_for(lambda: not keepers(plane.folder), "the keeper ends")


def test_a_data_plane_that_dies_while_it_takes_the_memory_leaves_it_to_the_next(plane: Stopped) -> None:
    chain = make.keys(4)
    with connect(plane) as client:
        store(client, chain)
    assert plane.stop() == 0
    taker = KeptMemory.find(plane.folder)
    assert taker is not None
    refused = plane.ask_keeper(Release("by an operator", on_purpose=True))
    assert isinstance(refused, KeeperRefused), "not under the hands of a data plane that starts"
    taker.close()
    wait_for(lambda: isinstance(plane.ask_keeper(DescribeMemory()), Keeping), "it is held on")
    plane.start()
    assert plane.describe().start.kind == "warm"
    with connect(plane) as client:
        assert read(client, chain) == 4


def test_the_deadline_waits_for_a_data_plane_that_takes_the_memory(
    make_plane: Callable[..., Stopped],
) -> None:
    plane = make_plane(dataplane__keep_memory_s="4").start()
    with connect(plane) as client:
        store(client, make.keys(2))
        world = client._link.world
        assert plane.stop() == 0
        taker = KeptMemory.find(plane.folder)
        assert taker is not None
        (pid,) = keepers(plane.folder)
        time.sleep(5)  # beyond the deadline: nothing may happen, so there is nothing to wait for
        assert keepers(plane.folder) == [pid]
        assert int(world.index.header[H_CLOSED]) == 0
        taker.close()
        wait_for(lambda: int(world.index.header[H_CLOSED]), "then it is released")


def test_memory_that_another_data_plane_has_signed_is_not_marked_as_released(plane: Stopped) -> None:
    with connect(plane) as client:
        store(client, make.keys(2))
        world = client._link.world
        assert plane.stop() == 0
        taker = KeptMemory.find(plane.folder)
        assert taker is not None
        index = next(fd for kind, _, fd in taker.files() if kind == "index")
        os.pwrite(index, (os.getpid()).to_bytes(8, "little"), keeper_module.PID_OFFSET)
        taker.close()
        wait_for(lambda: isinstance(plane.ask_keeper(Release("late", on_purpose=True)), Released), "released")
        wait_for(lambda: not keepers(plane.folder), "the keeper ends")
        assert int(world.index.header[H_CLOSED]) == 0


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x00" * 100,
        b"\xff" * 1000,
        encode(["take"]),
        encode(["take", "x"]),
        encode(["no_such", 1]),
        encode(Take(KEEPER_VERSION + 1)),
        encode(Taken(12345)),
        encode({"a": 1}),
    ],
)
def test_nothing_that_a_peer_says_ends_the_keeper(plane: Stopped, said: bytes) -> None:
    with connect(plane) as client:
        store(client, make.keys(2))
    assert plane.stop() == 0
    if said:
        assert isinstance(plane.ask_keeper(said), KeeperRefused)
    else:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(str(plane.folder / SOCKET_NAME))
    described = plane.ask_keeper(DescribeMemory())
    assert isinstance(described, Keeping)
    assert (described.blocks, described.bytes) == (2, 2 * PAGE_BYTES)
    released = plane.ask_keeper(Release("by an operator", on_purpose=True))
    assert isinstance(released, Released)
    assert (released.blocks, released.bytes) == (2, 2 * PAGE_BYTES)
    plane.start()
    start = plane.describe().start
    assert (start.kind, start.released, start.reason) == ("cold", True, "by an operator")


def test_a_second_keeper_takes_the_name_of_a_stale_socket(plane: Stopped) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
        stale.bind(str(plane.folder / SOCKET_NAME))
    with connect(plane) as client:
        store(client, make.keys(2))
    assert plane.stop() == 0
    assert isinstance(plane.ask_keeper(DescribeMemory()), Keeping)


WITHOUT_INODES = """
import os, subprocess, sys
from itertools import count
from pathlib import Path

folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=20,mode=700", "none", str(folder)], check=True)

from dataplane.protocol.keeper import Keep, VERSION
from dataplane.recovery.kept import KeptMemory, hand_over
from dataplane.state import StateDirectory

state = StateDirectory(folder)
state.lock()
try:
    for number in count():
        os.mknod(folder / str(number))
except OSError as error:
    print(error.strerror)
hand_over(folder, Keep(VERSION, 600, 1, 4096, os.getpid(), 7), [("index", 0, os.memfd_create("index"), 4096)])
found = KeptMemory.find(folder)
print(found.keeping.memory)
found.release("the end of the test")
"""


def test_a_keeper_gets_its_socket_although_no_inode_is_free(socket_dir: Path) -> None:
    folder = socket_dir / "state"
    folder.mkdir()
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", sys.executable, "-c", WITHOUT_INODES, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    require(
        "unshare" not in done.stderr and "mount" not in done.stderr,
        "this user may not mount a file system",
    )
    assert done.stdout == "No space left on device\n7\n", done.stderr


@pytest.mark.full
def test_engines_under_load_read_on_through_stops_and_lose_nothing(plane: Stopped) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(engine(plane.socket, seed)) for seed in range(2)]
        assert [read_line(each) for each in engines] == ["begun"] * 2
        client = stack.enter_context(connect(plane))
        for away_s in (0.0, 1.0, 2.0):
            assert plane.stop() == 0
            (*_, kept) = plane.logged("memory.kept")
            wait_for(lambda: not connected(client), "the loss is noticed")
            time.sleep(away_s)
            plane.start()
            start = plane.describe().start  # asserts that the audit finds nothing
            assert (start.kind, start.blocks, start.lost_blocks) == ("warm", kept["blocks"], 0)
            wait_for(lambda: connected(client), "engines attach again")
            assert store(client, make.keys(1, ("after", away_s))) == 1
        seen = []
        for each in engines:
            each.terminate()
            seen.append(json.loads(read_line(each)))
    assert [each["own_misses"] for each in seen] == [0, 0]
    assert [each["wrong_blocks"] for each in seen] == [0, 0]
    assert all(each["verified_blocks"] > 50 for each in seen)


def test_what_lmcache_clients_stored_is_there_after_a_stop_and_a_start(socket_dir: Path) -> None:
    with (
        gateway_plane(socket_dir, dataplane__keep_memory_s="60") as plane,
        LMCacheClient(url_of(plane)) as client,
    ):
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
        asked = Stopped(plane.folder)
        wait_for(lambda: asked.ask_keeper(DescribeMemory()) is None, "the keeper ends")
        assert plane.stop() == 0
        released = Stopped(plane.folder).ask_keeper(Release("by an operator", on_purpose=True))
        assert isinstance(released, Released)
        assert released.blocks == 3
        wait_for(lambda: not (SHM / name).exists(), "the name goes with the memory")
        assert [path.name for path in SHM.iterdir() if path.name.endswith(name)] == [], "the spare name too"


@pytest.mark.parametrize("connections", [0, 20])
def test_a_keeper_that_was_frozen_hands_the_memory_over(plane: Stopped, connections: int) -> None:
    with connect(plane) as client:
        store(client, make.keys(2))
    assert plane.stop() == 0
    (pid,) = keepers(plane.folder)
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


NEVER_ANSWERS = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen(int(sys.argv[2]))
print("listens", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("backlog", [0, 16])
def test_a_keeper_that_never_answers_is_killed(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch, backlog: int
) -> None:
    monkeypatch.setattr(kept_cache, "SILENT_S", 0.5)
    monkeypatch.setattr(kept_module, "ANSWER_TIMEOUT_S", 0.2)
    path = str(socket_dir / SOCKET_NAME)
    arguments = [path, str(backlog), "dataplane.recovery.keeper", str(socket_dir)]
    with subprocess.Popen(
        [sys.executable, "-c", NEVER_ANSWERS, *arguments], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"listens\n"
            with capture_logs() as lines:
                memory, reason = kept_cache.find_keeper(socket_dir)
            assert memory is None
            assert reason.startswith("the memory keeper ")
            assert [(line["event"], line["killed"]) for line in lines] == [
                ("memory.not_taken", [process.pid])
            ]
            assert process.wait(60) == -signal.SIGKILL
        finally:
            process.kill()


def test_idle_connections_do_not_keep_a_data_plane_from_the_memory(plane: Stopped) -> None:
    with connect(plane) as client:
        store(client, make.keys(2))
    assert plane.stop() == 0
    with ExitStack() as stack:
        for _ in range(keeper_module.MAX_CONNECTIONS + 2):
            idle = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            idle.connect(str(plane.folder / SOCKET_NAME))
            assert isinstance(plane.ask_keeper(DescribeMemory()), Keeping)
        plane.start()
    assert plane.describe().start.kind == "warm"


def test_a_start_that_fails_after_it_signed_leaves_memory_that_can_be_released(plane: Stopped) -> None:
    with connect(plane) as client:
        store(client, make.keys(2))
        world = client._link.world
        assert plane.stop() == 0
        environ = {**plane.environ, "LARDER_CONTROL_URL": "ipc:///proc/none/control.sock"}
        failed = subprocess.run([sys.executable, "-m", "dataplane"], env=environ, timeout=60, check=False)
        assert failed.returncode == 1
        assert isinstance(plane.ask_keeper(Release("by an operator", on_purpose=True)), Released)
        wait_for(lambda: int(world.index.header[H_CLOSED]), "engines learn that it is released")
    assert plane.record()["reason"] == "by an operator"


@pytest.mark.parametrize("content", [b'{"x":' + b"[" * 4000, b'{"blocks":-5}', b"\xff" * 100, b"null", b""])
def test_a_record_that_cannot_be_read_is_none(plane: Stopped, content: bytes) -> None:
    assert plane.stop() == 0
    (plane.folder / "cache.json").write_bytes(content)
    plane.start()
    assert plane.describe().start.kind == "first"


def test_a_pipe_in_place_of_the_record_keeps_nothing_waiting(plane: Stopped) -> None:
    assert plane.stop() == 0
    (plane.folder / "cache.json").unlink(missing_ok=True)
    os.mkfifo(plane.folder / "cache.json")
    plane.start()
    assert plane.describe().start.kind == "first"

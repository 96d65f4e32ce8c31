"""Memory outlives a crash with its holder, and only its owner gets it."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dataplane.holding import requests
from dataplane.holding.folder import SOCKET_NAME
from dataplane.holding.messages import close_all
from dataplane.protocol.codec import decode, decoder
from dataplane.protocol.codes import Code, code_of
from dataplane.protocol.engine import VERSION, EngineReply, Ping, Refused, Reserve, Serving
from dataplane.protocol.layout import HOT_NBYTES, HOT_OFFSET, HOT_SPACE_SEGMENT, IndexMemory, is_ready, pack_keys
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, RawEngine, contents, engine_process, line
from tests.dataplane.recovery.support.blocks import connect, store, store_alone
from tests.require import require

PAGE = 4096


def test_ready_blocks_are_in_memory_of_the_holder_after_kill_9(plane: Plane) -> None:
    chain = make.keys(3)
    with connect(plane) as client:
        assert store(client, chain) == 3
    plane.kill_process()
    peeked = requests.peek(plane.folder)
    memory = {(kind, number): fd for kind, number, fd in peeked}
    with mmap.mmap(memory["index", 0], 0) as mapped:
        index = IndexMemory.attach(memoryview(mapped))
        numbers, control = index.find(pack_keys(chain), 1)
        assert is_ready(control).all()
        for number, content in zip(numbers, contents(chain, PAGE), strict=True):
            row = index.hot[number]
            fd = memory["segment", int(row[HOT_SPACE_SEGMENT]) >> 32]
            assert os.pread(fd, int(row[HOT_NBYTES]), int(row[HOT_OFFSET])) == content
        del index, row
    close_all([fd for _, _, fd in peeked])


def test_a_ping_of_another_version_is_refused(plane: Plane) -> None:
    with RawEngine(plane.socket) as raw:
        assert raw.refusal(Ping(1, VERSION + 1)) == (Code.VERSION_MISMATCH, "version")
        assert isinstance(raw.ask(Ping(2, VERSION)), Serving)
        raw.attach()
        assert isinstance(raw.ask(Ping(3, VERSION)), Serving)


def test_memory_is_sealed_private_and_the_index_read_only(plane: Plane) -> None:
    with RawEngine(plane.socket) as engine:
        attached = engine.attach()
        granted = engine.ask(Reserve(2, attached.spaces[0], "", make.key("one"), PAGE))
        index, area, segment = engine.fds
        assert [grant.writable for grant in granted.grants] == [True]
        for fd in (index, area, segment):
            status = os.fstat(fd)
            assert stat.S_IMODE(status.st_mode) == 0o600
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            expected = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            assert seals & expected == expected
        for fd in (area, segment):
            for size in (0, os.fstat(fd).st_size * 2):
                with pytest.raises(PermissionError):
                    os.ftruncate(fd, size)
        with pytest.raises(PermissionError):
            mmap.mmap(index, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(index, b"x", 0)
        with mmap.mmap(index, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped, pytest.raises(TypeError):
            mapped[0] = 1


def test_nothing_of_it_has_a_name(plane: Plane) -> None:
    store_alone(plane)
    process = Path(f"/proc/{plane.pid}")
    maps = [line.split(maxsplit=5) for line in (process / "maps").read_text().splitlines()]
    mapped = {path for _, access, *_, path in maps if access == "rw-s"}
    opened = set()
    for fd in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            opened.add(os.readlink(fd))
    assert mapped, "the index"
    assert all(path.startswith("/memfd:") for path in mapped)
    assert any(path.startswith("/memfd:larder-segment") for path in opened)
    named = {path for path in opened if path.startswith("/dev/shm/")}
    assert all(path.startswith(str(plane.folder)) for path in named), "and there, nothing but the files below"
    assert {Path(path).name for path in named} <= {"dataplane.lock", "engine.sock.lock", "log"}


# ---- other users


OTHER_UID = 65534
CONNECT = """
import socket
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.settimeout(60)
try:
    connection.connect(sys.argv[1])
except PermissionError:
    tell("no permission")
    sys.exit()
if len(sys.argv) > 2:
    try:
        connection.send(bytes.fromhex(sys.argv[2]))
    except BrokenPipeError:
        pass
try:
    data = connection.recv(100000)
except ConnectionResetError:
    data = connection.recv(100000)
tell(data.hex())
"""
ATTACH = """
try:
    client = attach(sys.argv[1], [make.space()], timeout_s=30)
    tell("connected" if client.connected else "not there")
except AttachRefused as error:
    tell(error.code.name)
"""
_decoder = decoder(EngineReply)


def as_other(code: str, *arguments: str) -> str:
    require(os.geteuid() == 0, "only root can start a process of another user")
    # Imports come first: another user need not be able to read them.
    become = f"os.setgroups([]); os.setgid({OTHER_UID}); os.setuid({OTHER_UID})\n"
    with engine_process(become + code, *arguments) as process:
        return line(process)


@pytest.fixture
def open_plane(make_plane: Callable[..., Plane]) -> Callable[..., Plane]:
    """A data plane in a folder that everybody may enter."""

    def start(**settings: str) -> Plane:
        plane = make_plane(**settings)
        plane.folder.chmod(0o755)
        return plane.start()

    return start


def test_the_socket_of_a_data_plane_without_allow_list_is_closed_to_other_users(
    open_plane: Callable[..., Plane],
) -> None:
    plane = open_plane()
    assert stat.S_IMODE(os.stat(plane.socket).st_mode) & 0o077 == 0
    assert as_other(CONNECT, plane.socket) == "no permission"


def test_only_users_on_the_allow_list_may_attach(open_plane: Callable[..., Plane]) -> None:
    require(os.geteuid() == 0, "only root can start a process of another user")
    plane = open_plane(dataplane__allowed_uids="12345")
    answer = decode(_decoder, bytes.fromhex(as_other(CONNECT, plane.socket)))
    assert isinstance(answer, Refused)
    assert code_of(answer.code) is Code.NOT_ALLOWED
    assert as_other(ATTACH, plane.socket) == "NOT_ALLOWED"
    plane.stop()
    plane.settings["dataplane__allowed_uids"] = f"12345,{OTHER_UID}"
    plane.start()
    assert as_other(ATTACH, plane.socket) == "connected"


def test_a_user_on_the_allow_list_may_not_reach_the_holder(open_plane: Callable[..., Plane]) -> None:
    plane = open_plane(dataplane__allowed_uids=str(OTHER_UID))
    assert as_other(CONNECT, str(plane.folder / SOCKET_NAME)) == "no permission"

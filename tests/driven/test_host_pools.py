"""Pages in host memory that the data plane copies: both ways, and whatever an engine does meanwhile."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from dataplane.client import Code
from dataplane.copies.driven.copies import MAX_HOST_POOLS
from dataplane.ipc.processes import Peer
from dataplane.protocol.codec import encode
from dataplane.protocol.codes import ReserveOutcome
from dataplane.protocol.engine import (
    MAX_HOST_FILES,
    CacheRegistered,
    CopyEnded,
    HostPiece,
    Refused,
    RegisterHostPool,
    SpaceRequest,
    StoreBegun,
    StoreFrom,
)
from dataplane.sockets.session import Session
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, RawEngine, line, run_engine, wait_for
from tests.driven.engines import done
from tests.driven.host_memory import PAGE_BYTES, PAGES, PIECE_BYTES, PIECES, SPACE, HostEngine, HostMemory

KEYS = make.keys(5)
FROM, TO = [1, 3, 4, 0, 9], [6, 7, 2, 11, 5]
WRITE = int(ReserveOutcome.WRITE)


@pytest.fixture
def plane(socket_dir: Path) -> Iterator[Plane]:
    made = Plane(socket_dir).start()
    yield made
    if made.alive:
        made.describe()
    made.kill()


@pytest.fixture
def make_engine(plane: Plane) -> Iterator[Callable[..., HostEngine]]:
    made: list[HostEngine] = []

    def new(**options: Any) -> HostEngine:
        made.append(HostEngine(plane.socket, **options))
        return made[-1]

    yield new
    for each in made:
        each.close()


def opened(plane: Plane) -> int:
    """Number of files of host pools that the data plane has open."""
    folder = f"/proc/{plane.pid}/fd"
    found = 0
    for name in os.listdir(folder):
        try:
            found += os.readlink(f"{folder}/{name}").startswith("/memfd:host-pool")
        except FileNotFoundError:
            continue
    return found


def mapped(plane: Plane) -> int:
    """Number of segments of the pool that the data plane maps."""
    with open(f"/proc/{plane.pid}/maps", encoding="utf-8") as maps:
        return sum("memfd:larder-segment" in each for each in maps)


def test_pages_are_copied_both_ways(make_engine: Callable[..., HostEngine], plane: Plane) -> None:
    one, other = make_engine(verify="always"), make_engine(verify="always")
    one.fill(1)
    assert one.register() is other.register() is None
    stored = done(one.client.store_from(KEYS, FROM))
    assert stored.outcomes.tolist() == [WRITE] * 5
    assert stored.ended is not None
    assert (stored.ended.blocks, stored.ended.code) == (5, None)
    loaded = done(other.client.load_into(KEYS, TO))
    assert loaded.hits == 5
    assert other.content(TO) == one.content(FROM)
    assert not other.pages[:, [at for at in range(PAGES) if at not in TO]].any()
    with other.client.acquire(KEYS) as lease:
        assert [bytes(lease.view(at)) for at in range(5)] == one.content(FROM)
    assert opened(plane) == 2
    assert mapped(plane)
    one.client.unregister_cache()
    other.client.close()
    wait_for(lambda: not opened(plane) and not mapped(plane), "files and segments are released")


def test_a_load_may_leave_out_leading_pages(make_engine: Callable[..., HostEngine]) -> None:
    engine = make_engine()
    engine.fill(1)
    engine.register()
    expected = engine.content(FROM)
    done(engine.client.store_from(KEYS, FROM))
    engine.pages[:] = 0
    done(engine.client.load_into(KEYS, TO, skip_blocks=2))
    assert engine.content(TO) == [bytes(PAGE_BYTES)] * 2 + expected[2:]


def test_a_pool_is_registered_again_with_a_new_data_plane(make_engine: Callable[..., HostEngine], plane: Plane) -> None:
    engine = make_engine()
    engine.fill(1)
    engine.register()
    plane.kill()
    assert engine.client.store_from(KEYS, FROM).outcomes.tolist() == [Code.UNAVAILABLE] * 5
    plane.start()

    def stored() -> bool:
        return done(engine.client.store_from(KEYS, FROM)).outcomes.tolist() == [WRITE] * 5

    wait_for(stored, "it attaches and stores again")
    assert engine.client.lookup(KEYS) == 5


def test_a_file_that_is_truncated_fails_the_copy_alone(make_engine: Callable[..., HostEngine], plane: Plane) -> None:
    engine = make_engine()
    engine.fill(1)
    engine.register()
    os.ftruncate(engine.fd, PIECE_BYTES)
    stored = done(engine.client.store_from(KEYS, FROM))
    assert stored.ended is not None
    assert stored.ended.code is Code.COPY_FAILED
    assert "ends at" in stored.ended.message
    assert engine.client.lookup(KEYS) == 0
    plane.wait_stats(lambda stats: not stats.pool.used_bytes, "nothing stays reserved")
    assert plane.alive


def test_an_abandoned_store_is_never_published(make_engine: Callable[..., HostEngine], plane: Plane) -> None:
    engine = make_engine(timeout_s=0.5)
    engine.fill(1)
    wait_for(lambda: engine.register() is None, "it is registered")
    with plane.frozen():
        copy = engine.client.store_from(KEYS, FROM)
        assert not copy.wait(0.05)
        copy.abandon()
        assert copy.ended is not None
        assert copy.ended.code is Code.TIMEOUT
        engine.fill(2)  # the pages now have other bytes than the keys say
    plane.wait_stats(lambda stats: not stats.pool.used_bytes, "nothing stays reserved")
    other = make_engine()
    assert other.client.lookup(KEYS) == 0
    engine.fill(3)

    def stored() -> bool:
        again = engine.client.store_from(KEYS, FROM)
        if not again.wait(60):
            again.abandon()
        return again.ended is not None and again.ended.code is None

    wait_for(stored, "it stores again")
    with other.client.acquire(KEYS) as lease:
        assert [bytes(lease.view(at)) for at in range(5)] == engine.content(FROM)


def test_an_ended_store_is_not_abandoned(make_engine: Callable[..., HostEngine]) -> None:
    engine = make_engine()
    engine.register()
    copy = done(engine.client.store_from(KEYS, FROM))
    copy.abandon()
    assert engine.client.connected
    assert copy.ended is not None
    assert copy.ended.code is None


DYING = """
from tests.driven.host_memory import *
engine = HostEngine(sys.argv[1])
engine.fill(1)
tell(engine.register())
sys.stdin.readline()
engine.client._link._timeout_s = 0.1
engine.client.store_from(make.keys(5), [1, 3, 4, 0, 9])
tell("asked")
sys.stdin.readline()
"""


def test_an_engine_killed_after_a_store_request_leaves_nothing(
    make_engine: Callable[..., HostEngine], plane: Plane
) -> None:
    with run_engine(DYING, plane.socket) as dying:
        try:
            assert dying.stdin is not None
            assert line(dying) == "None"
            with plane.frozen():
                dying.stdin.write(b"\n")
                dying.stdin.flush()
                assert line(dying) == "asked"
                dying.send_signal(signal.SIGKILL)
                dying.wait(60)
        finally:
            dying.kill()
    plane.wait_stats(lambda stats: not stats.engines and not stats.pool.used_bytes, "it is forgotten")
    wait_for(lambda: not opened(plane) and not mapped(plane), "everything is closed")
    assert make_engine().client.lookup(KEYS) == 0


def test_the_end_of_a_connection_is_seen_before_it_is_read() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        server: Any = SimpleNamespace(node=None, memory=None)
        session = Session(server, ours, Peer(os.getpid(), os.getuid(), -1))
        theirs.send(b"a request")
        assert not session.closed_by_peer
        theirs.shutdown(socket.SHUT_RDWR)
        assert session.closed_by_peer


# ---- connections that say anything


class Raw:
    """A connection that attaches files of its choice."""

    def __init__(self, plane: Plane) -> None:
        self.connection = RawEngine(plane.socket)
        self.memory = HostMemory()
        attached = self.connection.attach(SpaceRequest(SPACE), SpaceRequest(make.space("other")))
        assert attached.host_pools
        self.good = RegisterHostPool(1, attached.spaces[0], [self.memory.nbytes], PIECES, PAGES)

    def ask(self, message: object, *fds: int) -> Any:
        socket.send_fds(self.connection.socket, [encode(message)], list(fds))
        return self.connection.receive()

    def close(self) -> None:
        self.connection.close()
        self.memory.close()


@pytest.fixture
def raw(plane: Plane) -> Iterator[Raw]:
    made = Raw(plane)
    yield made
    made.close()


FIRST = PIECES[0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"files": []}, "files"),
        ({"files": [PAGES * PAGE_BYTES, 1]}, "files"),
        ({"files": [0]}, "files[0]"),
        ({"files": [2**63 - 1]}, "files[0]"),
        ({"files": [4096]}, "pieces[0].nbytes"),
        ({"pages": 0}, "pages"),
        ({"pages": 2**32}, "pages"),
        ({"pages": PAGES + 1}, "pieces[1].start"),
        ({"pages": 2**31}, "pieces[0].start"),
        ({"pieces": []}, "pieces"),
        ({"pieces": PIECES[:1]}, "pieces"),
        ({"pieces": [*PIECES, FIRST]}, "pieces"),
        ({"pieces": [HostPiece(1, 0, PIECE_BYTES, PIECE_BYTES), FIRST]}, "pieces[0].file"),
        ({"pieces": [HostPiece(-1, 0, PIECE_BYTES, PIECE_BYTES), FIRST]}, "pieces[0].file"),
        ({"pieces": [HostPiece(0, -1, PIECE_BYTES, PIECE_BYTES), FIRST]}, "pieces[0].start"),
        ({"pieces": [HostPiece(0, 2**62, PIECE_BYTES, PIECE_BYTES), FIRST]}, "pieces[0].start"),
        ({"pieces": [HostPiece(0, 0, PIECE_BYTES - 1, PIECE_BYTES), FIRST]}, "pieces[0].step"),
        ({"pieces": [HostPiece(0, 0, -1, PIECE_BYTES), FIRST]}, "pieces[0].step"),
        ({"pieces": [HostPiece(0, 0, 2**62, PIECE_BYTES), FIRST]}, "pieces[0].step"),
        ({"pieces": [HostPiece(0, 0, PIECE_BYTES, 0), FIRST]}, "pieces[0].nbytes"),
        ({"space": 99}, "space"),
    ],
)
def test_a_wrong_description_is_refused_with_its_field(
    raw: Raw, plane: Plane, changes: dict[str, Any], field: str
) -> None:
    answer = raw.ask(msgspec.structs.replace(raw.good, **changes), raw.memory.fd)
    assert isinstance(answer, Refused), answer
    assert answer.field == field
    assert isinstance(raw.ask(raw.good, raw.memory.fd), CacheRegistered)
    wait_for(lambda: opened(plane) == 1, "descriptors of a refused request are closed")


def test_a_space_without_block_bytes_or_with_the_layout_of_tensors_is_refused(raw: Raw, plane: Plane) -> None:
    assert raw.connection.attached is not None
    other = msgspec.structs.replace(raw.good, space=raw.connection.attached.spaces[1])
    assert raw.ask(other, raw.memory.fd).field == "space"
    paged = RawEngine(plane.socket)
    try:
        number = paged.attach(SpaceRequest(msgspec.structs.replace(SPACE, layout="paged:x")))
        socket.send_fds(
            paged.socket, [encode(msgspec.structs.replace(raw.good, space=number.spaces[0]))], [raw.memory.fd]
        )
        answer = paged.receive()
        assert isinstance(answer, Refused)
        assert answer.field == "space"
    finally:
        paged.close()


def test_descriptors_that_no_request_asks_for_are_closed(raw: Raw, plane: Plane) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > 300
    for _ in range(20):
        answer = raw.ask(StoreFrom(1, 9, "", make.packed(KEYS), b""), *[raw.memory.fd] * 100)
        assert isinstance(answer, Refused)
    too_many = raw.ask(raw.good, *[raw.memory.fd] * 100)
    assert (too_many.field, too_many.message) == ("files", "expected 1 file descriptors, got 4")
    assert raw.ask(raw.good).field == "files"
    wait_for(lambda: not opened(plane), "all of them are closed")


def test_descriptors_of_an_empty_datagram_are_closed(raw: Raw, plane: Plane) -> None:
    for _ in range(20):
        engine = RawEngine(plane.socket)
        engine.attach()
        socket.send_fds(engine.socket, [b""], [raw.memory.fd] * MAX_HOST_FILES)
        engine.close()
    assert isinstance(raw.ask(raw.good, raw.memory.fd), CacheRegistered)
    wait_for(lambda: opened(plane) == 1, "all others are closed")


def test_the_number_of_pools_is_bounded(raw: Raw, plane: Plane) -> None:
    numbers = [raw.ask(raw.good, raw.memory.fd).cache for _ in range(MAX_HOST_POOLS)]
    assert numbers == list(range(1, MAX_HOST_POOLS + 1))
    answer = raw.ask(raw.good, raw.memory.fd)
    assert answer.code == Code.TOO_MANY_COPIES
    wait_for(lambda: opened(plane) == MAX_HOST_POOLS, "the descriptor of the refused request is closed")
    raw.connection.close()
    wait_for(lambda: not opened(plane), "a connection's files are closed with it")


def test_host_memory_has_no_events(raw: Raw) -> None:
    raw.ask(raw.good, raw.memory.fd)
    blocks = np.array(FROM, np.uint32).tobytes()
    store = StoreFrom(2, 1, "", make.packed(KEYS), blocks, bytes(64))
    assert raw.ask(store).field == "event"
    assert isinstance(raw.ask(msgspec.structs.replace(store, event=b"")), StoreBegun)
    ended = raw.connection.receive()
    assert isinstance(ended, CopyEnded)
    assert ended.blocks == 5
    beyond = np.array([*FROM[:4], PAGES], np.uint32).tobytes()
    assert raw.ask(msgspec.structs.replace(store, event=b"", blocks=beyond)).field == "blocks"

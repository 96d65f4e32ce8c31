"""Whatever a peer sends to the engine socket gets a stable code, and the data plane goes on serving."""

from __future__ import annotations

import array
import fcntl
import math
import mmap
import os
import resource
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path

import msgspec
import pytest
import zmq
from structlog.testing import capture_logs

from dataplane.base.connection_guard import HANDSHAKE_BYTES, ConnectionGuard
from dataplane.client import AttachRefused, ClientEvent, attach
from dataplane.holding import requests
from dataplane.holding.folder import SOCKET_NAME
from dataplane.holding.messages import close_all
from dataplane.protocol import engine as wire
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import Code, ReserveOutcome, code_of
from dataplane.protocol.control.nodes import Drain, NodeDrained
from dataplane.protocol.engine import VERSION, EngineReply, Ping, Refused, Reserve, Serving
from dataplane.protocol.layout import HOT_NBYTES, HOT_OFFSET, HOT_SPACE_SEGMENT, IndexMemory, is_ready, pack_keys
from dataplane.protocol.spaces import Space
from tests import forked
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect, store, store_alone
from tests.dataplane.plane import WAIT_S, Plane, RawEngine, contents, engine_process, line, wait_for
from tests.require import require

PAGE = 4096
ONE_KEY = make.key("one")


@pytest.fixture
def raw(shared_plane: Plane) -> Iterator[RawEngine]:
    """A connection that has not attached; afterwards the data plane must serve a well-behaved engine."""
    with RawEngine(shared_plane.socket) as engine:
        yield engine
    assert_serves(shared_plane)


@pytest.fixture
def engine(raw: RawEngine) -> RawEngine:
    """An attached connection."""
    raw.attach()
    return raw


def assert_serves(plane: Plane) -> None:
    assert plane.alive, plane.log()
    with RawEngine(plane.socket) as good:
        attached = good.attach(group="good")
        answer = good.ask(wire.Reserve(2, attached.spaces[0], "", make.key("good"), PAGE))
        assert isinstance(answer, wire.Reserved)
        if answer.reservation:
            assert isinstance(good.ask(wire.Commit(3, answer.reservation)), wire.BlocksCommitted)
        assert isinstance(good.ask(wire.Detach(4)), wire.Detached)


def reserve(
    engine: RawEngine, keys: bytes = ONE_KEY, nbytes: int = PAGE, tenant: str = "", **fields: int
) -> wire.Reserve:
    assert engine.attached is not None
    return wire.Reserve(fields.get("id", 9), fields.get("space", engine.attached.spaces[0]), tenant, keys, nbytes)


# ---- not a message


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",
        b"garbage" * 100,
        os.urandom(2000),
        encode(wire.Detach(1))[:-1],
        encode(wire.Attach(1, wire.VERSION, "g", [wire.SpaceRequest(make.space())]))[:-9],
        encode(wire.Detach(1)) + b"\x00",
        msgspec.msgpack.encode(["no such tag", 1]),
        msgspec.msgpack.encode(["detach"]),
        msgspec.msgpack.encode(["detach", "one"]),
        msgspec.msgpack.encode(["detach", 1, 2]),
        msgspec.msgpack.encode(["reserve", 1, 1, 7, b"", 1]),
        msgspec.msgpack.encode(["reserve", 1, 1, "", "text", 1]),
        msgspec.msgpack.encode(["attach", 1, 1, "g", [{"space": 1}]]),
        msgspec.msgpack.encode({"type": "detach", "id": 1}),
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode(None),
        msgspec.msgpack.encode(2**63),
        b"\x91" * 5000,
        b"\xdd\xff\xff\xff\xff",
        b"\xc7\xff\xff",
        msgspec.msgpack.encode(["attached", 1, 1, "n", 1, [], True, 1.0]),
        b"\x93\xa5abort\x01\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
        b"\x92\xa6detach\xcf\xff\xff\xff\xff\xff\xff\xff",
    ],
)
def test_an_invalid_message_is_malformed(raw: RawEngine, data: bytes) -> None:
    assert raw.refusal(data)[0] is Code.MALFORMED
    raw.attach()


def test_text_that_is_not_utf8_is_malformed(raw: RawEngine) -> None:
    good = encode(wire.Attach(1, wire.VERSION, "group-name", [wire.SpaceRequest(make.space())]))
    assert raw.refusal(good.replace(b"group-name", b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe\xff\xfe"))[0] is Code.MALFORMED


def test_malformed_messages_are_counted(shared_plane: Plane, raw: RawEngine) -> None:
    before = shared_plane.describe().totals.malformed_messages
    raw.refusal(b"garbage")
    assert shared_plane.describe().totals.malformed_messages == before + 1


def test_an_empty_datagram_ends_the_connection(raw: RawEngine) -> None:
    raw.send(b"")
    assert raw.receive() is None


def test_an_oversized_datagram_is_malformed(raw: RawEngine) -> None:
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    for size in (wire.MAX_DATAGRAM_BYTES + 1, wire.MAX_DATAGRAM_BYTES + 2, 210_000):
        assert raw.refusal(b"\x92\xa6detach\x01" + b"\x00" * size)[0] is Code.MALFORMED
    assert raw.refusal(b"\xc4" * wire.MAX_DATAGRAM_BYTES)[0] is Code.MALFORMED


@pytest.mark.parametrize("number", [-(2**63), -1, 0, 2**63, 2**64 - 1])
def test_any_request_id_comes_back(raw: RawEngine, number: int) -> None:
    answer = raw.ask(wire.Detach(number))
    assert isinstance(answer, wire.Refused)
    assert answer.id == number


# ---- attach


def test_every_request_before_attach_is_refused(raw: RawEngine) -> None:
    for message in (
        wire.Reserve(1, 1, "", ONE_KEY, 1),
        wire.Commit(1, 1),
        wire.Abort(1, 1),
        wire.LeaseRequest(1, 1, ONE_KEY),
        wire.Map(1, [1]),
        wire.Detach(1),
    ):
        assert raw.refusal(message)[0] is Code.NOT_ATTACHED


def test_a_second_attach_is_refused_and_the_first_stands(engine: RawEngine) -> None:
    assert (
        engine.refusal(wire.Attach(2, wire.VERSION, "raw", [wire.SpaceRequest(make.space())]))[0]
        is Code.ALREADY_ATTACHED
    )
    assert isinstance(engine.ask(reserve(engine)), wire.Reserved)


@pytest.mark.parametrize("version", [0, wire.VERSION + 1, -1, 2**64 - 1])
def test_another_version_is_refused(raw: RawEngine, version: int) -> None:
    request = wire.Attach(1, version, "g", [wire.SpaceRequest(make.space())])
    assert raw.refusal(request) == (Code.VERSION_MISMATCH, "version")
    raw.attach()


@pytest.mark.parametrize("group", ["", "x" * 129, "a\nb", "\x00", "a\x7f"])
def test_a_bad_group_is_refused(raw: RawEngine, group: str) -> None:
    assert raw.refusal(wire.Attach(1, wire.VERSION, group, [wire.SpaceRequest(make.space())])) == (
        Code.BAD_GROUP,
        "group",
    )


@pytest.mark.parametrize(
    ("space", "field"),
    [
        (Space(""), "model"),
        (Space("m" * 257), "model"),
        (Space("a\nb"), "model"),
        (Space("m", dtype="\x00"), "dtype"),
        (Space("m", layout="x" * 257), "layout"),
        (Space("m", revision="\x1b[31m"), "revision"),
        (Space("m", kv_group=-1), "kv_group"),
        (Space("m", kv_group=2**63), "kv_group"),
        (Space("m", world_size=0), "world_size"),
        (Space("m", world_size=-5), "world_size"),
        (Space("m", world_size=2, rank=2), "rank"),
        (Space("m", rank=-1), "rank"),
        (Space("m", pipeline_stage=2**40), "pipeline_stage"),
        (Space("m", block_bytes=-1), "block_bytes"),
        (Space("m", block_bytes=(1 << 40) + 1), "block_bytes"),
    ],
)
def test_a_bad_space_is_refused_with_its_field(raw: RawEngine, space: Space, field: str) -> None:
    request = wire.Attach(1, wire.VERSION, "g", [wire.SpaceRequest(make.space()), wire.SpaceRequest(space)])
    assert raw.refusal(request) == (Code.BAD_SPACE, f"spaces[1].space.{field}")


def test_no_space_too_many_and_the_same_twice_are_refused(raw: RawEngine) -> None:
    one = wire.SpaceRequest(make.space())
    assert raw.refusal(wire.Attach(1, wire.VERSION, "g", [])) == (Code.BAD_SPACE, "spaces")
    assert raw.refusal(wire.Attach(1, wire.VERSION, "g", [one, one])) == (Code.BAD_SPACE, "spaces")
    many = [wire.SpaceRequest(make.space(rank=rank, world_size=1025)) for rank in range(1025)]
    assert raw.refusal(wire.Attach(1, wire.VERSION, "g", many)) == (Code.BAD_SPACE, "spaces")


def test_the_same_space_with_another_block_size_is_a_conflict(shared_plane: Plane, raw: RawEngine) -> None:
    raw.attach(wire.SpaceRequest(make.space("conflicted", block_bytes=PAGE)))
    with RawEngine(shared_plane.socket) as other:
        request = wire.Attach(1, wire.VERSION, "g", [wire.SpaceRequest(make.space("conflicted", block_bytes=2 * PAGE))])
        assert other.refusal(request) == (Code.SPACE_CONFLICT, "spaces[0].space.block_bytes")
        assert other.attach(wire.SpaceRequest(make.space("conflicted", block_bytes=PAGE))).spaces == raw.attached.spaces


def test_detach_ends_the_attachment_and_the_connection_may_attach_again(engine: RawEngine) -> None:
    first = engine.attached.client
    assert isinstance(engine.ask(wire.Detach(2)), wire.Detached)
    assert engine.refusal(reserve(engine))[0] is Code.NOT_ATTACHED
    assert engine.attach().client != first


# ---- reserve


def test_spaces_that_are_not_attached_or_read_only_are_refused(raw: RawEngine) -> None:
    attached = raw.attach(wire.SpaceRequest(make.space()), wire.SpaceRequest(make.space("reader"), writes=False))
    for space in (0, -1, 9999, 2**64 - 1):
        assert raw.refusal(wire.Reserve(1, space, "", ONE_KEY, 1)) == (Code.UNKNOWN_SPACE, "space")
        assert raw.refusal(wire.LeaseRequest(1, space, ONE_KEY)) == (Code.UNKNOWN_SPACE, "space")
    assert raw.refusal(wire.Reserve(1, attached.spaces[1], "", ONE_KEY, 1)) == (Code.READ_ONLY_SPACE, "space")


@pytest.mark.parametrize(
    "keys",
    [
        b"",
        b"x",
        ONE_KEY[:31],
        ONE_KEY + b"x",
        ONE_KEY * 2,
        ONE_KEY + make.key("two") + ONE_KEY,
        make.packed(make.keys(4097)),
    ],
    ids=["none", "one byte", "31 bytes", "33 bytes", "twice", "twice apart", "too many"],
)
def test_bad_keys_are_refused(engine: RawEngine, keys: bytes) -> None:
    assert engine.refusal(reserve(engine, keys)) == (Code.BAD_KEYS, "keys")
    assert engine.refusal(wire.LeaseRequest(1, engine.attached.spaces[0], keys)) == (Code.BAD_KEYS, "keys")


@pytest.mark.parametrize("nbytes", [0, -1, -(2**63), (1 << 40) + 1, 2**63, 2**64 - 1])
def test_a_size_that_no_block_has_is_refused(engine: RawEngine, nbytes: int) -> None:
    assert engine.refusal(reserve(engine, nbytes=nbytes)) == (Code.BAD_SIZE, "nbytes")


@pytest.mark.parametrize("nbytes", [16 * make.MIB + 1, 1 << 40])
def test_a_block_that_can_never_fit_is_refused_for_each_key(engine: RawEngine, nbytes: int) -> None:
    answer = engine.ask(reserve(engine, make.packed(make.keys(3)), nbytes))
    assert isinstance(answer, wire.Reserved)
    assert list(answer.outcomes) == [Code.TOO_LARGE] * 3
    assert answer.reservation == 0
    assert answer.grants == []


def test_a_block_larger_than_its_spaces_blocks_is_refused(raw: RawEngine) -> None:
    attached = raw.attach(wire.SpaceRequest(make.space("sized", block_bytes=2 * PAGE)))
    request = wire.Reserve(1, attached.spaces[0], "", ONE_KEY, 2 * PAGE + 1)
    assert raw.refusal(request) == (Code.BAD_SIZE, "nbytes")
    assert isinstance(raw.ask(wire.Reserve(1, attached.spaces[0], "", ONE_KEY, 2 * PAGE)), wire.Reserved)


def test_bad_salts_are_refused_and_good_ones_served(engine: RawEngine) -> None:
    for salt in ("a/b", "\x1f", "\x7f", "\x80", "x" * 129, "_default"):
        assert engine.refusal(reserve(engine, tenant=salt)) == (Code.BAD_SALT, "tenant")
    for salt in ("", "x" * 128, "größe", "a:b.c-d"):
        answer = engine.ask(reserve(engine, make.key(salt), tenant=salt))
        assert isinstance(answer, wire.Reserved)
        assert list(answer.outcomes) == [ReserveOutcome.WRITE]


# ---- commit, abort, map


def test_unknown_and_foreign_reservations_are_refused(shared_plane: Plane, engine: RawEngine) -> None:
    with RawEngine(shared_plane.socket) as other:
        other.attach(group="other")
        foreign = other.ask(reserve(other, make.key("foreign")))
        assert isinstance(foreign, wire.Reserved)
        for number in (0, -1, 2**64 - 1, 987_654, foreign.reservation):
            assert engine.refusal(wire.Commit(1, number)) == (Code.UNKNOWN_RESERVATION, "reservation")
            assert engine.refusal(wire.Abort(1, number)) == (Code.UNKNOWN_RESERVATION, "reservation")
        assert isinstance(other.ask(wire.Commit(1, foreign.reservation)), wire.BlocksCommitted)


@pytest.mark.parametrize(
    ("slots", "checksums", "code", "field"),
    [
        (b"\x00", b"", Code.BAD_SLOTS, "slots"),
        (b"\x00" * 8, b"", Code.BAD_SLOTS, "slots"),
        (b"\x02\x00\x00\x00", b"", Code.BAD_SLOTS, "slots"),
        (b"\xff\xff\xff\xff", b"", Code.BAD_SLOTS, "slots"),
        (b"", b"x", Code.BAD_CHECKSUMS, "checksums"),
        (b"", b"x" * 31, Code.BAD_CHECKSUMS, "checksums"),
        (b"\x00" * 4, b"x" * 32, Code.BAD_CHECKSUMS, "checksums"),
    ],
)
def test_a_wrong_commit_is_refused_and_may_be_corrected(
    engine: RawEngine, slots: bytes, checksums: bytes, code: Code, field: str
) -> None:
    keys = make.packed(make.keys(2, (slots, checksums)))
    granted = engine.ask(reserve(engine, keys))
    assert engine.refusal(wire.Commit(1, granted.reservation, slots, checksums)) == (code, field)
    committed = engine.ask(wire.Commit(1, granted.reservation, b"", b"x" * 32))
    assert isinstance(committed, wire.BlocksCommitted)
    assert committed.blocks == 2
    assert engine.refusal(wire.Commit(1, granted.reservation))[0] is Code.UNKNOWN_RESERVATION


def test_segments_of_other_spaces_are_not_granted(shared_plane: Plane, engine: RawEngine) -> None:
    with RawEngine(shared_plane.socket) as other:
        other.attach(wire.SpaceRequest(make.space("secret")), group="other")
        granted = other.ask(reserve(other, make.key("secret")))
        (grant,) = granted.grants
        assert grant.writable
        fds = len(engine.fds)
        answer = engine.ask(wire.Map(1, [grant.segment, 0, -1, 2**63, 987_654]))
        assert isinstance(answer, wire.SegmentsMapped)
        assert answer.grants == []
        assert len(engine.fds) == fds
        assert isinstance(other.ask(wire.Abort(1, granted.reservation)), wire.Aborted)


def test_a_reader_gets_a_segment_that_cannot_be_written(shared_plane: Plane, engine: RawEngine) -> None:
    granted = engine.ask(reserve(engine, make.key("to be read")))
    segment = int.from_bytes(granted.segments[:4], "little")
    with RawEngine(shared_plane.socket) as reader:
        reader.attach(wire.SpaceRequest(make.space(), writes=False), group="reader")
        answer = reader.ask(wire.Map(1, [segment]))
        assert [(grant.segment, grant.writable) for grant in answer.grants] == [(segment, False)]
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(reader.fds[-1], b"x")
    engine.ask(wire.Abort(1, granted.reservation))


def test_a_map_of_very_many_segments_is_answered_in_one_datagram(engine: RawEngine) -> None:
    answer = engine.ask(wire.Map(1, list(range(30_000))))
    assert isinstance(answer, wire.SegmentsMapped)
    assert len(answer.grants) <= 64


def test_leases_by_message_are_served(raw: RawEngine) -> None:
    attached = raw.attach(membarrier=False)
    assert not attached.membarrier
    keys = make.packed(make.keys(3, "by message"))
    granted = raw.ask(reserve(raw, keys))
    raw.ask(wire.Commit(1, granted.reservation))
    leased = raw.ask(wire.LeaseRequest(1, attached.spaces[0], keys + make.key("absent")))
    assert isinstance(leased, wire.Leased)
    numbers = array.array("I", leased.descriptors).tolist()
    assert len(set(numbers)) == 3
    counters = os.pread(raw.fds[1], 4 * 4096, 4096)
    assert [counters[4 * number] for number in numbers] == [1, 1, 1]


# ---- resources


def test_descriptors_that_a_peer_passes_are_dropped(shared_plane: Plane, engine: RawEngine) -> None:
    before = shared_plane.open_fds()
    for number in range(50):
        socket.send_fds(engine.socket, [encode(reserve(engine, make.key(("fds", number % 3))))], [0, 1, 2])
        assert isinstance(engine.receive(), wire.Reserved)
    most = before + 2  # what a new segment needs
    wait_for(lambda: shared_plane.open_fds() <= most, "the descriptors of the last request are closed too")


def test_two_hundred_connections_come_and_go(shared_plane: Plane, raw: RawEngine) -> None:
    before = shared_plane.open_fds()
    many = [RawEngine(shared_plane.socket) for _ in range(200)]
    for each in many[::2]:
        each.attach(group="many")
    for each in many:
        each.close()
    # Attached ones leave their area and their process's pidfd until this process is gone: what they mapped may be used.
    wait_for(lambda: shared_plane.open_fds() <= before + 100 * 4 + 2, "connections are closed")
    raw.attach()


def test_detaches_leave_no_descriptor_behind(shared_plane: Plane, raw: RawEngine) -> None:
    raw.attach()  # answered: from here on its own descriptors are among those that are open
    before = shared_plane.open_fds()
    for _ in range(50):
        with RawEngine(shared_plane.socket) as each:
            each.attach()
            each.ask(wire.Detach(1))
    wait_for(lambda: shared_plane.open_fds() <= before, "descriptors are closed")


def test_a_client_that_never_reads_its_answers_loses_its_connection_and_others_are_served(
    shared_plane: Plane, engine: RawEngine
) -> None:
    engine.socket.setblocking(False)
    message = encode(reserve(engine, make.packed(make.keys(4000, "deaf")), 2**60))

    def is_cut() -> bool:
        try:
            for _ in range(50):
                engine.send(message)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            return True
        return False

    wait_for(is_cut, "the connection of the deaf engine ends")
    assert_serves(shared_plane)


def test_a_data_plane_out_of_descriptors_continues_when_there_are_some_again(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane().start()
    with plane.manager() as manager, ExitStack() as crowd:
        manager.describe()
        before = plane.open_fds()
        resource.prlimit(plane.pid, resource.RLIMIT_NOFILE, (before + 25, before + 25))
        for _ in range(60):
            crowd.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)).connect(plane.socket)
        assert manager.describe().engines == [], "who is connected is served"
        crowd.close()
        wait_for(lambda: plane.open_fds() <= before, "the crowd is gone")
        assert_serves(plane)


def test_engines_are_refused_with_the_last_descriptors(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane().start()
    with plane.manager() as manager:
        manager.describe()
        soft, hard = resource.prlimit(plane.pid, resource.RLIMIT_NOFILE)
        for free in (2, 3):  # one for the connection, and one for its process
            numbers = (number for number in range(soft) if not os.path.lexists(f"/proc/{plane.pid}/fd/{number}"))
            limit = list(islice(numbers, free + 1))[-1]
            resource.prlimit(plane.pid, resource.RLIMIT_NOFILE, (limit, hard))
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(60)
                connection.connect(plane.socket)
                assert connection.recv(4096), "a refusal"
            resource.prlimit(plane.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert_serves(plane)


def test_a_second_data_plane_on_the_same_folder_fails_and_leaves_the_first_alone(plane: Plane) -> None:
    second = forked.run("dataplane", env=plane.environ)
    assert second.returncode == 1
    assert "another data plane uses" in second.stderr
    assert "Traceback" not in second.stderr
    assert_serves(plane)


def test_sigterm_ends_it_in_good_order(plane: Plane) -> None:
    with RawEngine(plane.socket) as engine:
        engine.attach()
        assert plane.stop() == 0
        assert engine.receive() is None
    assert not os.path.exists(plane.socket)
    assert "Traceback" not in plane.log()


TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_traced_request_is_answered_like_the_request_alone(engine: RawEngine) -> None:
    answer = engine.ask(wire.Traced(7, TRACEPARENT, wire.Map(7, [])))
    assert (type(answer).__name__, answer.id) == ("SegmentsMapped", 7)
    assert engine.refusal(wire.Traced(8, TRACEPARENT, wire.Commit(8, 4711))) == (
        Code.UNKNOWN_RESERVATION,
        "reservation",
    )


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "00",
        TRACEPARENT + "-00",
        TRACEPARENT.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        "x" * 9000,
    ],
)
def test_a_traced_request_has_a_traceparent(engine: RawEngine, traceparent: str) -> None:
    assert engine.refusal(wire.Traced(1, traceparent, wire.Map(1, []))) == (Code.BAD_FIELD, "traceparent")


def test_a_traced_request_has_one_id(engine: RawEngine) -> None:
    assert engine.refusal(wire.Traced(1, TRACEPARENT, wire.Map(2, []))) == (Code.BAD_FIELD, "id")


@pytest.mark.parametrize("seconds", [60.0, 0.0, -1.0, math.nan, math.inf])
def test_a_reservation_with_hints_is_answered_like_one_without(engine: RawEngine, seconds: float) -> None:
    assert engine.attached is not None
    chain = make.packed(make.keys(2, ("hints", seconds)))
    request = wire.HintedReserve(7, engine.attached.spaces[0], "", chain, 4096, ttl_s=seconds, pin_s=seconds)
    answer = engine.ask(request)
    assert isinstance(answer, wire.Reserved)
    assert answer.outcomes == bytes(2)
    answer = engine.ask(wire.Commit(8, answer.reservation))
    assert isinstance(answer, wire.BlocksCommitted)
    assert answer.blocks == 2


def test_a_reservation_of_a_session_is_answered_like_one_without(engine: RawEngine) -> None:
    assert engine.attached is not None
    assert engine.attached.sessions
    space, chain = engine.attached.spaces[0], make.packed(make.keys(2, "session"))
    request = wire.SessionReserve(7, space, "", chain, 4096, session="talk")
    assert engine.refusal(wire.SessionReserve(6, space, "", chain, 4096, session="a\nb")) == (Code.BAD_FIELD, "session")
    assert engine.refusal(wire.SessionReserve(6, space, "", chain, 4096)) == (Code.BAD_FIELD, "session")
    answer = engine.ask(wire.Traced(7, TRACEPARENT, request))
    assert isinstance(answer, wire.Reserved)
    assert answer.outcomes == bytes(2)


def test_a_traced_request_cannot_attach_or_hold(raw: RawEngine) -> None:
    assert raw.refusal(wire.Traced(1, TRACEPARENT, wire.Map(1, [])))[0] is Code.NOT_ATTACHED
    attach = wire.Attach(2, wire.VERSION, "g", [wire.SpaceRequest(make.space())])
    assert raw.refusal(wire.Traced(2, TRACEPARENT, attach))[0] is Code.MALFORMED  # type: ignore[arg-type]
    twice = wire.Traced(3, TRACEPARENT, wire.Traced(3, TRACEPARENT, wire.Map(3, [])))  # type: ignore[arg-type]
    assert raw.refusal(twice)[0] is Code.MALFORMED


# ---- connections that are ended


Kernel = Callable[[bytes], bytes]


def refused(_: bytes) -> bytes:
    raise OSError("no such option")


@pytest.mark.parametrize(
    ("kernel", "ended"),
    [
        pytest.param(lambda info: info, True, id="counts"),
        pytest.param(lambda info: info[:192], False, id="older than 4.19"),
        pytest.param(lambda info: info[:128].ljust(len(info), b"\0"), False, id="a sandbox: zeros"),
        pytest.param(refused, False, id="a sandbox: no TCP_INFO"),
    ],
)
def test_a_connection_whose_bytes_the_kernel_does_not_count_is_not_ended(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, ended: bool
) -> None:
    class Socket(socket.socket):
        def getsockopt(self, level: int, option: int, nbytes: int = 0) -> bytes:  # type: ignore[override]
            return kernel(super().getsockopt(level, option, nbytes))

    monkeypatch.setattr(socket, "socket", Socket)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as server, context.socket(zmq.DEALER) as client:
        guard = ConnectionGuard(server, "control", known_bytes=HANDSHAKE_BYTES, max_s=0)
        try:
            server.linger = client.linger = 0
            client.connect(f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}")
            client.send(b"question")
            assert server.poll(int(WAIT_S * 1000)), "the client is connected"
            with capture_logs() as lines:
                guard.step()
            assert [line["event"] for line in lines] == ["peer.connection_ended"] * ended
        finally:
            guard.close()


# ---- draining


def drain(plane: Plane, *, on: bool) -> None:
    with plane.manager() as manager:
        assert manager.ask(Drain("n", on)) == NodeDrained("n", on)


def test_reads_and_open_reservations_continue_and_stores_are_refused(plane: Plane) -> None:
    with connect(plane) as client:
        with client.reserve(make.keys(2), PAGE, tenant="a") as reservation:
            drain(plane, on=True)
            reservation.commit()
        assert client.lookup(make.keys(4)) == 2
        more = client.reserve(make.keys(4), PAGE, tenant="a")
        assert more.refused == {Code.DRAINING: 2}
        lease = client.acquire(make.keys(4))
        assert len(lease) == 2
        lease.release()
        stats = plane.describe()
        assert stats.draining
        assert stats.refused == {"draining": 2}
        drain(plane, on=False)
        assert client.reserve(make.keys(4), PAGE, tenant="a").refused == {}
        assert not plane.describe().draining


def test_a_draining_node_refuses_new_engines(plane: Plane) -> None:
    drain(plane, on=True)
    with pytest.raises(AttachRefused) as caught:
        connect(plane)
    assert caught.value.code is Code.DRAINING
    drain(plane, on=False)
    with connect(plane) as client:
        assert client.lookup(make.keys(1)) == 0


def test_an_engine_that_keeps_trying_attaches_when_the_drain_ends(plane: Plane) -> None:
    events: list[ClientEvent] = []
    drain(plane, on=True)
    space = make.space()
    with attach(plane.socket, [space], timeout_s=30, keep_trying=True, on_event=events.append) as client:
        assert (client.connected, client.lookup(make.keys(1))) == (False, 0)
        assert [(event.name, event.fields["code"]) for event in events] == [("refused", Code.DRAINING)]
        drain(plane, on=False)
        wait_for(lambda: client.lookup(make.keys(1)) or client.connected, "it attaches", WAIT_S)
        assert client.reserve(make.keys(1), PAGE, tenant="a").refused == {}
    assert [event.name for event in events][:2] == ["refused", "attached"]


def test_a_drained_node_is_drained_after_a_restart(plane: Plane) -> None:
    drain(plane, on=True)
    plane.kill()
    plane.start()
    assert plane.describe().draining
    drain(plane, on=False)
    drain(plane, on=False)
    plane.stop()
    plane.start()
    assert not plane.describe().draining
    with connect(plane) as client:
        wait_for(lambda: client.reserve(make.keys(1), PAGE, tenant="a").refused == {}, "it stores", WAIT_S)


# ---- who may attach


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

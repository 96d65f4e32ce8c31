"""A broken data plane is a miss and an event in the engine: never an exception, and never a signal."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from dataplane.client import Client, ClientEvent, Code, Lease, attach, link
from dataplane.client.integrity import Verify
from dataplane.client.link import CHECK_INTERVAL_S
from dataplane.client.link_state import LinkState
from dataplane.client.memory import SharedMapping, window
from dataplane.client.reservations import Reservation
from dataplane.protocol import engine as wire
from dataplane.protocol.codec import encode
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.layout import A_RING_DROPPED, A_RING_HEAD, A_RING_TAIL, COLD_CHECKSUM, H_ADOPTED_NS
from dataplane.protocol.states import State
from dataplane.protocol.tier_directory import TierDirectory, buckets_for, directory_bytes
from tests.dataplane import factories as make
from tests.dataplane.broken_plane import SEALS, SEGMENT, BrokenPlane, memory, use
from tests.dataplane.plane import wait_for
from tests.threads import join

KEYS = make.keys(4)
NBYTES = 4096
Broken = Callable[..., BrokenPlane]
_engines: list[Engine] = []


@pytest.fixture
def broken(socket_dir: Path) -> Iterator[Broken]:
    made: list[BrokenPlane] = []
    _engines.clear()

    def new(**options: Any) -> BrokenPlane:
        made.append(BrokenPlane(socket_dir, **options))
        return made[-1]

    yield new
    for engine in _engines:
        engine.client.close()
    for each in made:
        each.close()


class Clock:
    """The time of clients, which stands still unless a test changes it."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(link, "time", clock)
    return clock


class Engine:
    """A client, and its events."""

    def __init__(self, plane: BrokenPlane, timeout_s: float = 3.0, spaces: int = 1, verify: Verify = "off") -> None:
        self.events: list[ClientEvent] = []
        self.client: Client = attach(
            plane.socket,
            [make.space(rank=rank, world_size=spaces) for rank in range(spaces)],
            timeout_s=timeout_s,
            on_event=self.events.append,
            verify=verify,
        )
        _engines.append(self)

    @property
    def heard(self) -> list[str]:
        return [event.name for event in self.events]

    def use(self) -> None:
        use(self.client, KEYS, NBYTES)


def reserved(
    *,
    outcomes: bytes = bytes(4),
    segments: bytes = np.ones(4, np.uint32).tobytes(),
    offsets: bytes = (np.arange(4, dtype=np.uint64) * NBYTES).tobytes(),
    grants: tuple[wire.SegmentGrant, ...] = (wire.SegmentGrant(1, SEGMENT, True),),
    fds: Callable[[], list[int]] = lambda: [memory(SEGMENT)],
    reservation: int = 9,
    retired: tuple[int, ...] = (),
) -> Callable[[Any], Any]:
    """Answers reservations so, and everything else well."""

    def answer(request: Any) -> Any:
        if isinstance(request, wire.Reserve):
            number = request.id
            reply = wire.Reserved(number, reservation, outcomes, segments, offsets, list(grants), list(retired))
            return reply, fds()
        if isinstance(request, wire.Commit):
            return wire.BlocksCommitted(request.id, 4), []
        if isinstance(request, wire.Abort):
            return wire.Aborted(request.id), []
        return wire.SegmentsMapped(request.id, []), []

    return answer


def grant(nbytes: int, segment: int = 1, *, writable: bool = True) -> tuple[wire.SegmentGrant, ...]:
    return (wire.SegmentGrant(segment, nbytes, writable),)


def everywhere(offset: int) -> bytes:
    return np.full(4, offset, np.uint64).tobytes()


def a_pipe() -> list[int]:
    reading, writing = os.pipe()
    os.close(reading)
    return [writing]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"offsets": everywhere(SEGMENT)},
        {"offsets": everywhere(SEGMENT - NBYTES + 1)},
        {"offsets": everywhere(1 << 40)},
        {"offsets": everywhere(1 << 63)},
        {"offsets": everywhere((1 << 64) - 1)},
        {"grants": grant(SEGMENT, writable=False)},
        {"grants": grant(-1)},
        {"grants": grant(0)},
        {"grants": grant(1 << 63)},
        {"grants": grant(2 * SEGMENT)},
        {"grants": grant(SEGMENT // 2)},
        {"grants": grant(SEGMENT, 0)},
        {"grants": grant(SEGMENT, -1)},
        {"grants": grant(SEGMENT) * 2},
        {"grants": ()},
        {"fds": list},
        {"fds": a_pipe},
        {"fds": lambda: [memory(SEGMENT, 0)]},
        {"fds": lambda: [os.open("/dev/zero", os.O_RDWR)]},
        {"outcomes": b""},
        {"outcomes": bytes(1)},
        {"outcomes": bytes(9)},
        {"segments": b"abc"},
        {"segments": bytes(4)},
        {"segments": np.ones(5, np.uint32).tobytes()},
        {"offsets": bytes(8)},
        {"offsets": bytes(31)},
        {"reservation": 0},
        {"reservation": -1},
    ],
)
def test_a_wrong_reservation_is_refused_here_and_the_connection_is_given_up(
    broken: Broken, wrong: dict[str, Any]
) -> None:
    engine = Engine(broken(answer=reserved(**wrong)))
    before = descriptors()
    reservation = engine.client.reserve(KEYS, NBYTES)
    assert reservation.refused == {Code.UNAVAILABLE: 4}
    assert reservation.writable == []
    assert reservation.copy_from(bytes(4 * NBYTES)) == 0
    assert reservation.commit().blocks == 0
    assert engine.heard == ["attached", "fault", "lost"]
    assert engine.client.lookup(KEYS) == 0
    wait_for(lambda: descriptors() <= before, "all descriptors are closed")
    engine.use()


@pytest.mark.parametrize("segment", [0, 2])
def test_a_segment_that_never_comes_refuses_the_reservation(broken: Broken, segment: int) -> None:
    plane = broken(answer=reserved(segments=np.full(4, segment, np.uint32).tobytes()))
    engine = Engine(plane)
    assert engine.client.reserve(KEYS, NBYTES).refused == {Code.UNAVAILABLE: 4}
    engine.use()


@pytest.mark.parametrize(
    "say",
    [
        lambda request: b"\xc1\xff",
        lambda request: b"\x91" * 100_000,
        lambda request: (wire.BlocksCommitted(request.id, 1), []),
        lambda request: (wire.Attached(request.id, 1, "", 5, [1], True, 1.0), [memory(SEGMENT)]),
        lambda request: (wire.Leased(request.id, bytes(16)), []),
        lambda request: (wire.Serving(request.id, 5), []),
        lambda request: None,
        lambda request: (wire.Refused(request.id, 2**64 - 1, "x"), []),
        lambda request: (wire.Refused(request.id, -5, "x"), []),
        lambda request: (wire.SegmentsMapped(999_999, []), []),
    ],
)
def test_answers_that_are_none(broken: Broken, say: Callable[[Any], Any]) -> None:
    engine = Engine(broken(answer=say), timeout_s=1.0)
    reservation = engine.client.reserve(KEYS, NBYTES)
    assert reservation.writable == []
    engine.use()
    assert len(engine.events) >= 2


@pytest.mark.parametrize("blocks", [-1, 1 << 63])
def test_a_commit_of_an_impossible_number_of_blocks(broken: Broken, blocks: int) -> None:
    right = reserved()
    engine = Engine(
        broken(
            answer=lambda request: (
                (wire.BlocksCommitted(request.id, blocks), []) if isinstance(request, wire.Commit) else right(request)
            )
        )
    )
    committed = engine.client.reserve(KEYS, NBYTES).commit()
    assert (committed.blocks, committed.code) == (0, Code.UNAVAILABLE)
    assert "fault" in engine.heard


def test_memory_that_could_be_cut_short_is_never_mapped(broken: Broken) -> None:
    engine = Engine(broken(seals=0))
    assert not engine.client.connected
    assert engine.heard == ["fault"]
    assert "sealed" in engine.events[0].detail
    engine.use()


def test_when_one_of_many_grants_is_wrong_no_descriptor_is_left(broken: Broken) -> None:
    numbers = range(1, 11)
    engine = Engine(
        broken(
            answer=reserved(
                grants=tuple(wire.SegmentGrant(number, SEGMENT, True) for number in numbers),
                fds=lambda: [memory(SEGMENT if number != 3 else 1) for number in numbers],
            )
        )
    )
    before = descriptors()
    assert engine.client.reserve(KEYS, NBYTES).refused == {Code.UNAVAILABLE: 4}
    wait_for(lambda: descriptors() <= before, "all descriptors are closed")


# ---- attaching


@pytest.mark.parametrize(
    "wrong",
    [
        {"spaces": []},
        {"spaces": [1, 2]},
        {"spaces": [0]},
        {"spaces": [-1]},
        {"spaces": [1 << 32]},
        {"spaces": [(1 << 64) - 1]},
        {"max_blocks": 2048},
        {"area_blocks": 2},
        {"ring_entries": 0},
        {"ring_entries": 1 << 63},
        {"attach_fds": lambda plane: []},
        {"attach_fds": lambda plane: [plane.index_fd]},
        {"attach_fds": lambda plane: [plane.index_fd, plane.area_fd, plane.area_fd]},
        {"attach_fds": lambda plane: [plane.area_fd, plane.index_fd]},
        {"attach_fds": lambda plane: a_pipe() * 2},
        {"attach_fds": lambda plane: [memory(0)] * 2},
        {"attach_fds": lambda plane: [memory(5)] * 2},
        {"attach_fds": lambda plane: [memory(4097)] * 2},
        {"attach_fds": lambda plane: [memory(1 << 62)] * 2},
    ],
)
def test_a_wrong_attach_is_a_miss_and_an_event(broken: Broken, wrong: dict[str, Any]) -> None:
    engine = Engine(broken(answer=reserved(), **wrong))
    assert not engine.client.connected
    assert engine.heard == ["fault"]
    engine.use()


@pytest.mark.parametrize("head", [1 << 63, (1 << 64) - 1])
def test_an_access_ring_that_begins_beyond_all_numbers(broken: Broken, head: int) -> None:
    plane = broken()
    plane.area.header[A_RING_HEAD] = head
    plane.area.header[A_RING_TAIL] = head
    engine = Engine(plane)
    assert engine.heard == ["fault"]
    engine.use()


def test_an_access_ring_with_invalid_counters_is_rejected(broken: Broken) -> None:
    plane = broken(answer=mapped())
    plane.publish(KEYS[0])
    engine = Engine(plane)
    for word in (A_RING_TAIL, A_RING_DROPPED, A_RING_HEAD):
        for value in ((1 << 64) - 1, 1 << 63, 0):
            plane.area.header[word] = np.uint64(value)
            engine.client.lookup(KEYS)
            assert len(engine.client.acquire(KEYS)) == 1


def test_an_attach_too_large_for_a_datagram_is_a_value_error(broken: Broken) -> None:
    spaces = [make.space("m" * 256, rank=rank, world_size=1000) for rank in range(1000)]
    with pytest.raises(ValueError, match="fewer spaces"):
        attach(broken().socket, spaces)


def test_an_unusable_socket_is_reported_once(socket_dir: Path) -> None:
    events: list[ClientEvent] = []
    long = socket_dir / ("x" * 200)
    with attach(long, [make.space()], on_event=events.append) as client:
        wait_for(lambda: client.lookup(KEYS) or events, "it is reported")
        for _ in range(20):
            client.lookup(KEYS)
            time.sleep(0.01)
    assert [event.name for event in events] == ["refused"]


def test_a_broken_data_plane_is_retried_with_pauses(broken: Broken, clock: Clock) -> None:
    plane = broken(answer=reserved(outcomes=b""))
    engine = Engine(plane)

    def answered() -> bool:
        engine.client.lookup(KEYS)
        return engine.client._link._state is not LinkState.ATTACHING

    for _ in range(500):
        clock.now += 0.002
        wait_for(answered, "it answers the attach")
        engine.client.reserve(KEYS, NBYTES)
    attaches = sum(isinstance(request, wire.Attach) for request in plane.requests)
    assert 3 < attaches < 10, "in a second of the clock"


def test_an_attach_that_is_never_answered_is_given_up_and_tried_again(socket_dir: Path, clock: Clock) -> None:
    """The data plane hangs, and another one listens at its path."""
    path = socket_dir / "engine.sock"
    with ExitStack() as stack:
        hanging, other = (stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in range(2))
        hanging.bind(str(path))
        hanging.listen(4)
        client = stack.enter_context(attach(path, [make.space()], timeout_s=0.1))
        path.unlink()
        other.bind(str(path))
        other.listen(4)
        other.setblocking(False)
        for _ in range(5):
            clock.now += link.ATTACH_S / 10
            client.maintain()
        with pytest.raises(BlockingIOError):
            other.accept()
        for _ in range(2):
            clock.now += link.ATTACH_S
            client.maintain()
        stack.enter_context(other.accept()[0])
        with pytest.raises(BlockingIOError):
            other.accept()


# ---- reading


def mapped(nbytes: int = SEGMENT, *, writable: bool = False) -> Callable[[Any], Any]:
    """Grants each segment that is asked for."""

    def answer(request: Any) -> Any:
        if isinstance(request, wire.Map):
            grants = [wire.SegmentGrant(number, nbytes, writable) for number in request.segments]
            return wire.SegmentsMapped(request.id, grants), [memory(nbytes) for _ in grants]
        return wire.Refused(request.id, int(Code.POOL_FULL), "full"), []

    return answer


@pytest.mark.parametrize(
    "location",
    [
        {"offset": SEGMENT},
        {"offset": SEGMENT - NBYTES + 1},
        {"offset": 1 << 40},
        {"offset": 1 << 63},
        {"offset": (1 << 64) - NBYTES},
        {"nbytes": SEGMENT + 1},
        {"nbytes": 1 << 63},
        {"nbytes": (1 << 64) - 1, "offset": 1},
    ],
)
def test_blocks_beyond_their_segment_end_the_run(broken: Broken, location: dict[str, int]) -> None:
    plane = broken(answer=mapped())
    plane.publish(KEYS[0], at=1)
    plane.publish(KEYS[1], at=2, **location)
    plane.publish(KEYS[2], at=3)
    engine = Engine(plane)
    for _ in range(3):
        with engine.client.acquire(KEYS) as lease:
            assert len(lease) == 1
            assert bytes(lease.view(0)) == bytes(NBYTES)
            assert lease.copy_to(bytearray(NBYTES)) == NBYTES
            assert plane.area.counters[:4].tolist() == [0, 1, 0, 0]
        del lease
    assert not plane.area.counters.any()
    assert engine.heard == ["attached", "fault"], "reported once"
    assert len(engine.client.acquire(KEYS[1:2])) == 0


def test_blocks_of_segments_of_different_sizes_are_read(broken: Broken) -> None:
    def answer(request: Any) -> Any:
        if not isinstance(request, wire.Map):
            return mapped()(request)
        sizes = {1: SEGMENT, 2: 4 * SEGMENT}
        grants = [wire.SegmentGrant(number, sizes[number], False) for number in request.segments]
        return wire.SegmentsMapped(request.id, grants), [memory(sizes[number]) for number in request.segments]

    plane = broken(answer=answer)
    plane.publish(KEYS[0], at=1)
    plane.publish(KEYS[1], at=2, segment=2, offset=4 * SEGMENT - NBYTES)
    engine = Engine(plane)
    with engine.client.acquire(KEYS) as lease:
        assert len(lease) == 2
        assert bytes(lease.view(1)) == bytes(NBYTES)
    assert engine.heard == ["attached"]


def test_an_index_entry_beyond_the_index_is_a_miss(broken: Broken) -> None:
    plane = broken(answer=mapped())
    plane.publish(KEYS[0], at=5000, nbytes=State.READY)
    engine = Engine(plane)
    assert len(engine.client.acquire(KEYS)) == 0


@pytest.mark.parametrize(
    "answer",
    [
        np.array([5000], np.uint32).tobytes(),
        np.array([64], np.uint32).tobytes(),
        np.array([2**32 - 1], np.uint32).tobytes(),
        b"abc",
        bytes(4 * 1000),
    ],
)
def test_leases_by_message_of_missing_blocks_are_refused(broken: Broken, answer: bytes) -> None:
    engine = Engine(broken(membarrier=False, answer=lambda request: (wire.Leased(request.id, answer), [])))
    assert len(engine.client.acquire(KEYS)) == 0
    assert "fault" in engine.heard
    engine.use()


def test_a_lease_by_message_of_another_block_is_a_miss(broken: Broken) -> None:
    right = mapped()
    plane = broken(
        membarrier=False,
        answer=lambda request: (
            (wire.Leased(request.id, np.array([1, 2], np.uint32).tobytes()), [])
            if isinstance(request, wire.LeaseRequest)
            else right(request)
        ),
    )
    plane.publish(KEYS[0], at=1)
    plane.publish(KEYS[2], at=2)
    engine = Engine(plane)
    assert len(engine.client.acquire(KEYS)) == 1


class LockWithDrop:
    """The lock of an attachment, during whose use number `at` a lease is released, as another thread does."""

    def __init__(self, lock: threading.Lock, lease: Lease, at: int) -> None:
        self.acquire, self.release = lock.acquire, lock.release
        self._lease, self.left = lease, at

    def __enter__(self) -> None:
        self.acquire()
        self.left -= 1
        if not self.left:
            self._lease.release()

    def __exit__(self, *_: object) -> None:
        self.release()


@pytest.mark.parametrize(
    ("call", "at"), [("lookup", 1), ("acquire", 1), ("acquire", 2), *(("acquire by message", at) for at in (1, 2, 3))]
)
def test_the_counter_of_a_lease_falls_when_another_thread_has_the_lock(broken: Broken, call: str, at: int) -> None:
    def answer(request: Any) -> Any:
        return (wire.Leased(request.id, b""), []) if isinstance(request, wire.LeaseRequest) else mapped()(request)

    plane = broken(answer=answer)
    plane.publish(KEYS[0])
    client = Engine(plane).client
    lease, attachment = client.acquire(KEYS), client._memory.current
    assert attachment is not None
    assert (len(lease), plane.area.counters.sum()) == (1, 1)
    attachment.membarrier = call != "acquire by message"
    attachment._lock = lock = LockWithDrop(attachment._lock, lease, at)  # type: ignore[assignment]
    others = make.keys(2, "others")
    found = client.lookup(others) if call == "lookup" else client.acquire(others)
    assert lock.left <= 0
    assert plane.area.counters.sum() == 0
    del found  # a lease that ends lowers counters, too


# ---- time


def test_a_flood_of_answers_to_nothing_ends_the_wait(broken: Broken) -> None:
    engine = Engine(broken(flood=encode(wire.Aborted(0))), timeout_s=0.3)
    assert engine.client.reserve(KEYS, NBYTES).writable == []
    for _ in range(20):
        engine.client.lookup(KEYS)


def test_a_flood_of_late_answers_does_not_hold_up_a_lookup(broken: Broken, clock: Clock) -> None:
    engine = Engine(broken())
    late, taken = encode(wire.Refused(0, 1, "x" * 100_000)), 0

    def take() -> tuple[bytes, list[int]]:
        nonlocal taken
        taken += 1
        clock.now += 0.001
        return late, []

    engine.client._link._receive_datagram = take  # type: ignore[method-assign]
    for _ in range(3):
        clock.now += CHECK_INTERVAL_S
        began, taken = clock.now, 0
        engine.client.lookup(KEYS)
        assert taken > 0
        assert clock.now - began < 0.01


class Stalled:
    """A data plane that takes no more requests after the first prefetch, and a client that has filled its socket."""

    def __init__(self, broken: Broken) -> None:
        self._stalled, self._go_on = threading.Event(), threading.Event()
        self.plane = broken(answer=self._answer)
        self.engine = Engine(self.plane, timeout_s=1.0)

    def _answer(self, request: Any) -> Any:
        if not isinstance(request, wire.Prefetch):
            return reserved()(request)
        self._stalled.set()
        assert self._go_on.wait(60)
        return wire.Prefetching(request.id), []

    def fill(self) -> None:
        link = self.engine.client._link
        large = b"k" * KEY_BYTES * wire.MAX_KEYS_PER_REQUEST
        while link.post(lambda number: wire.Prefetch(number, 1, large, 1.0), lambda answer, fds: None):
            pass
        assert self._stalled.wait(60)
        while link.post(lambda number: wire.Abort(number, 1), lambda answer, fds: None):
            pass

    def go_on(self) -> None:
        self._go_on.set()


@pytest.fixture
def stalled(broken: Broken) -> Iterator[Stalled]:
    stalled = Stalled(broken)
    yield stalled
    stalled.go_on()


def test_a_request_that_finds_no_room_is_not_sent_and_the_next_ones_do_not_wait(stalled: Stalled) -> None:
    engine = stalled.engine
    stalled.fill()
    for _ in range(3):
        assert engine.client.reserve(KEYS, NBYTES).refused == {Code.UNAVAILABLE: len(KEYS)}
    assert engine.heard == ["attached", "timeout"], "one of them waited for room"
    assert engine.client.connected
    stalled.go_on()
    wait_for(lambda: engine.client.reserve(KEYS, NBYTES).writable, "requests are sent again")
    assert "lost" not in engine.heard


@pytest.mark.parametrize("end", [Reservation.abort, Reservation.commit])
def test_an_abort_that_finds_no_room_is_sent_when_there_is_some(
    stalled: Stalled, end: Callable[[Reservation], object]
) -> None:
    reservation = stalled.engine.client.reserve(KEYS, NBYTES)
    number = reservation.number
    assert number
    stalled.fill()
    end(reservation)
    stalled.go_on()

    def aborts() -> int:
        stalled.engine.client.maintain()
        requests = list(stalled.plane.requests)
        return sum(isinstance(request, wire.Abort) and request.reservation == number for request in requests)

    wait_for(aborts, "the abort is sent")
    for _ in range(3):
        assert aborts() == 1
    assert stalled.engine.client.connected


# ---- mappings


def segments_mapped() -> int:
    """Mapped segments, of this test and of none before."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        return sum("broken-segment" in line for line in maps)


def test_retired_segments_are_unmapped_with_their_last_view_and_keep_no_descriptor(broken: Broken) -> None:
    retired: list[int] = []
    requests: list[int] = []

    def answer(request: Any) -> Any:
        if isinstance(request, wire.Map):
            requests.extend(request.segments)
        if not isinstance(request, wire.Reserve):
            return mapped()(request)
        gone, retired[:] = list(retired), []
        return wire.Reserved(request.id, 0, b"\xfe" * 4, bytes(16), bytes(32), [], gone), []

    plane = broken(answer=answer)
    plane.publish(KEYS[0])
    engine = Engine(plane)
    gc.collect()
    maps, open_before = segments_mapped(), descriptors()
    lease = engine.client.acquire(KEYS)
    view = lease.view(0)
    wait_for(lambda: descriptors() <= open_before, "a mapping keeps no descriptor")
    assert segments_mapped() == maps + 1
    retired.append(1)
    engine.client.reserve(KEYS, NBYTES)
    assert bytes(view) == bytes(NBYTES), "views keep their mapping"
    assert bytes(lease.view(0)) == bytes(NBYTES), "leases too"
    lease.release()
    del lease
    assert segments_mapped() == maps + 1
    assert bytes(view[-1:]) == b"\0"
    del view
    gc.collect()
    assert segments_mapped() == maps, "nothing of it is left"
    assert requests == [1]
    assert len(engine.client.acquire(KEYS)) == 1
    assert requests == [1, 1], "it was forgotten"


def test_a_reservation_keeps_its_mapping_until_it_ends(broken: Broken) -> None:
    plane = broken(answer=reserved(retired=(77,)))
    engine = Engine(plane)
    gc.collect()
    maps = segments_mapped()
    reservation = engine.client.reserve(KEYS, NBYTES)
    engine.client.close()
    gc.collect()
    reservation.view(0)[:] = b"x" * NBYTES
    assert segments_mapped() == maps + 1
    reservation.abort()
    gc.collect()
    assert segments_mapped() == maps


@pytest.mark.parametrize(
    ("fd", "nbytes", "expected"),
    [
        (lambda: memory(SEGMENT, 0), SEGMENT, "sealed"),
        (lambda: memory(SEGMENT, SEALS & ~2), SEGMENT, "sealed"),
        (lambda: memory(SEGMENT), SEGMENT + 1, "65537 bytes"),
        (lambda: memory(0), None, "got 0"),
        (lambda: memory(1 << 62), None, os.strerror(errno.ENOMEM)),
        (lambda: a_pipe()[0], None, "memory fd"),
    ],
)
def test_memory_is_mapped_only_if_it_matches_the_answer(
    fd: Callable[[], int], nbytes: int | None, expected: str
) -> None:
    opened = fd()
    try:
        with pytest.raises(ProtocolError, match=expected):
            SharedMapping.map(opened, nbytes, writable=True)
    finally:
        os.close(opened)


def test_no_window_reaches_beyond_its_memory() -> None:
    fd = memory(SEGMENT)
    whole = SharedMapping.map(fd, SEGMENT, writable=False)
    os.close(fd)
    assert len(window(None, whole, SEGMENT - 8, 8, writable=False)) == 8
    for offset, nbytes, writable in ((-1, 8, False), (SEGMENT - 7, 8, False), (0, -1, False), (0, 8, True)):
        with pytest.raises(ValueError, match="within"):
            window(None, whole, offset, nbytes, writable=writable)


def test_a_mapping_outlives_collections_in_other_threads() -> None:
    fd = memory(SEGMENT)
    whole = SharedMapping.map(fd, writable=True)
    view = whole.view()
    os.close(fd)
    del whole
    thread = threading.Thread(target=gc.collect)
    thread.start()
    join(thread)
    view[-1] = 7
    assert view[-1] == 7


# ---- refusals


def tiers_mapped(number: int) -> tuple[Any, list[int]]:
    """The answer with a directory that lists nothing."""
    buckets = buckets_for(64)
    nbytes = directory_bytes(buckets)
    fd = memory(nbytes)
    TierDirectory.make(memoryview(mmap.mmap(fd, 0)), buckets)
    return wire.TiersMapped(number, nbytes), [fd]


# ---- any answers


EXAMPLES = 40
REPLIES = get_args(wire.EngineReply)


@pytest.fixture
def many_broken(socket_dir: Path) -> Iterator[Callable[..., BrokenPlane]]:
    made: list[BrokenPlane] = []

    def new(**options: Any) -> BrokenPlane:
        folder = socket_dir / str(len(made))
        folder.mkdir()
        made.append(BrokenPlane(folder, **options))
        return made[-1]

    yield new
    for each in made:
        each.close()


def right_answer(request: Any) -> tuple[Any, list[int]]:
    """What a data plane would say."""
    number = request.id
    if isinstance(request, wire.Reserve):
        keys = len(request.keys) // 32
        offsets = b"".join((NBYTES * at).to_bytes(8, "little") for at in range(keys))
        grant = wire.SegmentGrant(1, SEGMENT, True)
        segments = (1).to_bytes(4, "little") * keys
        return wire.Reserved(number, 7, bytes(keys), segments, offsets, [grant]), [memory(SEGMENT)]
    if isinstance(request, wire.Map):
        grants = [wire.SegmentGrant(segment, SEGMENT, False) for segment in request.segments]
        return wire.SegmentsMapped(number, grants), [memory(SEGMENT) for _ in grants]
    if isinstance(request, wire.Commit):
        return wire.BlocksCommitted(number, 4), []
    if isinstance(request, wire.LeaseRequest):
        return wire.Leased(number, (3).to_bytes(4, "little")), []
    if isinstance(request, wire.Report):
        return wire.Reported(number, 1), []
    return wire.Aborted(number), []


@pytest.mark.parametrize(
    ("served", "membarrier", "refused"),
    [
        ((), True, {"map_tiers", "map", "report_request"}),
        ((), False, {"map_tiers", "lease", "report_request"}),
        ((wire.Map, wire.MapTiers), True, {"prefetch", "report", "report_request"}),
    ],
)
def test_a_refused_request_is_an_event_unless_the_last_one_had_the_same_message(
    broken: Broken, served: tuple[type, ...], membarrier: bool, refused: set[str]
) -> None:
    message = "no memory"

    def answer(request: Any) -> tuple[Any, list[int]]:
        if not isinstance(request, served):
            return wire.Refused(request.id, int(Code.OUT_OF_MEMORY), message), []
        return tiers_mapped(request.id) if isinstance(request, wire.MapTiers) else right_answer(request)

    plane = broken(answer=answer, membarrier=membarrier)
    plane.publish(KEYS[0])
    plane.index.cold[3, COLD_CHECKSUM] = 1  # not that of its bytes
    engine = Engine(plane, verify="always")
    client = engine.client
    client._link.terms = msgspec.structs.replace(client._link.terms, tiers=True, requests=True)
    report = partial(wire.ReportRequest, request="r", tenant="", prompt_tokens=1, engine_tokens=0, loaded_tokens={})

    def refusals() -> list[str]:
        client.report_request(partial(report, missed_tokens=1), lambda answer: None)
        client.prefetch(KEYS)
        client.acquire(KEYS)
        return sorted(event.name for event in engine.events if event.detail == message)

    expected = sorted(f"{name}_refused" for name in refused)
    wait_for(lambda: refusals() == expected, "all refusals are reported")
    for _ in range(10):
        assert refusals() == expected
    if wire.Map not in served:  # a corrupt block is reported once, and directories are asked for once
        repeated = [name for name in expected if name != "map_tiers_refused"]
        message = "still no memory"
        wait_for(lambda: refusals() == repeated, "another message is reported")
    assert client.connected


def wrong_answer(rng: random.Random, request: Any) -> tuple[Any, list[int]] | bytes | None:
    """Something else: another kind, wild values, damaged bytes, other descriptors, or nothing."""
    message, fds = right_answer(request)
    choice = rng.randrange(6)
    if choice == 0 or rng.random() < 0.5:
        return message, fds
    if choice != 4 and choice != 5:
        for fd in fds:
            os.close(fd)
    if choice == 1:
        fields = [anything(rng) for _ in range(rng.randint(0, 8))]
        tag = rng.choice(REPLIES).__struct_config__.tag
        return msgspec.msgpack.encode([tag, rng.choice([request.id, anything(rng)]), *fields])
    if choice == 2:
        data = bytearray(encode(message))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data[: rng.randint(1, len(data))] if rng.random() < 0.3 else data)
    if choice == 3:
        return rng.randbytes(rng.randint(1, 200))
    if choice == 4:
        changed = {
            field.name: wild(rng, getattr(message, field.name))
            for field in msgspec.structs.fields(message)
            if rng.random() < 0.4
        }
        return msgspec.structs.replace(message, **{**changed, "id": request.id}), fds
    if rng.random() < 0.1:
        return None
    for fd in fds:  # less memory than it says
        os.close(fd)
    return message, [memory(SEGMENT // 2) for _ in fds]


def anything(rng: random.Random) -> object:
    return rng.choice([None, True, -1, 0, 1, 2**63, 1.5, "x", b"", rng.randbytes(8), rng.randbytes(32), [], [1]])


def wild(rng: random.Random, value: object) -> object:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([-1, 0, 1, 2**31, 2**32 - 1, 2**32, 2**62])
    if isinstance(value, bytes):
        return rng.choice([b"", rng.randbytes(len(value)), value[:-1], value * 2, b"\xff" * len(value)])
    if isinstance(value, list):
        return rng.choice([[], value * 2, value[:-1]])
    return value


@pytest.mark.parametrize("membarrier", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_no_answer_raises_in_the_engine(many_broken: Callable[..., BrokenPlane], seed: int, membarrier: bool) -> None:
    rng = random.Random(seed)
    kinds = set()
    for _ in range(EXAMPLES):
        plane = many_broken(membarrier=membarrier, answer=lambda request: wrong_answer(rng, request))
        plane.publish(KEYS[0])
        if rng.random() < 0.5:  # whoever reads holds it against a checksum that is wrong, and reports it
            plane.index.cold[3, :2] = (1, 2)
            plane.index.header[H_ADOPTED_NS] = 1 << 62
        with attach(
            plane.socket, [make.space()], timeout_s=0.05, verify="always", on_event=lambda event: None
        ) as client:
            for _ in range(3):
                use(client, KEYS)
        kinds |= {type(request).__name__ for request in plane.requests}
    assert kinds >= {"Attach", "Reserve", "Commit", "Map" if membarrier else "LeaseRequest"}

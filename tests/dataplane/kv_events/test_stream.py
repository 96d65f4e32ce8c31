"""The sockets: frames, sequence numbers, gaps, replays, and malformed requests."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from struct import pack, unpack
from time import monotonic

import pytest
import zmq

from dataplane.kv_events.messages import EventEncoder, batch
from dataplane.kv_events.stream import END, REPLAY_QUEUE, REPLAY_STALLS_S, Stream
from tests.clock import Clock
from tests.dataplane.kv_events.decoders import llm_d

HEAD = batch(1.0, [EventEncoder("map", "CPU").cleared()])
WAIT_MS = 10_000


OPENED: list[zmq.Socket[bytes]] = []
"""Sockets of peers, until the end of the test."""


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    while OPENED:
        OPENED.pop().close(linger=0)
    made.term()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stream(context: zmq.Context[zmq.Socket[bytes]], socket_dir: Path, clock: Clock) -> Iterator[Stream]:
    made = Stream(context, f"ipc://{socket_dir}/p", f"ipc://{socket_dir}/r", 2, 10, 50, clock)
    yield made
    made.close()


def subscriber(context: zmq.Context[zmq.Socket[bytes]], stream: Stream, topic: bytes = b"") -> zmq.Socket[bytes]:
    """Return a connected subscriber."""
    socket = context.socket(zmq.SUB)
    OPENED.append(socket)
    socket.setsockopt(zmq.RCVHWM, 10)
    socket.subscribe(topic)
    socket.connect(stream.url)
    for _ in range(1000):
        stream.send(b"hello", HEAD, 1)
        if socket.poll(10):
            return socket
    raise AssertionError("the subscriber arrives")


def asking(context: zmq.Context[zmq.Socket[bytes]], stream: Stream, kind: int = zmq.REQ) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    OPENED.append(socket)
    socket.connect(stream.replay_url)
    return socket


def served(stream: Stream, socket: zmq.Socket[bytes]) -> list[list[bytes]]:
    """Return the answers up to the end marker."""
    answers: list[list[bytes]] = []
    for _ in range(1000):
        stream.step()
        while socket.poll(5):
            answers.append(socket.recv_multipart())
            if answers[-1][-2] == END:
                return answers
    raise AssertionError("the replay ends")


def numbers(answers: list[list[bytes]]) -> list[int]:
    return [unpack(">q", frames[-2])[0] for frames in answers]


def test_frames_are_those_of_vllm(context: zmq.Context[zmq.Socket[bytes]], stream: Stream):
    socket = subscriber(context, stream, b"")
    while socket.poll(50):
        socket.recv_multipart()
    before = stream.seq
    stream.send(b"kv@n@m", HEAD, 1)
    assert socket.poll(WAIT_MS)
    topic, number, payload = socket.recv_multipart()
    assert (topic, number) == (b"kv@n@m", before.to_bytes(8, "big"))
    assert [event.kind for event in llm_d(payload)] == ["AllBlocksCleared"]
    assert payload[-1] == 2


def test_a_slow_subscriber_sees_a_gap_and_delays_no_other(context: zmq.Context[zmq.Socket[bytes]], stream: Stream):
    socket = subscriber(context, stream)
    for _ in range(3000):
        stream.send(b"kv", HEAD + bytes(10_000), 1)
    assert stream.dropped > 0
    assert stream.published == stream.seq
    got = []
    while socket.poll(200):
        got.append(int.from_bytes(socket.recv_multipart()[1], "big"))
    for _ in range(1000):  # it is served again, and sees from the number what it missed
        stream.send(b"kv", HEAD, 1)
        if socket.poll(10):
            break
    got.append(int.from_bytes(socket.recv_multipart()[1], "big"))
    assert any(after - before > 1 for before, after in itertools.pairwise(got))


@pytest.mark.parametrize("kind", [zmq.REQ, zmq.DEALER])
def test_a_replay_has_every_batch_from_a_number_on_and_then_the_end(
    context: zmq.Context[zmq.Socket[bytes]], stream: Stream, kind: int
):
    for at in range(80):
        stream.send(f"t{at}".encode(), HEAD, 3)
    socket = asking(context, stream, zmq.DEALER)  # a REQ socket takes one answer only
    head = [b""] if kind == zmq.REQ else []
    for start, first in ((0, 30), (31, 31), (79, 79), (80, 80), (1 << 63, 80)):
        socket.send_multipart([*head, pack(">Q", start)])
        answers = served(stream, socket)
        assert numbers(answers) == [*range(first, 80), -1]
        assert all(frames[: len(head)] == head and len(frames) == 3 + len(head) for frames in answers)
        assert all(
            frames[-3] == f"t{number}".encode() for frames, number in zip(answers[:-1], range(first, 80), strict=True)
        )
    assert stream.replayed == 3 * (50 + 49 + 1)


def test_a_number_that_was_left_out_is_missing_from_replays(context: zmq.Context[zmq.Socket[bytes]], stream: Stream):
    for at in range(6):
        if at == 3:
            stream.skip(5)
        else:
            stream.send(b"t", HEAD, 1)
    socket = asking(context, stream, zmq.DEALER)
    for start in range(7):
        socket.send(pack(">Q", start))
        assert numbers(served(stream, socket)) == [*(at for at in (0, 1, 2, 4, 5) if at >= start), -1]
    assert stream.dropped == 5


def stuck_clients(context: zmq.Context[zmq.Socket[bytes]], stream: Stream, count: int) -> list[zmq.Socket[bytes]]:
    """Clients that ask for a replay and do not read it; once all requests have arrived."""
    stuck = [asking(context, stream, zmq.DEALER) for _ in range(count)]
    before = stream.abandoned + len(stream._replays)
    for each in stuck:
        each.setsockopt(zmq.RCVHWM, 1)
        each.send(pack(">Q", 0))
    for _ in range(2000):
        stream.step()
        if stream.abandoned + len(stream._replays) >= before + count:
            return stuck
        stuck[0].poll(1)
    raise AssertionError("the requests arrive")


@pytest.mark.parametrize("count", [16, 64])
def test_clients_that_read_nothing_delay_no_other_and_are_given_up(
    context: zmq.Context[zmq.Socket[bytes]], stream: Stream, clock: Clock, count: int
):
    for _ in range(50):
        stream.send(b"t", HEAD + bytes(100_000), 1)
    stuck_clients(context, stream, count)
    other = asking(context, stream, zmq.DEALER)
    other.send(pack(">Q", 0))
    assert numbers(served(stream, other)) == [*range(50), -1]  # while the clock stands still
    assert stream.abandoned == 0
    clock.now += REPLAY_STALLS_S + 1
    for _ in range(500):
        clock.now += REPLAY_STALLS_S
        if not stream.step():
            break
        other.poll(1)
    assert stream.abandoned == count


def test_batches_that_wait_for_clients_that_read_nothing_are_bounded(
    context: zmq.Context[zmq.Socket[bytes]], stream: Stream, clock: Clock
):
    for _ in range(50):
        stream.send(b"t", HEAD + bytes(1_000_000), 1)
    count = 16
    stuck_clients(context, stream, count)
    for _ in range(100):  # more than enough steps to fill the queues
        clock.now += REPLAY_STALLS_S / 100
        stream.step()
    in_kernel = 2  # batches that the sockets' buffers and the two I/O threads have begun
    assert stream.replayed <= count * (2 * REPLAY_QUEUE + in_kernel)


def test_one_request_too_many_ends_the_replay_that_has_waited_longest(
    context: zmq.Context[zmq.Socket[bytes]], stream: Stream, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dataplane.kv_events.stream.MAX_REPLAYS", 3)
    for _ in range(50):
        stream.send(b"t", HEAD + bytes(100_000), 1)
    for _ in range(5):
        stuck_clients(context, stream, 1)
        clock.now += 0.1
    assert (len(stream._replays), stream.abandoned) == (3, 2)


def test_replays_of_clients_that_read_take_turns(context: zmq.Context[zmq.Socket[bytes]], stream: Stream, clock: Clock):
    for _ in range(50):
        stream.send(b"t", HEAD, 1)
    clients = [asking(context, stream, zmq.DEALER) for _ in range(60)]  # more than one step has batches for
    for each in clients:
        each.send(pack(">Q", 0))
    ended = [False] * len(clients)
    for _ in range(2000):
        clock.now += 0.01
        stream.step()
        for at, each in enumerate(clients):
            while each.poll(0):
                ended[at] = each.recv_multipart()[-2] == END
        if all(ended):
            break
        clients[0].poll(1)
    assert all(ended)
    assert (stream.replayed, stream.abandoned) == (60 * 50, 0)


def test_a_client_that_is_gone_ends_its_replay(context: zmq.Context[zmq.Socket[bytes]], stream: Stream, clock: Clock):
    for _ in range(50):
        stream.send(b"t", HEAD, 1)
    socket = asking(context, stream, zmq.DEALER)
    socket.send(pack(">Q", 0))
    for _ in range(500):
        if stream.receive():
            break
        socket.poll(5)
    socket.close(linger=0)
    for _ in range(500):
        clock.now += 1
        if not stream.step():
            break
    assert not stream._replays


def test_malformed_requests_are_counted(context: zmq.Context[zmq.Socket[bytes]], stream: Stream):
    stream.send(b"t", HEAD, 1)
    chance = random.Random(7)
    socket = asking(context, stream, zmq.DEALER)
    wrong: list[list[bytes]] = [[b""], [b"", b""], [b"", b"", pack(">Q", 0)], [b"1234567"], [b"x", pack(">Q", 0)]]
    wrong += [[os.urandom(chance.randrange(8)) for _ in range(chance.randrange(1, 6))] for _ in range(100)]
    for frames in wrong:
        socket.send_multipart(frames)
    for _ in range(1000):
        stream.step()
        if stream.malformed == len(wrong):
            break
        socket.poll(5)
    assert stream.malformed == len(wrong)
    assert not socket.poll(0)
    socket.send(pack(">Q", 0))
    assert numbers(served(stream, socket)) == [0, -1]


def test_an_endpoint_in_use_is_an_error_and_leaves_no_socket(context: zmq.Context[zmq.Socket[bytes]], clock: Clock):
    taken = Stream(context, "tcp://127.0.0.1:0", "", 0, 10, 50, clock)
    with pytest.raises(zmq.ZMQError):
        Stream(context, "tcp://127.0.0.1:0", taken.url, 0, 10, 50, clock)
    taken.close()
    context.term()


@pytest.mark.parametrize("kind", [b"SUB", b"DEALER"])
def test_a_client_that_sends_without_end_loses_its_connection(
    context: zmq.Context[zmq.Socket[bytes]], clock: Clock, monkeypatch: pytest.MonkeyPatch, kind: bytes
) -> None:
    monkeypatch.setattr("dataplane.kv_events.stream.MAX_RECEIVED_BYTES", 100_000)
    stream = Stream(context, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", 0, 10, 50, clock)
    try:
        url = stream.url if kind == b"SUB" else stream.replay_url
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 60) as client:
            client.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
            ready = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
            client.sendall(bytes([4, len(ready)]) + ready)
            assert client.recv(64 + len(ready), socket.MSG_WAITALL), "messages come after both ends are ready"
            for number in range(500):  # subscriptions, or frames of one message
                client.sendall(b"\x00\xc9\x01%0200d" % number if kind == b"SUB" else b"\x01\xc8" + bytes(200))
            client.setblocking(False)
            deadline = monotonic() + 60
            while not _ended(client):
                assert monotonic() < deadline
                stream.guard()
    finally:
        stream.close()


def _ended(client: socket.socket) -> bool:
    try:
        return not client.recv(4096)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True

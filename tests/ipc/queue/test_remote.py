"""Readers over ZeroMQ. The test's readers are on this machine and are asked not to use its memory."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from dataplane.ipc.queue import (
    CorruptMessage,
    MessageLost,
    MessageQueue,
    QueueError,
    QueueGone,
    QueueHandle,
    QueueReader,
    WriterGone,
)
from dataplane.ipc.queue.stats import queue_stats
from tests import threads

WAIT_S = 60.0
HEADER = Struct("<2Q")
"""Of a message: its number and the number of its buffers, and the length of its body."""


@pytest.fixture
def sender() -> Iterator[MessageQueue]:
    with MessageQueue("remote", remote="tcp://127.0.0.1") as queue:
        yield queue


def test_local_and_remote_readers_get_the_same_messages(sender: MessageQueue) -> None:
    with QueueReader(sender.handle(), remote=True) as far, QueueReader(sender.handle()) as near:
        sender.wait_for_readers(1, WAIT_S, remote=1)
        for number in range(200):
            array = np.full(3000, number)
            sender.put({"number": number, "array": array}, WAIT_S)
            array[:] = -1
            for reader in (far, near):
                found = reader.get(WAIT_S)
                assert found["number"] == number
                assert (found["array"] == number).all()


def test_large_messages_are_private_and_outlive_the_reader(sender: MessageQueue) -> None:
    found = []
    with QueueReader(sender.handle(), remote=True) as reader:
        sender.wait_for_readers(0, WAIT_S, remote=1)
        for number, size in enumerate((1 << 18, 1 << 18, 100, 1 << 18, 1 << 18, 1 << 13)):
            sender.put({"array": np.full(size, number, np.uint8), "bytes": bytes([number]) * size}, WAIT_S)
            found.append(reader.get(WAIT_S))
            found[-1]["array"][0] += 1
    sender.put("more", WAIT_S)
    for number, each in enumerate(found):
        assert (each["array"][0], set(each["array"][1:].tolist())) == (number + 1, {number})
        assert set(each["bytes"]) == {number}


def test_a_slow_remote_reader_loses_nothing(sender: MessageQueue) -> None:
    count = 5000
    with QueueReader(sender.handle(), remote=True) as reader:
        sender.wait_for_readers(0, WAIT_S, remote=1)

        def write() -> None:
            for number in range(count):
                sender.put({"number": number, "body": bytes(2000)}, WAIT_S)

        writer = threading.Thread(target=write)
        writer.start()
        assert [reader.get(WAIT_S)["number"] for _ in range(count)] == list(range(count))
        threads.join(writer)


def test_a_remote_reader_that_does_not_read_blocks_the_writer_until_its_deadline(sender: MessageQueue) -> None:
    with QueueReader(sender.handle(), remote=True) as reader:
        sender.wait_for_readers(0, WAIT_S, remote=1)
        body = bytes(1 << 16)
        sent = 0
        with suppress(TimeoutError):
            while sent < 5000:
                sender.put(body, 0.05)
                sent += 1
        assert sent < 5000
        for _ in range(sent):  # and what timed out was not sent
            assert reader.get(WAIT_S) == body
        sender.put("next", WAIT_S)
        assert reader.get(WAIT_S) == "next"


def test_the_end_of_the_writer_is_seen(sender: MessageQueue) -> None:
    with QueueReader(sender.handle(), remote=True) as reader:
        sender.wait_for_readers(0, WAIT_S, remote=1)
        last = bytes(1 << 18)
        sender.put(last)
        sender.close()
        assert reader.get(WAIT_S) == last
        with pytest.raises(WriterGone):
            reader.get(WAIT_S)


def test_a_reader_and_its_writer_need_the_key_of_the_handle(sender: MessageQueue) -> None:
    handle = sender.handle()
    with QueueReader(handle, remote=True) as reader:
        sender.wait_for_readers(0, WAIT_S, remote=1)
        sender.put("secret")
        assert reader.get(WAIT_S) == "secret"
        foreign = msgspec.structs.replace(handle, remote_key=zmq.curve_keypair()[0])
        with QueueReader(foreign, remote=True) as other:
            sender.put("another secret")
            assert reader.get(WAIT_S) == "another secret"
            with pytest.raises(WriterGone, match="not connected"):
                other.get(WAIT_S)
    for key in (b"", b"short"):
        with pytest.raises(ValueError, match="a key of 40 bytes"):
            QueueReader(msgspec.structs.replace(handle, remote_key=key), remote=True)
    with pytest.raises(ValueError, match="cannot be used"):
        QueueReader(msgspec.structs.replace(handle, remote="garbage"), remote=True)


@pytest.mark.parametrize("option", [None, zmq.PLAIN_SERVER, zmq.CURVE_SERVER])
def test_a_process_without_the_secret_key_cannot_pose_as_the_writer(option: int | None) -> None:
    """It binds the port of a writer that was killed. The reader neither subscribes to it nor sends it a password."""
    key, _ = zmq.curve_keypair()
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.set(zmq.LINGER, 0)
        if option is not None:
            socket.set(option, 1)
        if option == zmq.CURVE_SERVER:
            socket.set(zmq.CURVE_SECRETKEY, zmq.curve_keypair()[1])
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        handle = QueueHandle("0" * 32, "posed", 0, 0, f"tcp://127.0.0.1:{port}", key)
        with QueueReader(handle, remote=True) as reader, pytest.raises(WriterGone):
            reader.get(WAIT_S)
        assert not socket.poll(0)


def test_a_reader_counts_once_and_no_longer_than_it_is_connected(sender: MessageQueue) -> None:
    """However often it subscribes, and whatever it unsubscribes from."""
    handle = sender.handle()
    assert handle.remote
    own = b"larder-reader:0123456789abcdef"
    with QueueReader(handle, remote=True):
        sender.wait_for_readers(0, WAIT_S, remote=1)
        with zmq.Context() as context, context.socket(zmq.XSUB) as socket:
            public, secret = zmq.curve_keypair()
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.CURVE_SERVERKEY, handle.remote_key)
            socket.set(zmq.CURVE_PUBLICKEY, public)
            socket.set(zmq.CURVE_SECRETKEY, secret)
            socket.connect(handle.remote)
            for change in [b"\x01", b"\x01" + own, b"\x00larder-reader:another"] * 20:
                socket.send(change)
            sender.wait_for_readers(0, WAIT_S, remote=2)
            sender.put(1, WAIT_S)
            socket.recv()  # the writer has all that was sent before
            with pytest.raises(TimeoutError, match="2 of 3"):
                sender.wait_for_readers(0, 0.5, remote=3)
        while queue_stats(sender._writer.ring).remote_readers != 1:
            with suppress(TimeoutError):
                sender.wait_for_readers(0, 0.01, remote=9)


def test_a_writer_that_does_not_listen_is_gone(sender: MessageQueue) -> None:
    handle = sender.handle()
    sender.close()
    with QueueReader(handle, remote=True) as reader, pytest.raises(WriterGone):
        reader.get(WAIT_S)


def test_an_invalid_message_is_refused_and_a_gap_is_reported() -> None:
    key, secret = zmq.curve_keypair()
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, secret)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        handle = QueueHandle("0" * 32, "forged", 0, 0, f"tcp://127.0.0.1:{port}", key)
        with QueueReader(handle) as reader:  # no memory on this machine: the remote path
            assert socket.recv() == b"\x01"
            for frame in (
                b"x",
                HEADER.pack(7 << 16, 1) + b"\xc1",
                HEADER.pack(7 << 16, 6) + b"\xc7\x03\x01abc",
                HEADER.pack(7 << 16, 2) + b"\x07",
                HEADER.pack(7 << 16, 1 << 63) + b"\x07",
                HEADER.pack(7 << 16 | 1, 1) + b"\x07",
                HEADER.pack(7 << 16 | 1, 1) + (1 << 63).to_bytes(8, "little") + b"\x07",
                HEADER.pack(7 << 16 | 0xFFFF, 1) + b"\x07",
            ):
                socket.send(frame)
                with pytest.raises(CorruptMessage):
                    reader.get(WAIT_S)
            for number in (8, 9, 10, 13):
                socket.send(HEADER.pack(number << 16, 1) + (b"\xc1" if number == 9 else b"\x07"))
            assert reader.get(WAIT_S) == 7
            with pytest.raises(CorruptMessage):
                reader.get(WAIT_S)
            assert reader.get(WAIT_S) == 7  # what cannot be decoded is not lost as well
            with pytest.raises(MessageLost):
                reader.get(WAIT_S)
            assert reader.get(WAIT_S) == 7


def test_a_queue_without_endpoint_has_no_remote_readers(queue: MessageQueue) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        QueueReader(queue.handle(), remote=True)
    with pytest.raises(QueueGone):
        QueueReader(QueueHandle("0" * 32, "none", 0, 0))


@pytest.mark.parametrize(
    ("remote", "wrong"),
    [
        ("tcp://example.invalid", "expected tcp://<IP address>"),
        ("http://127.0.0.1", "expected tcp://<IP address>"),
        ("tcp://127.0.0.1:99999", "expected tcp://<IP address>"),
        ("tcp://0.0.0.0", "cannot connect to 0.0.0.0"),
        ("tcp://[::]:5555", "cannot connect to"),
        (5, "expected str"),
    ],
)
def test_an_endpoint_that_no_reader_can_use_is_refused(remote: Any, wrong: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"remote: .*{wrong}"):
        MessageQueue("wrong", remote=remote)


def test_a_forked_child_cannot_use_the_remote_path_of_its_parent(sender: MessageQueue) -> None:
    with QueueReader(sender.handle(), remote=True) as reader:
        sender.wait_for_readers(0, WAIT_S, remote=1)
        calls = [
            lambda: reader.get(WAIT_S),
            lambda: sender.put(1, WAIT_S),
            lambda: sender.wait_for_readers(0, WAIT_S, remote=2),
            sender.handle,
        ]
        child = os.fork()
        if child == 0:
            refused = 0
            for call in calls:
                with suppress(QueueError):
                    call()
                    continue
                refused += 1
            reader.close()
            sender.close()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
        sender.put("whole", WAIT_S)
        assert reader.get(WAIT_S) == "whole"


def test_queues_and_readers_that_are_forgotten_leave_no_thread_or_descriptor() -> None:
    with MessageQueue("first", remote="tcp://127.0.0.1"):  # what is opened once for a process is open
        pass
    before = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    queue = MessageQueue("forgotten", remote="tcp://127.0.0.1")
    reader = QueueReader(queue.handle(), remote=True)
    del queue, reader
    gc.collect()
    assert (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))) <= before

"""Readers over ZeroMQ. The test's readers are on this machine and are asked not to use its memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct

import numpy as np
import pytest
import zmq

from dataplane.ipc.queue import (
    CorruptMessage,
    MessageLost,
    MessageQueue,
    QueueGone,
    QueueHandle,
    QueueReader,
    WriterGone,
)
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


def test_a_remote_reader_that_does_not_read_blocks_the_writer_until_its_deadline(
    sender: MessageQueue,
) -> None:
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


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1"])
def test_a_reader_needs_the_key_of_the_handle(address: str) -> None:
    with MessageQueue("keys", remote=f"tcp://{address}") as queue:
        handle = queue.handle()
        endpoint = str(handle.remote).replace("0.0.0.0", "127.0.0.1")
        near = QueueHandle(handle.identity, handle.name, 0, 0, endpoint, handle.remote_key)
        with QueueReader(near, remote=True) as reader:
            queue.wait_for_readers(0, WAIT_S, remote=1)
            queue.put("secret")
            assert reader.get(WAIT_S) == "secret"
            with QueueReader(
                QueueHandle(handle.identity, handle.name, 0, 0, endpoint), remote=True
            ) as stranger:
                queue.put("another secret")
                assert reader.get(WAIT_S) == "another secret"
                with pytest.raises((TimeoutError, WriterGone)):
                    stranger.get(0.5)


def test_what_is_no_message_is_refused_and_a_gap_is_reported() -> None:
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.set(zmq.LINGER, 0)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        handle = QueueHandle("0" * 32, "forged", 0, 0, f"tcp://127.0.0.1:{port}")
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
            for number in (8, 13):
                socket.send(HEADER.pack(number << 16, 1) + b"\x07")
            assert reader.get(WAIT_S) == 7
            with pytest.raises(MessageLost):
                reader.get(WAIT_S)
            assert reader.get(WAIT_S) == 7


def test_a_queue_without_endpoint_has_no_remote_readers(queue: MessageQueue) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        QueueReader(queue.handle(), remote=True)
    with pytest.raises(QueueGone):
        QueueReader(QueueHandle("0" * 32, "none", 0, 0))
    with pytest.raises(ValueError, match="IP address"):
        MessageQueue("names", remote="tcp://example.invalid")

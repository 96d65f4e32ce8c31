"""What a queue carries, and what it does when it is full."""

from __future__ import annotations

import os
import pickle
import platform
import threading
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest

from dataplane.ipc.queue import (
    CorruptMessage,
    MessageLost,
    MessageQueue,
    QueueError,
    QueueFull,
    QueueGone,
    QueueHandle,
    QueueReader,
    UntrustedWriter,
    WriterAlive,
    WriterGone,
)
from dataplane.ipc.queue.layout import RECORD_BYTES, QueueHeader
from dataplane.ipc.queue.reader import ShmRingReader
from dataplane.ipc.queue.ring import Side
from dataplane.ipc.queue.stats import live_queues, queue_stats
from dataplane.protocol.barrier import UnsupportedMachine
from tests import threads
from tests.ipc.released import until_released

WAIT_S = 60.0


class Step(msgspec.Struct):
    number: int
    tokens: np.ndarray


def test_messages_arrive_in_order_at_every_reader(queue: MessageQueue) -> None:
    with QueueReader(queue.handle()) as first, QueueReader(queue.handle()) as second:
        for number in range(500):  # several rounds of the ring
            queue.put({"number": number, "body": bytes(number)}, WAIT_S)
            for reader in (first, second):
                assert reader.get(WAIT_S) == {"number": number, "body": bytes(number)}


@pytest.mark.parametrize("count", [0, 3, 1000, 100_000])
@pytest.mark.parametrize("checksums", [False, True])
@pytest.mark.parametrize("trusted", [False, True])
def test_arrays_of_every_size_are_copied_whole(count: int, checksums: bool, trusted: bool) -> None:
    with (
        MessageQueue("arrays", capacity_bytes=1 << 17, checksums=checksums, trusted=trusted) as queue,
        QueueReader(queue.handle(), trusted=trusted) as reader,
    ):
        sent: dict[str, Any] = {
            "x": np.arange(count, dtype=np.float32).reshape(1, -1),
            "y": [np.ones((2, 2), np.int8)] * 2,
        }
        queue.put(sent, WAIT_S)
        found = reader.get(WAIT_S)
        sent["x"][:] = -1  # what was received is independent of what was sent
        assert found["x"].dtype == np.float32
        assert found["x"].shape == (1, count)
        assert (found["x"] == np.arange(count)).all()
        found["x"][:] = 7
        assert found["y"][1].tolist() == [[1, 1], [1, 1]]
        for number in range(300):
            queue.put(number, WAIT_S)
            assert reader.get(WAIT_S) == number
        assert (found["x"] == 7).all()


def test_messages_are_decoded_as_the_type_of_the_reader(queue: MessageQueue) -> None:
    with QueueReader(queue.handle(), message_type=Step) as reader:
        queue.put(Step(1, np.arange(3)), WAIT_S)
        found = reader.get(WAIT_S)
        assert (found.number, found.tokens.tolist()) == (1, [0, 1, 2])
        queue.put({"number": "one"}, WAIT_S)
        queue.put(Step(2, np.arange(3)), WAIT_S)
        with pytest.raises(CorruptMessage, match="number"):
            reader.get(WAIT_S)
        assert reader.get(WAIT_S).number == 2


def test_a_message_without_a_form_is_refused(queue: MessageQueue) -> None:
    with pytest.raises(TypeError):
        queue.put(object())
    with pytest.raises(TypeError):
        queue.put(np.array([object()]))
    assert queue_stats(queue._writer.ring).messages == 0


@pytest.mark.parametrize("trusted", [False, True])
def test_a_deeply_nested_message_is_refused(trusted: bool) -> None:
    message: list[object] = []
    for _ in range(100_000):
        message = [message]
    with MessageQueue("nested", trusted=trusted) as queue:
        with pytest.raises(TypeError, match="expected a value that is less deeply nested"):
            queue.put(message)
        assert queue_stats(queue._writer.ring).messages == 0


def test_a_reader_joins_at_the_current_position(queue: MessageQueue) -> None:
    queue.put(1)
    with QueueReader(queue.handle()) as reader:
        queue.put(2)
        assert reader.get(WAIT_S) == 2


def test_messages_wait_for_expected_readers() -> None:
    with MessageQueue("expected", readers=2, max_readers=2) as queue:
        queue.put(1)
        for slot in (1, 0):
            with QueueReader(queue.handle(), slot=slot) as reader:
                assert reader.get(WAIT_S) == 1
                with pytest.raises(QueueFull):
                    QueueReader(queue.handle(), slot=slot)
        for slot in (-1, 2):
            with pytest.raises(ValueError, match="slot: expected 0 to 1"):
                QueueReader(queue.handle(), slot=slot)


def test_a_slow_reader_blocks_the_writer_until_its_deadline(queue: MessageQueue) -> None:
    with QueueReader(queue.handle()) as reader:
        number = 0
        with suppress(TimeoutError):
            while number < 1000:
                queue.put({"number": number, "body": bytes(1000)}, 0.05)
                number += 1
        assert 40 < number < 100
        for expected in range(number):  # the message that timed out was not published
            assert reader.get(WAIT_S)["number"] == expected
        with pytest.raises(TimeoutError):
            reader.get(0.01)
        queue.put("next", WAIT_S)
        assert reader.get(WAIT_S) == "next"


def test_a_queue_that_drops_never_waits() -> None:
    with (
        MessageQueue("drops", capacity_bytes=1 << 16, slow_readers="drop", readers=1) as queue,
        QueueReader(queue.handle(), slot=0) as slow,
        QueueReader(queue.handle()) as quick,
    ):
        for number in range(500):
            queue.put({"number": number, "body": bytes(1000)})
            assert quick.get(WAIT_S)["number"] == number
        with pytest.raises(MessageLost):
            slow.get(WAIT_S)
        last = 0
        with suppress(TimeoutError):
            while last < 499:
                number = slow.get(0.0)["number"]
                assert number > last
                last = number
        with pytest.raises(TimeoutError):
            slow.get(0.0)
        found = queue_stats(queue._writer.ring)
        assert last == 499
        assert found.dropped >= 1
        assert [reader.lost for reader in found.readers] == [1, 0]


def test_a_reader_that_is_overtaken_gets_whole_messages_only() -> None:
    with (
        MessageQueue("overtaken", capacity_bytes=1 << 14, slow_readers="drop") as queue,
        QueueReader(queue.handle()) as reader,
    ):
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                queue.put(bytes([number % 256]) * (500 + number % 3000))
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        whole = 0
        try:
            while whole < 300:
                try:
                    message = reader.get(WAIT_S)
                except MessageLost:
                    continue
                assert message == message[:1] * len(message)
                whole += 1
        finally:
            stop.set()
            threads.join(writer)


def test_large_messages_are_given_back_once_they_are_read(queue: MessageQueue) -> None:
    large = np.zeros(1 << 18, np.uint8)
    before = len(os.listdir("/proc/self/fd"))
    with QueueReader(queue.handle()) as reader:
        for number in range(20):
            large[:] = number
            queue.put(large, WAIT_S)
            found = reader.get(WAIT_S)
            assert (found == number).all()
        queue.put("small", WAIT_S)
        assert not queue._writer._large
        del found
    assert len(os.listdir("/proc/self/fd")) <= before


def test_large_messages_wait_for_readers_as_well(queue: MessageQueue) -> None:
    large = bytes(1 << 18)
    with QueueReader(queue.handle()) as reader:
        sent = 0
        with suppress(TimeoutError):
            while sent < 100:
                queue.put(large, 0.05)
                sent += 1
        assert sent == 1, "a second one would exceed four times the ring"
        for _ in range(sent):
            assert reader.get(WAIT_S) == large


def test_the_end_of_the_queue_is_seen_after_its_messages(queue: MessageQueue) -> None:
    handle = queue.handle()
    with QueueReader(handle) as reader:
        queue.put(1)
        queue.close()
        assert reader.get(WAIT_S) == 1
        for _ in range(2):
            with pytest.raises(WriterGone):
                reader.get(WAIT_S)
        with MessageQueue.take_over(handle) as successor:
            successor.put(2)
            assert reader.get(WAIT_S) == 2
            with pytest.raises(WriterAlive):
                MessageQueue.take_over(successor.handle())
    with pytest.raises(QueueError):
        queue.put(3)


def test_another_processor_is_refused(queue: MessageQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    for attempt in (lambda: MessageQueue("arm"), lambda: QueueReader(queue.handle())):
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(UnsupportedMachine, match="aarch64"):
            attempt()
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_handle_of_no_queue_is_refused(queue: MessageQueue) -> None:
    handle = queue.handle()
    for wrong in (
        QueueHandle("0" * 32, handle.name, handle.pid, handle.fd),
        QueueHandle("0" * 32, handle.name, handle.pid, 0),
        QueueHandle("0" * 32, handle.name, 0, 0),
    ):
        with pytest.raises(QueueGone):
            QueueReader(wrong)
    moved = QueueHandle(handle.identity, handle.name, 0, 0)  # found although its first holder is gone
    with QueueReader(pickle.loads(pickle.dumps(moved))) as reader:
        queue.put(1)
        assert reader.get(WAIT_S) == 1


def test_pickled_messages_need_trust() -> None:
    with MessageQueue("trusted", trusted=True) as queue:
        with pytest.raises(UntrustedWriter):
            QueueReader(queue.handle())
        with QueueReader(queue.handle(), trusted=True) as reader:
            queue.put({1, 2})
            assert reader.get(WAIT_S) == {1, 2}
    with pytest.raises(ValueError, match="trusted"):
        MessageQueue("trusted", trusted=True, remote="tcp://127.0.0.1")


def test_a_changed_byte_is_found_by_its_checksum() -> None:
    with MessageQueue("checked", checksums=True) as queue, QueueReader(queue.handle()) as reader:
        ring = queue._writer.ring
        at = ring.data_at + ring.memory.words[QueueHeader.PUBLISHED] + RECORD_BYTES
        queue.put(bytes(100))
        ring.memory.bytes[at + 50] ^= 1
        queue.put("next")
        with pytest.raises(CorruptMessage, match="checksum"):
            reader.get(WAIT_S)
        assert reader.get(WAIT_S) == "next"


def test_a_record_that_is_none_is_refused(queue: MessageQueue) -> None:
    ring = queue._writer.ring
    with QueueReader(queue.handle()) as reader:
        for word, value in ((0, 1), (1, 0), (1, (1 << 56) | (1 << 39)), (1, (1 << 56) | (9 << 40) | 100)):
            at = (ring.data_at + ring.memory.words[QueueHeader.PUBLISHED]) // 8
            queue.put(bytes(100))
            ring.memory.words[at + word] = value
            with pytest.raises(CorruptMessage):
                reader.get(WAIT_S)
        queue.put("next")
        assert reader.get(WAIT_S) == "next"


def test_a_forked_child_cannot_use_its_parents_queue(queue: MessageQueue) -> None:
    half_made = ShmRingReader.__new__(ShmRingReader)  # as after an error while it joined
    Side.__init__(half_made)
    with QueueReader(queue.handle()) as reader:
        child = os.fork()
        if child == 0:
            codes = 0
            for call in (lambda: queue.put(1), lambda: reader.get(0.0)):
                try:
                    call()
                except QueueError:
                    codes += 1
            queue.close()
            reader.close()
            os._exit(codes)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        queue.put(2)
        assert reader.get(WAIT_S) == 2


def test_memory_is_private_and_ends_with_its_users() -> None:
    queue = MessageQueue("private")
    identity = queue.handle().identity
    status = os.fstat(queue.handle().fd)
    assert (status.st_mode & 0o777, status.st_uid) == (0o600, os.geteuid())
    with QueueReader(queue.handle()) as reader:
        queue.put("x")
        reader.get(WAIT_S)
        found = {each.identity: each for each in live_queues()}[identity]
        assert (found.name, found.messages, found.writer) == ("private", 1, os.getpid())
        assert [(each.pid, each.messages, each.alive) for each in found.readers] == [(os.getpid(), 1, True)]
    queue.close()
    until_released(identity)
    assert identity not in {each.identity for each in live_queues()}


def test_a_forgotten_reader_does_not_block_the_writer(queue: MessageQueue) -> None:
    QueueReader(queue.handle())
    for _ in range(200):
        queue.put(bytes(1000), WAIT_S)


@pytest.mark.parametrize("name", ["a:b", "a/b", "é", "x" * 129])
def test_a_wrong_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name: expected"):
        MessageQueue(name)

"""A process without free descriptors takes no living process for dead, loses no message, and keeps no descriptor."""

from __future__ import annotations

import errno
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from dataplane.ipc.processes import PidWatch, start_time
from dataplane.ipc.queue import MessageQueue, QueueError, QueueReader, ShmRingBuffer, ShmRingReader, ShmRingWriter
from dataplane.ipc.queue.layout import ReaderSlot, SlotState
from dataplane.ipc.queue.payload import Payload
from dataplane.ipc.queue.stats import queue_stats
from tests.ipc.descriptors import free_descriptors, opened

WAIT_S = 60.0
LARGE = np.arange(1 << 16)


@contextmanager
def refused() -> Iterator[None]:
    """Expect the error of a process without free descriptors."""
    with pytest.raises(OSError, match="Too many open files") as found:
        yield
    assert found.value.errno == errno.EMFILE


def test_living_peers_are_not_taken_for_dead(queue: MessageQueue) -> None:
    handle = queue.handle()
    with QueueReader(handle) as reader, free_descriptors(0):
        with refused():
            MessageQueue.take_over(handle)
        with refused():
            QueueReader(handle)
        number = 0
        with suppress(TimeoutError):
            while number < 1000:
                queue.put({"number": number, "body": bytes(1000)}, 0.3)
                number += 1
        assert number < 1000, "the reader was dropped"
        assert [reader.get(WAIT_S)["number"] for _ in range(number)] == list(range(number))
        with pytest.raises(TimeoutError):  # and not WriterGone
            reader.get(0.2)
        with refused():
            queue.expect(0, 1)
    assert len(queue_stats(queue._writer.ring).readers) == 0
    for free in range(4):
        with free_descriptors(free), suppress(OSError), QueueReader(handle) as late:
            assert queue._writer._words[late._reader._at + ReaderSlot.STARTED]


def test_a_writer_and_a_reader_that_cannot_join_store_nothing(queue: MessageQueue) -> None:
    handle = queue.handle()
    for side in (ShmRingReader, ShmRingWriter):
        ring = ShmRingBuffer.open(handle)
        before = bytes(ring.memory.bytes)
        with free_descriptors(0), refused():
            side(ring)
        assert bytes(ring.memory.bytes) == before
        ring.close()


def test_a_watch_looks_again_once_there_are_descriptors() -> None:
    watch = PidWatch(1, start_time(1) + 1)
    with free_descriptors(0):
        assert watch.alive()
        with refused():
            start_time(1)
    with free_descriptors(1):
        assert watch.alive()
    assert not watch.alive()
    assert start_time(1 << 30) == 0, "no process has this number"


def test_a_large_message_is_neither_half_sent_nor_lost(queue: MessageQueue) -> None:
    with QueueReader(queue.handle()) as reader:
        before = opened()
        with free_descriptors(0), refused():
            queue.put(LARGE, WAIT_S)
        assert (queue_stats(queue._writer.ring).messages, opened()) == (0, before)
        files = []
        for _ in range(5):
            queue.put(LARGE, WAIT_S)
            with free_descriptors(0), refused():
                reader.get(WAIT_S)
            files.append(reader.get(WAIT_S))
        queue.put("small", WAIT_S)  # the writer gives back what was read
        assert opened() == before
        assert all((each == LARGE).all() for each in files)


def test_a_queue_that_cannot_be_created_leaves_nothing() -> None:
    before = opened()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 38, hard))
    try:
        with pytest.raises(OSError, match="Cannot allocate memory"):
            MessageQueue("none", capacity_bytes=1 << 39)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert opened() == before


def take_slot(reader: ShmRingReader) -> None:
    """Give the slot of a reader to another process, as a process does that takes the reader for dead."""
    words = reader.ring.memory.words
    reader.ring.release(reader.slot)
    words[reader._at + ReaderSlot.PID] = 1
    words[reader._at + ReaderSlot.STATE] = SlotState.ACTIVE


def test_a_reader_that_lost_its_slot_returns_no_torn_message() -> None:
    ring = ShmRingBuffer.create("torn", capacity=1 << 14, slots=2)
    writer = ShmRingWriter(ring)
    reader, other = (ShmRingReader(ShmRingBuffer.open(ring.handle())) for _ in range(2))
    writer.write(Payload(bytes([1]) * 4000))

    def receive(body: memoryview | bytes, buffers: object, owned: bool) -> tuple[int, int]:
        first = body[0]
        ring.release(reader.slot)
        for number in range(2, 20):
            other.read(lambda *_: None)
            writer.write(Payload(bytes([number]) * 4000), time.monotonic() + WAIT_S)
        take_slot(reader)
        return first, body[-1]

    for _ in range(2):
        with pytest.raises(QueueError, match="gave the slot of this reader to another one"):
            reader.read(receive, time.monotonic() + WAIT_S)
    reader.close()
    assert queue_stats(ring).readers[0].pid == 1, "the other reader keeps the slot"
    other.close()
    writer.close()


def test_a_waiting_reader_sees_that_it_lost_its_slot(queue: MessageQueue) -> None:
    with QueueReader(queue.handle()) as reader:
        assert isinstance(reader._reader, ShmRingReader)
        take_slot(reader._reader)
        with pytest.raises(QueueError, match="gave the slot"):
            reader.get(WAIT_S)

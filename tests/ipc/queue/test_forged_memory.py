"""Memory and messages that another process forged: they are refused, and nothing else is raised."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pytest

from dataplane.ipc.queue import CorruptMessage, MessageLost, MessageQueue, QueueGone, QueueHandle, QueueReader
from dataplane.ipc.queue.codecs import MsgspecCodec
from dataplane.ipc.queue.layout import (
    LARGE,
    MAGIC,
    PAGE_BYTES,
    RECORD,
    RECORD_BYTES,
    SLOTS_AT,
    VERSION,
    Kind,
    QueueHeader,
    ReaderSlot,
    SlotState,
    WriterState,
    describe,
    ring_at,
)
from dataplane.ipc.queue.stats import live_queues

IDENTITY = f"{os.getpid():032x}"
"""Of this process: tests in other processes forge queues at the same time."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
F_SEAL_WRITE = 8
CAPACITY = 4096
WAIT_S = 60.0


@pytest.fixture
def fd() -> Iterator[int]:
    number = os.memfd_create(f"larder-queue:forged:{IDENTITY}", os.MFD_ALLOW_SEALING)
    os.fchmod(number, 0o600)
    yield number
    os.close(number)


def forge(fd: int, nbytes: int, words: dict[int, int], seals: int = SEALS) -> QueueHandle:
    """Write words into the memory, seal it, and return a handle of it."""
    os.ftruncate(fd, nbytes)
    for word, value in words.items():
        os.pwrite(fd, value.to_bytes(8, "little"), word * 8)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return QueueHandle(IDENTITY, "forged", os.getpid(), fd)


def header(slots: int = 1, capacity: int = CAPACITY, **more: int) -> dict[int, int]:
    words: dict[int, int] = {
        QueueHeader.MAGIC: MAGIC,
        QueueHeader.VERSION: VERSION,
        QueueHeader.SLOTS: slots,
        QueueHeader.CAPACITY: capacity,
    }
    for name, value in more.items():
        words[QueueHeader[name]] = value
    return words


@pytest.mark.parametrize(
    ("nbytes", "words", "seals"),
    [
        (0, {}, SEALS),
        (8, {}, SEALS),
        (ring_at(1) + CAPACITY, header(), SEALS | F_SEAL_WRITE),
        (ring_at(1), header(capacity=0), SEALS),
        (ring_at(1) + CAPACITY + 8, header(capacity=CAPACITY + 8), SEALS),
        (PAGE_BYTES + CAPACITY, header(slots=0), SEALS),
        (ring_at(1) + CAPACITY, header(slots=(1 << 64) - 1), SEALS),
        (ring_at(1) + CAPACITY, header(capacity=(1 << 64) - CAPACITY), SEALS),
        (1 << 62, header(capacity=(1 << 62) - ring_at(1)), SEALS),
    ],
    ids=["empty", "small", "sealed", "no ring", "odd ring", "no slots", "slots", "capacity", "huge"],
)
def test_memory_that_is_not_a_queue_is_refused_and_not_listed(
    fd: int, nbytes: int, words: dict[int, int], seals: int
) -> None:
    handle = forge(fd, nbytes, words, seals)
    with pytest.raises(QueueGone):
        QueueReader(handle)
    assert IDENTITY not in {each.identity for each in live_queues()}


@pytest.mark.parametrize("pid", [1 << 31, 1 << 63, (1 << 64) - 1])
def test_pids_that_cannot_exist_are_processes_that_have_exited(fd: int, pid: int) -> None:
    most = (1 << 64) - 1
    words = header(WRITER_STATE=WriterState.ACTIVE, WRITER_PID=pid, WRITER_STARTED=5, MESSAGES=most, CREATED_S=most)
    words |= {
        SLOTS_AT + ReaderSlot.STATE: SlotState.ACTIVE,
        SLOTS_AT + ReaderSlot.PID: pid,
        SLOTS_AT + ReaderSlot.POSITION: most,
    }
    forge(fd, ring_at(1) + CAPACITY, words)
    (found,) = (each for each in live_queues() if each.identity == IDENTITY)
    assert (found.writer, [each.alive for each in found.readers]) == (0, [False])


@pytest.mark.parametrize("position", [CAPACITY - 8, (1 << 63) + 1, (1 << 64) - 1])
@pytest.mark.parametrize("word", ["PUBLISHED", "SKIP_TO"])
def test_a_reader_continues_after_garbage_in_a_position(word: str, position: int) -> None:
    with (
        MessageQueue("positions", capacity_bytes=CAPACITY, slow_readers="drop") as queue,
        QueueReader(queue.handle()) as reader,
    ):
        words = queue._writer.ring.memory.words
        at = QueueHeader.PUBLISHED if word == "PUBLISHED" else SLOTS_AT + ReaderSlot.SKIP_TO
        words[at] = position
        for _ in range(3):
            with pytest.raises((CorruptMessage, TimeoutError)):
                reader.get(0.01)
        if word == "PUBLISHED":
            with pytest.raises(QueueGone, match="expected a multiple of 64"):
                QueueReader(queue.handle())
        queue.put(1, WAIT_S)
        with suppress(CorruptMessage):
            assert reader.get(WAIT_S) == 1
        queue.put(2, WAIT_S)
        assert reader.get(WAIT_S) == 2


def test_a_count_that_is_garbage_starts_again() -> None:
    with MessageQueue("counts") as queue:
        handle, words = queue.handle(), queue._writer.ring.memory.words
        words[QueueHeader.CHANGES] = words[QueueHeader.EPOCH] = (1 << 64) - 1
        with QueueReader(handle) as reader:
            queue.put(1, WAIT_S)
            assert reader.get(WAIT_S) == 1
            queue.close()
            MessageQueue.take_over(handle).close()


def test_a_large_message_of_no_bytes_is_lost(fd: int) -> None:
    forge(fd, 0, {})
    with MessageQueue("large") as queue, QueueReader(queue.handle()) as reader:
        writer = queue._writer
        ring, position = writer.ring, writer._position
        queue.put("replaced", WAIT_S)
        RECORD.pack_into(ring.memory.bytes, ring.data_at + position, position, describe(Kind.LARGE, 0, 0), 0, 0)
        handle = os.getpid(), fd, os.fstat(fd).st_ino
        LARGE.pack_into(ring.memory.bytes, ring.data_at + position + RECORD_BYTES, *handle)
        with pytest.raises(MessageLost):
            reader.get(WAIT_S)
        queue.put("next", WAIT_S)
        assert reader.get(WAIT_S) == "next"


@pytest.mark.parametrize("dtype", ["i4,,", "(1,", "042f", "9)", "O", "V8", "i4,i4", "a", "(2,3)f4", "i4\n", ""])
def test_a_type_of_arrays_that_no_writer_names_is_refused(dtype: str) -> None:
    array = msgspec.msgpack.Ext(1, msgspec.msgpack.encode([dtype, [1], -1, b"1234"]))
    with pytest.raises(CorruptMessage, match="cannot be decoded"):
        MsgspecCodec().decode(memoryview(msgspec.msgpack.encode(array)), (), False)

"""Counters of the queues of this user, read without joining the queues."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import msgspec

from dataplane.ipc import memory
from dataplane.ipc.processes import runs
from dataplane.ipc.queue.errors import QueueGone
from dataplane.ipc.queue.layout import (
    PAGE_BYTES,
    WORD,
    Flag,
    QueueHeader,
    ReaderSlot,
    SlotState,
    WriterState,
    header_fault,
    ring_at,
    slot_word,
)
from dataplane.ipc.queue.ring import KIND, ShmRingBuffer


class ReaderStats(msgspec.Struct, frozen=True):
    """One reader of a queue. Counters are since it joined."""

    pid: int
    """0 for an expected reader that has not joined."""
    alive: bool
    lag_bytes: int
    """Bytes of the ring that it has not read."""
    messages: int
    bytes: int
    waits: int
    """Times that it slept because there was no message."""
    wakeups: int
    lost: int
    """Number of times that the reader lost messages."""


class QueueStats(msgspec.Struct, frozen=True):
    """One queue. Counters are since it was created."""

    name: str
    identity: str
    created_s: int
    """Unix time."""
    capacity_bytes: int
    slow_readers: str
    """`wait`, or `drop`."""
    writer: int
    """Pid; 0 if no writer runs."""
    writers: int
    """Number of writers that the queue has had."""
    messages: int
    bytes: int
    waits: int
    """Times that the writer waited for readers."""
    wakes: int
    """Times that the writer woke readers."""
    dropped: int
    """Times that a slow reader was moved forward."""
    dead_readers: int
    large_messages: int
    """Messages that had memory of their own."""
    remote_readers: int
    """Readers that were connected over ZeroMQ when the writer last looked: when it sent a message."""
    readers: list[ReaderStats]


def queue_stats(ring: ShmRingBuffer) -> QueueStats:
    """Read the counters of a queue. Raises QueueError when this process has closed it."""
    return _stats_of(memoryview(ring.header()).cast("Q"), ring.name, ring.identity)


def read_stats(fd: int, name: str, identity: str) -> QueueStats:
    """Read the counters of a queue from copies of its pages, without a mapping. Whatever the memory contains, nothing
    beyond its header and its slots is read. Raises QueueGone if it is not a queue's memory, and OSError."""
    header = os.pread(fd, PAGE_BYTES, 0)
    words = memoryview(header[: len(header) & -WORD]).cast("Q")
    if fault := header_fault(words, os.fstat(fd).st_size):
        raise QueueGone(f"the memory of {name!r} {fault}")
    pages = header + os.pread(fd, ring_at(words[QueueHeader.SLOTS]) - PAGE_BYTES, PAGE_BYTES)
    return _stats_of(memoryview(pages).cast("Q"), name, identity)


def _stats_of(words: Sequence[int], name: str, identity: str) -> QueueStats:
    writer = words[QueueHeader.WRITER_PID]
    active = words[QueueHeader.WRITER_STATE] == WriterState.ACTIVE and runs(writer, words[QueueHeader.WRITER_STARTED])
    readers = []
    for slot in range(words[QueueHeader.SLOTS]):
        at = slot_word(slot)
        state = words[at + ReaderSlot.STATE]
        if state == SlotState.FREE:
            continue
        joined = state == SlotState.ACTIVE
        pid = words[at + ReaderSlot.PID] if joined else 0
        readers.append(
            ReaderStats(
                pid=pid,
                alive=joined and runs(pid, words[at + ReaderSlot.STARTED]),
                lag_bytes=max(words[QueueHeader.PUBLISHED] - words[at + ReaderSlot.POSITION], 0),
                messages=words[at + ReaderSlot.MESSAGES],
                bytes=words[at + ReaderSlot.BYTES],
                waits=words[at + ReaderSlot.WAITS],
                wakeups=words[at + ReaderSlot.WAKEUPS],
                lost=words[at + ReaderSlot.LOST],
            )
        )
    return QueueStats(
        name=name,
        identity=identity,
        created_s=words[QueueHeader.CREATED_S],
        capacity_bytes=words[QueueHeader.CAPACITY],
        slow_readers="drop" if words[QueueHeader.FLAGS] & Flag.DROP else "wait",
        writer=writer if active else 0,
        writers=words[QueueHeader.EPOCH],
        messages=words[QueueHeader.MESSAGES],
        bytes=words[QueueHeader.BYTES],
        waits=words[QueueHeader.WAITS],
        wakes=words[QueueHeader.WAKES],
        dropped=words[QueueHeader.DROPPED],
        dead_readers=words[QueueHeader.DEAD_READERS],
        large_messages=words[QueueHeader.LARGE_MESSAGES],
        remote_readers=words[QueueHeader.REMOTE_READERS] if active else 0,
        readers=readers,
    )


def live_queues() -> Iterator[QueueStats]:
    """Return the counters of each queue that a process of this user has open."""
    return memory.read_all(KIND, read_stats, QueueGone)

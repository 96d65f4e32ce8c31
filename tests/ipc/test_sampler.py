"""Looks at the queues and stores of the user: counters and rates are right, and no page is trusted."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import time
from collections.abc import Iterator
from struct import pack_into
from typing import Any

import msgspec
import pytest

from dataplane.ipc import memory
from dataplane.ipc.memory import OpenMemory
from dataplane.ipc.queue import MessageQueue, QueueReader
from dataplane.ipc.queue.layout import MAGIC as QUEUE_MAGIC
from dataplane.ipc.queue.layout import PAGE_BYTES, VERSION, QueueHeader, ring_at
from dataplane.ipc.queue.stats import live_queues
from dataplane.ipc.store import ShmObjectStore
from dataplane.observe.ipc import MAX_COUNT, MAX_DESCRIPTORS, MAX_LISTED, IpcSampler, IpcWatcher
from dataplane.protocol.stats.ipc import IpcQueueStats, IpcStoreStats
from tests.clock import Clock

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out queues and stores of other processes of the user, such as those of other tests."""
    find = memory.find

    def own(*args: Any, **options: Any) -> Iterator[OpenMemory]:
        return (each for each in find(*args, **options) if each.pid == os.getpid())

    monkeypatch.setattr(memory, "find", own)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sampler(clock: Clock) -> IpcSampler:
    return IpcSampler(clock)


def queue_of(sampler: IpcSampler, name: str) -> IpcQueueStats | None:
    return next((each for each in sampler.sample().queues if each.name == name), None)


def store_of(sampler: IpcSampler, name: str) -> IpcStoreStats | None:
    return next((each for each in sampler.sample().stores if each.name == name), None)


def test_a_queue_is_seen_with_its_rates(sampler: IpcSampler, clock: Clock) -> None:
    with MessageQueue("sampled") as queue, QueueReader(queue.handle()) as reader:
        first = queue_of(sampler, "sampled")
        assert first is not None
        assert (first.writer, first.readers, first.messages) == (os.getpid(), 1, 0)
        for number in range(10):
            queue.put(number)
        assert reader.get(WAIT_S) == 0
        clock.now += 5
        second = queue_of(sampler, "sampled")
        assert second is not None
        assert (second.messages, second.messages_per_s) == (10, 2.0)
        assert second.bytes_per_s == second.bytes / 5 > 0
        assert 0 < second.lag_bytes <= second.capacity_bytes
        totals = sampler.sample()
        assert (totals.messages, totals.message_bytes) == (10, second.bytes)
    assert queue_of(sampler, "sampled") is None
    assert sampler.sample().messages == 10, "a counter fell when its queue ended"


def test_a_store_is_seen_with_its_rates(sampler: IpcSampler, clock: Clock) -> None:
    with ShmObjectStore.create(1 << 20, name="sampled", max_objects=64) as store:
        first = store_of(sampler, "sampled")
        assert first is not None
        assert (first.processes, first.objects, first.used_bytes) == (1, 0, 0)
        for number in range(4):
            store.put(f"key-{number}", b"x" * 1000)
        clock.now += 2
        second = store_of(sampler, "sampled")
        assert second is not None
        own = store.stats()
        assert (second.objects, second.used_bytes, second.puts) == (own.objects, own.used_bytes, own.puts)
        assert (second.put_bytes, second.puts_per_s) == (own.put_bytes, 2.0)
        assert sampler.sample().put_bytes == own.put_bytes


@pytest.fixture
def pages() -> Iterator[list[int]]:
    fds: list[int] = []
    yield fds
    for fd in fds:
        os.close(fd)


def foreign(pages: list[int], kind: str, content: bytes, nbytes: int = 1 << 16, name: str = "foreign") -> int:
    fd = memory.create(kind, os.urandom(16).hex(), name, nbytes)
    pages.append(fd)
    os.pwrite(fd, content, 0)
    return fd


def header(**words: int) -> bytearray:
    page = bytearray(PAGE_BYTES)
    for name, value in words.items():
        pack_into("<Q", page, 8 * QueueHeader[name], value)
    return page


@pytest.mark.parametrize("kind", ["queue", "store"])
@pytest.mark.parametrize("nbytes", [0, 8, PAGE_BYTES - 1, PAGE_BYTES, 1 << 20])
def test_memory_of_any_size_and_content_is_not_trusted(
    sampler: IpcSampler, pages: list[int], kind: str, nbytes: int
) -> None:
    chance = random.Random(nbytes)
    for content in (b"", chance.randbytes(nbytes), b"\xff" * nbytes):
        foreign(pages, kind, content[:nbytes], nbytes)
    found = sampler.sample()
    assert "foreign" not in {each.name for each in found.queues} | {each.name for each in found.stores}
    assert [each for each in live_queues() if each.name == "foreign"] == []


def test_the_counters_of_a_foreign_header_are_bounded(sampler: IpcSampler, pages: list[int]) -> None:
    """The sizes fit, and every other word is the largest there is: pids, times, positions, counters."""
    slots, capacity = 64, 4096
    page = bytearray(b"\xff" * ring_at(slots))
    for word, value in (
        (QueueHeader.MAGIC, QUEUE_MAGIC),
        (QueueHeader.VERSION, VERSION),
        (QueueHeader.CAPACITY, capacity),
        (QueueHeader.SLOTS, slots),
        (QueueHeader.WRITER_STATE, 1),
    ):
        pack_into("<Q", page, 8 * word, value)
    for slot in range(slots):
        pack_into("<Q", page, PAGE_BYTES + slot * 256, 2)
    foreign(pages, "queue", bytes(page), ring_at(slots) + capacity)
    [seen] = [each for each in sampler.sample().queues if each.name == "foreign"]
    assert (seen.writer, seen.readers, seen.messages, seen.lag_bytes) == (0, 0, MAX_COUNT, 0)
    again = sampler.sample()
    assert again.messages == again.dead_peers == 0


@pytest.mark.parametrize("slots", [65, 1 << 40, (1 << 64) - 1])
def test_a_queue_with_more_slots_than_there_can_be_is_not_read(
    sampler: IpcSampler, pages: list[int], slots: int
) -> None:
    page = header(MAGIC=QUEUE_MAGIC, VERSION=VERSION, SLOTS=slots, CAPACITY=1 << 15)
    foreign(pages, "queue", bytes(page))
    assert queue_of(sampler, "foreign") is None


def test_a_broken_store_is_not_read(sampler: IpcSampler, pages: list[int]) -> None:
    with ShmObjectStore.create(1 << 20, name="whole", max_objects=64) as store:
        found = next(each for each in memory.find("store") if each.name == "whole")
        content = os.pread(found.fd, 1 << 20, 0)
        foreign(pages, "store", content[: 1 << 16], 1 << 16)  # the size does not match its header
        broken = bytearray(content)
        broken[8 * 5] ^= 1  # the number of objects, without its checksum
        foreign(pages, "store", bytes(broken), os.fstat(found.fd).st_size)
        assert store_of(sampler, "foreign") is None
        assert store_of(sampler, "whole") is not None
        assert store.stats().objects == 0


@pytest.mark.parametrize("identity", [b"\xff\xfe", b"\x1b[31mred", b"a\nb", b"<script>", b"", b"A" * 32])
def test_memory_with_an_unknown_identity_is_not_listed(sampler: IpcSampler, pages: list[int], identity: bytes) -> None:
    """A name that is not UTF-8 would end the data plane when it encodes its statistics."""
    with MessageQueue("whole"):
        found = next(each for each in memory.find("queue") if each.name == "whole")
        content = os.pread(found.fd, os.fstat(found.fd).st_size, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.memfd_create(b"larder-queue:foreign:" + identity, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    assert fd >= 0
    pages.append(fd)
    os.fchmod(fd, 0o600)
    os.ftruncate(fd, len(content))
    os.pwrite(fd, content, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    assert [each for each in memory.find() if each.fd == fd] == []
    sample = sampler.sample()
    assert "foreign" not in {each.name for each in sample.queues}
    msgspec.msgpack.encode(sample)


def test_many_queues_are_counted_and_few_are_listed(sampler: IpcSampler) -> None:
    queues = [MessageQueue(f"many-{number}", capacity_bytes=4096) for number in range(MAX_LISTED + 2)]
    try:
        found = sampler.sample()
        assert len(found.queues) == MAX_LISTED
        assert found.queues_total >= MAX_LISTED + 2
    finally:
        for queue in queues:
            queue.close()


def test_too_many_descriptors_end_the_sample_with_a_reason(
    sampler: IpcSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_DESCRIPTORS > 0
    monkeypatch.setattr("dataplane.observe.ipc.MAX_DESCRIPTORS", 0)
    found = sampler.sample()
    assert "more than 0 open descriptors" in found.problem
    assert found.queues == []


def test_the_watcher_samples_until_it_is_closed(clock: Clock) -> None:
    with MessageQueue("watched"):
        watcher = IpcWatcher(0.01, clock)
        try:
            deadline = time.monotonic() + WAIT_S
            while not (watcher.latest and any(each.name == "watched" for each in watcher.latest.queues)):
                assert time.monotonic() < deadline, "it took no sample"
                time.sleep(0.01)
        finally:
            watcher.close()


def test_an_interval_of_zero_starts_no_thread(clock: Clock) -> None:
    watcher = IpcWatcher(0, clock)
    watcher.close()
    assert watcher.latest is None

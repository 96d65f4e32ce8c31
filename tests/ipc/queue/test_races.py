"""Every call beside `close` and beside a fork, at every place: it completes, or raises an error of the library."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from dataplane.ipc.queue import MessageQueue, QueueError, QueueReader
from dataplane.ipc.queue.stats import queue_stats
from tests.interleaving import STEP_S, Pair, in_a_child, undocumented

WAIT_S = 0.02
"""Waits that nothing but `close` ends."""
DOCUMENTED = (QueueError, TimeoutError)
WRITER: dict[str, Callable[[MessageQueue], object]] = {
    "put": lambda queue: queue.put(b"message", WAIT_S),
    "put large": lambda queue: queue.put(bytes(1 << 20), WAIT_S),
    "handle": MessageQueue.handle,
    "expect": lambda queue: queue.expect(0, os.getpid()),
    "wait_for_readers": lambda queue: queue.wait_for_readers(1, WAIT_S, remote=int(queue._remote is not None)),
    "join": lambda queue: QueueReader(queue.handle(), slot=0).close(),
    "take_over": lambda queue: MessageQueue.take_over(queue.handle()).close(),
    "cancel": MessageQueue.cancel,
    "close": lambda queue: queue.close(0.0),
    "queue_stats": lambda queue: queue_stats(queue._writer.ring),
}


async def _messages(reader: QueueReader) -> None:
    async for _ in reader:
        pass


READER: dict[str, Callable[[QueueReader], object]] = {
    "get": lambda reader: reader.get(WAIT_S),
    "receive": lambda reader: asyncio.run(reader.receive(WAIT_S)),
    "async for": lambda reader: asyncio.run(asyncio.wait_for(_messages(reader), WAIT_S)),
    "wait_until_ready": lambda reader: reader.wait_until_ready(WAIT_S),
    "cancel": QueueReader.cancel,
    "close": QueueReader.close,
}


@contextmanager
def queue_of(remote: bool) -> Iterator[MessageQueue]:
    queue = MessageQueue("races", readers=1, capacity_bytes=1 << 14, remote="tcp://127.0.0.1" if remote else None)
    try:
        yield queue
    finally:
        queue.close(0.0)


@contextmanager
def reader_of(remote: bool) -> Iterator[tuple[MessageQueue, QueueReader]]:
    with queue_of(remote) as queue, QueueReader(queue.handle(), remote=remote) as reader:
        yield queue, reader


def beside(call: Callable[[], object], other: Callable[[], object], stopped: str) -> Pair:
    return Pair(call, other) if stopped == "call" else Pair(other, call)


@pytest.mark.parametrize("remote", [False, True], ids=["here", "remote"])
@pytest.mark.parametrize("stopped", ["call", "close"])
@pytest.mark.parametrize("name", WRITER)
def test_a_call_of_the_writer_beside_close(name: str, stopped: str, remote: bool) -> None:
    @contextmanager
    def make() -> Iterator[Pair]:
        with queue_of(remote) as queue:
            yield beside(partial(WRITER[name], queue), partial(queue.close, 0.0), stopped)

    assert not list(undocumented(make, "dataplane/ipc", DOCUMENTED))


@pytest.mark.parametrize("remote", [False, True], ids=["here", "remote"])
@pytest.mark.parametrize("stopped", ["call", "close"])
@pytest.mark.parametrize("closes", ["reader", "writer"])
@pytest.mark.parametrize("name", READER)
def test_a_call_of_a_reader_beside_close(name: str, closes: str, stopped: str, remote: bool) -> None:
    @contextmanager
    def make() -> Iterator[Pair]:
        with reader_of(remote) as (queue, reader):
            close = reader.close if closes == "reader" else partial(queue.close, 0.0)
            yield beside(partial(READER[name], reader), close, stopped)

    assert not list(undocumented(make, "dataplane/ipc", DOCUMENTED))


@pytest.mark.parametrize("remote", [False, True], ids=["here", "remote"])
@pytest.mark.parametrize("name", [*WRITER, *READER])
def test_a_forked_child_has_closed_copies_whatever_a_thread_of_the_parent_does(name: str, remote: bool) -> None:
    def check(queue: MessageQueue, reader: QueueReader) -> None:
        for call in [
            *(partial(each, queue) for each in WRITER.values()),
            *(partial(x, reader) for x in READER.values()),
        ]:
            with suppress(*DOCUMENTED):
                call()

    @contextmanager
    def make() -> Iterator[Pair]:
        with reader_of(remote) as (queue, reader):
            call = partial(WRITER[name], queue) if name in WRITER else partial(READER[name], reader)
            yield Pair(call, partial(in_a_child, partial(check, queue, reader)))

    assert not list(undocumented(make, "dataplane/ipc", DOCUMENTED, every=60, meanwhile_s=STEP_S))

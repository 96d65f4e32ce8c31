"""Waits end: when the process that is waited for dies, when the queue is closed, and at their deadlines."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dataplane.ipc.queue import MessageQueue, QueueCancelled, QueueError, QueueReader, ReaderGone, ring
from dataplane.ipc.queue.stats import queue_stats
from tests import threads

WAIT_S = 60.0
RING = 1 << 14
ENOUGH = 100
"""Messages of 1,000 bytes that the ring does not hold."""


@pytest.fixture
def expecting() -> Iterator[MessageQueue]:
    with MessageQueue("expecting", readers=1, capacity_bytes=RING) as queue:
        yield queue


def fill(queue: MessageQueue, timeout: float | None = WAIT_S) -> None:
    for _ in range(ENOUGH):
        queue.put(bytes(1000), timeout)


@contextmanager
def waiting(*calls: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Run calls on threads; at the end, the threads have ended and the list has what the calls raised."""
    raised: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except (QueueError, TimeoutError) as error:
            raised.append(error)

    started = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in started:
        thread.start()
    yield raised
    threads.join(*started)


def until_waiting(queue: MessageQueue) -> None:
    while not queue_stats(queue._writer.ring).waits:
        os.sched_yield()


def test_a_process_that_dies_before_it_joins_blocks_no_other(expecting: MessageQueue) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            expecting.expect(0, process.pid)
            with waiting(lambda: expecting.wait_for_readers(1, WAIT_S)) as raised:
                process.kill()
        finally:
            process.kill()
    assert [type(error) for error in raised] == [ReaderGone]
    fill(expecting)
    assert queue_stats(expecting._writer.ring).dead_readers == 1
    with QueueReader(expecting.handle(), slot=0) as successor:
        expecting.put("next")
        assert successor.get(WAIT_S) == "next"


class Cut:
    """Ends the process when it is stored in the memory of a queue, or when it is called."""

    def __index__(self) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def __call__(self) -> None:
        self.__index__()


@pytest.mark.parametrize(
    ("step", "cut"),
    [
        ("dataplane.ipc.queue.ring.start_time", lambda pid: Cut()),
        ("dataplane.ipc.queue.ring.ShmRingBuffer._changed", Cut()),
    ],
    ids=["between pid and start time", "joined"],
)
def test_a_reader_that_dies_while_it_joins_blocks_no_other(
    expecting: MessageQueue, monkeypatch: pytest.MonkeyPatch, step: str, cut: object
) -> None:
    handle = expecting.handle()
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(step, cut)
        QueueReader(handle, slot=0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    fill(expecting)
    assert queue_stats(expecting._writer.ring).dead_readers == 1


def test_an_expected_process_that_runs_is_waited_for(expecting: MessageQueue) -> None:
    expecting.expect(0, os.getpid())
    with waiting(lambda: fill(expecting)) as raised:
        until_waiting(expecting)
        with QueueReader(expecting.handle(), slot=0) as reader:
            assert [reader.get(WAIT_S) for _ in range(ENOUGH)] == [bytes(1000)] * ENOUGH
    assert not raised


@pytest.mark.parametrize(
    ("slot", "pid", "wrong"), [(16, 1, "slot"), (-1, 1, "slot"), (0, 0, "pid"), (0, 1 << 40, "pid")]
)
def test_a_process_that_cannot_be_expected_is_refused(expecting: MessageQueue, slot: int, pid: int, wrong: str) -> None:
    with pytest.raises(ValueError, match=f"{wrong}: expected"):
        expecting.expect(slot, pid)


def test_close_ends_the_puts_of_other_threads(expecting: MessageQueue) -> None:
    with waiting(*[lambda: fill(expecting)] * 2) as raised:
        until_waiting(expecting)
        expecting.close()
    assert len(raised) == 2
    assert all(isinstance(error, QueueError) for error in raised)


def test_close_ends_a_put_that_waits_for_remote_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    with MessageQueue("far", remote="tcp://127.0.0.1") as queue, QueueReader(queue.handle(), remote=True):
        queue.wait_for_readers(0, WAIT_S, remote=1)
        assert queue._remote
        waits = threading.Event()
        slowly = queue._remote._send_slowly

        def send_slowly(frame: bytes | bytearray, deadline: float | None) -> None:
            waits.set()
            slowly(frame, deadline)

        def send() -> None:
            for _ in range(5000):
                queue.put(bytes(1 << 16), WAIT_S)

        monkeypatch.setattr(queue._remote, "_send_slowly", send_slowly)
        with waiting(send) as raised:
            assert waits.wait(WAIT_S)
            queue.close(0.0)
        assert len(raised) == 1
        assert isinstance(raised[0], QueueError)  # cancelled, or between two puts


def test_close_ends_the_wait_for_readers(expecting: MessageQueue) -> None:
    with waiting(lambda: expecting.wait_for_readers(1, WAIT_S)) as raised:
        while not expecting._writer._lock.locked():
            os.sched_yield()
        expecting.close()
    assert [type(error) for error in raised] == [QueueCancelled]


def test_cancel_ends_a_put_and_every_later_wait(expecting: MessageQueue) -> None:
    with waiting(lambda: fill(expecting)) as raised:
        until_waiting(expecting)
        expecting.cancel()
    with pytest.raises(QueueCancelled):
        expecting.wait_for_readers(1)
    assert [type(error) for error in raised] == [QueueCancelled]


@pytest.mark.parametrize("remote", [False, True])
def test_close_ends_every_get(remote: bool) -> None:
    with MessageQueue("gets", remote="tcp://127.0.0.1") as queue:
        reader = QueueReader(queue.handle(), remote=remote)
        with waiting(*[lambda: reader.get(WAIT_S)] * 3) as raised:
            while not reader._reader._lock.locked():
                os.sched_yield()
            reader.close()
        assert len(raised) == 3
        assert all(isinstance(error, QueueError) for error in raised)


def test_cancel_ends_a_get_and_no_later_one(queue: MessageQueue) -> None:
    with QueueReader(queue.handle()) as reader:
        with waiting(lambda: reader.get(WAIT_S)) as raised:
            reader.cancel()
        assert [type(error) for error in raised] == [QueueCancelled]
        queue.put(1)
        assert reader.get(WAIT_S) == 1


@pytest.mark.parametrize("remote", [False, True])
def test_a_deadline_holds_beside_a_thread_that_waits_longer(remote: bool) -> None:
    with (
        MessageQueue("beside", remote="tcp://127.0.0.1") as queue,
        QueueReader(queue.handle(), remote=remote) as reader,
    ):
        queue.wait_for_readers(0 if remote else 1, WAIT_S, remote=int(remote))
        with waiting(lambda: reader.get(WAIT_S)) as raised:
            while not reader._reader._lock.locked():
                os.sched_yield()
            with pytest.raises(TimeoutError):
                reader.get(0.01)
            with pytest.raises(TimeoutError):  # and the loop of asyncio waits for no thread
                asyncio.run(reader.receive(0.01))
            queue.put(1)
        assert not raised


@pytest.mark.parametrize(("timeout", "error"), [(float("nan"), ValueError), (-1, ValueError), ("1", TypeError)])
def test_a_wait_without_a_sensible_end_is_refused(expecting: MessageQueue, timeout: Any, error: type) -> None:
    with QueueReader(expecting.handle()) as reader:
        for name, wait in (
            ("timeout", lambda: expecting.put(1, timeout)),
            ("timeout", lambda: expecting.wait_for_readers(1, timeout)),
            ("timeout", lambda: reader.get(timeout)),
            ("timeout", lambda: asyncio.run(reader.receive(timeout))),
            ("timeout", lambda: reader.wait_until_ready(timeout)),
            ("linger", lambda: expecting.close(timeout)),
        ):
            with pytest.raises(error, match=f"{name}: expected"):
                wait()
        expecting.put(1, float("inf"))
        assert reader.get(1e300) == 1


@contextmanager
def busy(queue: MessageQueue) -> Iterator[None]:
    """Hold the lock of a queue, as another process does."""
    file = os.open(f"/proc/self/fd/{queue.handle().fd}", os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(file)


def test_the_deadline_of_a_put_holds_for_the_lock_too(expecting: MessageQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as process:
        expecting.expect(0, process.pid)
    monkeypatch.setattr(ring, "LOCK_S", 10 * WAIT_S)
    with busy(expecting), pytest.raises(TimeoutError):
        fill(expecting, 0.2)
    fill(expecting)


def test_a_reader_that_closes_while_the_lock_is_busy_blocks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with MessageQueue("busy", capacity_bytes=RING) as queue:
        reader = QueueReader(queue.handle())
        with pytest.raises(TimeoutError):
            fill(queue, 0.2)  # the writer watches the reader
        monkeypatch.setattr(ring, "LOCK_S", 0.01)
        with busy(queue):
            reader.close()
        monkeypatch.undo()
        fill(queue)


def test_a_closed_queue_raises_closed(expecting: MessageQueue) -> None:
    reader = QueueReader(expecting.handle())
    reader.close()
    expecting.close()
    for call in (
        reader.wait_until_ready,
        expecting.handle,
        lambda: expecting.wait_for_readers(0),
        lambda: expecting.expect(0, 1),
    ):
        with pytest.raises(QueueError, match="closed by this"):
            call()


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"slow_readers": "Drop"}, "slow_readers: expected 'wait' or 'drop', not 'Drop'"),
        ({"capacity_bytes": 0}, "capacity_bytes: expected 1 to"),
        ({"capacity_bytes": 1.5e6}, "capacity_bytes: expected a whole number"),
        ({"readers": -1}, "readers: expected 0 to 64"),
        ({"readers": 100}, "readers: expected 0 to 64"),
        ({"max_readers": 0}, "max_readers: expected 1 to 64"),
        ({"name": b"x"}, "name: expected str"),
        ({"reducers": {int: str}}, "reducers: expected none without trusted=True"),
    ],
)
def test_a_wrong_argument_is_named(arguments: Any, wrong: str) -> None:
    with pytest.raises((ValueError, TypeError), match=wrong):
        MessageQueue(**arguments)


def test_a_wrong_argument_of_a_call_is_named(expecting: MessageQueue) -> None:
    call: Any
    for call, wrong in (
        (lambda: expecting.wait_for_readers(17), "count: expected 0 to 16"),
        (lambda: expecting.wait_for_readers(0, remote=1), "remote: expected 0"),
        (lambda: QueueReader("expecting"), "handle: expected QueueHandle"),  # type: ignore[arg-type]
        (lambda: QueueReader(expecting.handle(), slot=1.0), "slot: expected a whole number"),  # type: ignore[arg-type]
    ):
        with pytest.raises((ValueError, TypeError), match=wrong):
            call()


# ---- tasks


def test_messages_are_received_by_tasks_until_the_writer_ends(queue: MessageQueue) -> None:
    async def receive(reader: QueueReader) -> list[int]:
        return [message async for message in reader]

    async def main() -> list[list[int]]:
        return await asyncio.wait_for(asyncio.gather(*map(receive, readers)), WAIT_S)

    def write() -> None:
        for number in range(300):
            queue.put(number, WAIT_S)
        queue.close()

    readers = [QueueReader(queue.handle()) for _ in range(3)]
    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert asyncio.run(main()) == [list(range(300))] * 3
    finally:
        threads.join(writer)
        for reader in readers:
            reader.close()


def test_a_waiting_task_leaves_the_loop_to_others(queue: MessageQueue) -> None:
    async def main(reader: QueueReader) -> object:
        waiting = asyncio.create_task(reader.receive(WAIT_S))
        await asyncio.sleep(0)
        queue.put("sent by another task")
        return await waiting

    with QueueReader(queue.handle()) as reader:
        assert asyncio.run(main(reader)) == "sent by another task"


def test_a_cancelled_task_loses_no_message(queue: MessageQueue) -> None:
    async def main(reader: QueueReader) -> object:
        waiting = asyncio.create_task(reader.receive())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        queue.put("kept")
        return await reader.receive(WAIT_S)

    with QueueReader(queue.handle()) as reader:
        assert asyncio.run(main(reader)) == "kept"


def test_a_deadline_holds(queue: MessageQueue) -> None:
    async def main(reader: QueueReader) -> None:
        with pytest.raises(TimeoutError):
            await reader.receive(0.01)

    with QueueReader(queue.handle()) as reader:
        asyncio.run(main(reader))

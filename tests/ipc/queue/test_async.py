"""Readers in asyncio."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dataplane.ipc.queue import MessageQueue, QueueReader
from tests import threads

WAIT_S = 60.0


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

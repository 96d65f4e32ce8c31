"""Readers, writers and whole groups are killed at random instructions. What remains goes on, and no byte is wrong."""

from __future__ import annotations

import random

import msgspec
import pytest

from dataplane.ipc import memory
from dataplane.ipc.queue import MessageLost, MessageQueue, QueueGone, QueueReader, WriterGone
from dataplane.ipc.queue.stats import queue_stats
from tests.ipc.queue.peers import Peers, handle_of
from tests.ipc.queue.scripts.peers import CAPACITY, WAIT_S, body, wrong
from tests.ipc.released import until_released
from tests.sizes import size

KILLS = size(200, 8)


@pytest.mark.timeout(1800)
def test_the_writer_continues_after_kills_of_readers(peers: Peers) -> None:
    chance = random.Random(1)
    number = 0
    with MessageQueue("kills", capacity_bytes=CAPACITY) as queue, QueueReader(queue.handle()) as survivor:
        handle = msgspec.to_builtins(queue.handle())

        def send(count: int) -> None:
            nonlocal number
            for _ in range(count):
                queue.put({"number": number, "body": body(number)}, WAIT_S)
                assert not wrong(survivor.get(WAIT_S), number)
                number += 1

        for _ in range(KILLS):
            victim = peers.start("read", handle=handle)["pid"]
            send(chance.randrange(60))
            peers.kill_peer(victim)
            send(2 * CAPACITY // 500)  # more than the ring holds: the writer waits for no dead reader
        found = queue_stats(queue._writer.ring)
        assert found.dead_readers >= KILLS - 1
        assert [reader.pid for reader in found.readers if not reader.alive] == []


@pytest.mark.timeout(1800)
def test_readers_of_a_killed_writer_read_its_messages_and_continue_with_the_next_writer(peers: Peers) -> None:
    chance = random.Random(2)
    event = peers.start("write", readers=1)
    handle = handle_of(event)
    with QueueReader(handle, slot=0) as reader:
        number = 0
        for _ in range(KILLS):
            for _ in range(chance.randrange(40)):
                assert not wrong(reader.get(WAIT_S), number)
                number += 1
            peers.kill_peer(event["pid"])
            while True:
                try:
                    message = reader.get(WAIT_S)
                except WriterGone:
                    break
                except MessageLost:  # a large message, whose memory the writer held
                    number += 1
                    continue
                assert not wrong(message, number)
                number += 1
            event = peers.start("take over", handle=msgspec.to_builtins(handle), next=number)
        assert not wrong(reader.get(WAIT_S), number)
        peers.kill_peer(event["pid"])
    until_released(handle.identity)
    with pytest.raises(QueueGone):
        QueueReader(handle)


@pytest.mark.timeout(1800)
def test_a_killed_group_leaves_no_memory(peers: Peers) -> None:
    for _ in range(KILLS):
        event = peers.start("write", readers=2)
        readers = [peers.start("read", handle=event["handle"], slot=slot)["pid"] for slot in range(2)]
        identity = handle_of(event).identity
        assert any(memory.find("queue", identity))
        peers.kill_peer(event["pid"], *readers)
        until_released(identity)

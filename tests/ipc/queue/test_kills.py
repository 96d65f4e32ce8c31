"""Readers, writers and whole groups are killed at random instructions. What remains goes on, and no byte is wrong."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

import msgspec
import pytest

from dataplane.ipc import memory
from dataplane.ipc.queue import MessageLost, MessageQueue, QueueGone, QueueReader, WriterGone
from dataplane.ipc.queue.ring import ShmRingBuffer
from dataplane.ipc.queue.stats import queue_stats
from tests import threads
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


# ---- remote readers


REMOTE_KILLS = size(200, 6)
LOOPBACK = "tcp://127.0.0.1"


@pytest.mark.timeout(1800)
def test_the_writer_continues_after_kills_of_remote_readers(peers: Peers) -> None:
    chance = random.Random(3)
    number = 0
    with (
        MessageQueue("far-kills", remote=LOOPBACK) as queue,
        QueueReader(queue.handle(), remote=True) as far,
        QueueReader(queue.handle()) as near,
    ):
        queue.wait_for_readers(1, WAIT_S, remote=1)
        handle = msgspec.to_builtins(queue.handle())

        def send(count: int) -> None:
            nonlocal number
            for _ in range(count):
                queue.put({"number": number, "body": body(number)}, WAIT_S)
                for reader in (far, near):
                    assert reader.get(WAIT_S) == {"number": number, "body": body(number)}
                number += 1

        for _ in range(REMOTE_KILLS):
            victim = peers.start("read", handle=handle, remote=True)["pid"]
            queue.wait_for_readers(1, WAIT_S, remote=2)
            assert queue_stats(queue._writer.ring).remote_readers == 2
            send(chance.randrange(60))
            peers.kill_peer(victim)
            while queue_stats(queue._writer.ring).remote_readers > 1:
                send(1)


def test_a_put_ends_when_the_remote_reader_that_it_waits_for_is_killed(peers: Peers) -> None:
    with MessageQueue("far", remote=LOOPBACK) as queue:
        victim = peers.start("hang", handle=msgspec.to_builtins(queue.handle()), remote=True)["pid"]
        queue.wait_for_readers(0, WAIT_S, remote=1)
        with suppress(TimeoutError):
            while True:
                queue.put(bytes(1 << 16), 0.05)
        waiting = threading.Thread(target=queue.put, args=(bytes(1 << 16), WAIT_S))
        waiting.start()
        peers.kill_peer(victim)
        threads.join(waiting)


@pytest.mark.timeout(1800)
def test_remote_readers_of_a_killed_writer_continue_with_the_next_one(peers: Peers) -> None:
    chance = random.Random(4)
    event = peers.start("write", readers=0, remote=LOOPBACK)
    handle = handle_of(event)
    ring = ShmRingBuffer.open(handle)
    try:
        with QueueReader(handle, remote=True) as reader:
            expected = 0
            lost = False

            def get() -> None:
                nonlocal expected, lost
                try:
                    message = reader.get(WAIT_S)
                except MessageLost:  # it was under way when the writer was killed
                    lost = True
                    return
                number = message["number"]
                assert message["body"] == body(number)
                assert number > expected if lost else number == expected
                expected, lost = number + 1, False

            def get_from_next_writer() -> None:
                while True:
                    with suppress(WriterGone):  # until the reader has connected again
                        return get()

            for _ in range(REMOTE_KILLS):
                get_from_next_writer()
                for _ in range(chance.randrange(40)):
                    get()
                peers.kill_peer(event["pid"])
                with suppress(WriterGone):
                    while True:
                        get()
                event = peers.start("take over", handle=event["handle"])
                assert handle_of(event).remote == handle.remote
                # The writer was killed before it counted the last message: it is sent again.
                expected = min(expected, queue_stats(ring).messages)
            get_from_next_writer()
    finally:
        ring.close()


def test_the_next_writer_has_the_key_of_the_one_before() -> None:
    with MessageQueue("keys", remote=LOOPBACK) as queue, QueueReader(queue.handle()):
        handle = queue.handle()
        with QueueReader(handle, remote=True) as reader:
            queue.wait_for_readers(0, WAIT_S, remote=1)
            queue.close()
            with pytest.raises(WriterGone):
                reader.get(WAIT_S)
            with MessageQueue.take_over(handle) as successor:
                assert successor.handle() == msgspec.structs.replace(handle, fd=successor.handle().fd)

                def send() -> None:
                    successor.wait_for_readers(1, WAIT_S, remote=1)
                    successor.put("next", WAIT_S)

                sender = threading.Thread(target=send)
                sender.start()
                found = None
                while found is None:
                    with suppress(WriterGone):
                        found = reader.get(WAIT_S)
                assert found == "next"
                threads.join(sender)

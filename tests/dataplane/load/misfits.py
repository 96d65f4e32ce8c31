"""Engines that no data plane deserves: `python -m tests.dataplane.load.misfits ROLE SOCKET SEED`.

Each says `ready` once it has begun, and goes on until it is killed.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
import sys
import time
from collections.abc import Callable

import numpy as np

from dataplane.client import Client, attach
from dataplane.client.attachment import Attachment
from dataplane.protocol.codec import encode
from dataplane.protocol.engine import VERSION, Abort, Attach, LeaseRequest, Map, Report, Reserve, SpaceRequest
from dataplane.protocol.layout import A_RING_HEAD, A_RING_TAIL
from tests.dataplane import factories as make
from tests.dataplane.load.content import chain

PAGE = 4096
READ_ONLY = SpaceRequest(make.space(), writes=False)


def attachment_of(client: Client) -> Attachment:
    attachment = client._memory.current
    assert attachment is not None
    return attachment


def ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def _scribble(path: str, harm: Callable[[Attachment, np.random.Generator], None], seed: int) -> None:
    rng = np.random.default_rng(seed)
    client = attach(path, [READ_ONLY], group=f"scribbler-{seed}", timeout_s=30)
    attachment = attachment_of(client)
    harm(attachment, rng)
    ready()
    while True:
        harm(attachment, rng)
        client.lookup(chain(0)[0])
        time.sleep(0.001)


def scribble_ring(path: str, seed: int) -> None:
    """Random heads, tails and entries, some of them nearly right."""

    def harm(attachment: Attachment, rng: np.random.Generator) -> None:
        ring = attachment.area.ring
        at = rng.integers(0, len(ring), 64)
        ring[at] = rng.integers(0, 2**64 - 1, (64, 2), np.uint64)
        ring[at[:32], 0] = np.uint64(1 << 56) | at[:32].astype(np.uint64)
        ring[at[:32], 1] = attachment.index.control[at[:32] % attachment.index.max_blocks]
        header = attachment.area.header
        step = int(rng.integers(0, 3))
        if step == 0:
            header[A_RING_HEAD] = rng.integers(0, 2**64 - 1, dtype=np.uint64)
        elif step == 1:
            header[A_RING_HEAD] = np.uint64((int(header[A_RING_TAIL]) + 500) % 2**64)
        else:
            header[A_RING_TAIL] = rng.integers(0, 2**64 - 1, dtype=np.uint64)

    _scribble(path, harm, seed)


def scribble_header(path: str, seed: int) -> None:
    """The whole header of its area, and all of its ring."""

    def harm(attachment: Attachment, rng: np.random.Generator) -> None:
        attachment.area.header[:] = rng.integers(0, 2**64 - 1, len(attachment.area.header), np.uint64)
        attachment.area.ring[:] = rng.integers(0, 2**64 - 1, attachment.area.ring.shape, np.uint64)

    _scribble(path, harm, seed)


def scribble_counters(path: str, seed: int) -> None:
    """Counters of a quarter of all blocks up, again and again."""

    def harm(attachment: Attachment, rng: np.random.Generator) -> None:
        counters = attachment.area.counters
        counters[:] = 0
        at = rng.integers(0, len(counters), len(counters) // 4)
        counters[at] = rng.integers(1, 2**32 - 1, len(at), np.uint32)

    _scribble(path, harm, seed)


def lie(path: str, seed: int) -> None:
    """Report blocks as corrupt that are not, as fast as it goes."""
    rng = np.random.default_rng(seed)
    client = attach(path, [READ_ONLY], group=f"liar-{seed}", timeout_s=30)
    ready()
    while True:
        index = attachment_of(client).index
        at = rng.integers(0, index.max_blocks, 512).astype(np.uint32)
        message = at.tobytes(), index.control[at].tobytes()
        client._link.request(lambda number, report=message: Report(number, *report), lambda answer: None)  # type: ignore[misc]


def be_deaf(path: str, seed: int) -> None:
    """Ask and never read an answer; connect again when that ends."""
    for turn in itertools.count():
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(path)
            connection.send(encode(Attach(1, VERSION, f"deaf-{seed}", [READ_ONLY])))
            try:
                for number in range(20_000):
                    connection.send(encode(Map(number, [1, 2, 3])))
            except OSError:
                pass
        if turn == 0:
            ready()
        time.sleep(0.05)


def babble(path: str, seed: int) -> None:
    """Messages that are well formed and wrong, and bytes that are no messages."""
    rng = random.Random(seed)
    for turn in itertools.count():
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(path)
            connection.settimeout(5)
            connection.send(encode(Attach(1, VERSION, f"babbler-{seed}", [SpaceRequest(make.space())])))
            connection.recv(1 << 18)
            try:
                for _ in range(rng.randint(1, 200)):
                    connection.send(_babble(rng))
                    connection.recv(1 << 18)
            except OSError:
                pass
        if turn == 0:
            ready()


def _babble(rng: random.Random) -> bytes:
    number = rng.choice([0, 1, 2, 2**31, 2**32 - 1, -1])
    keys = make.packed(make.keys(rng.randint(1, 5), rng.randint(0, 9)))
    message = rng.choice(
        [
            Reserve(1, number, rng.choice(["", "a/b", "x" * 200]), keys[: rng.randint(0, len(keys))], number),
            Abort(1, number),
            LeaseRequest(1, number, keys),
            Map(1, [abs(number)] * rng.randint(0, 300)),
            Report(1, rng.randbytes(4 * rng.randint(0, 9)), rng.randbytes(8 * rng.randint(0, 9))),
        ]
    )
    data = bytearray(encode(message))
    for _ in range(rng.randint(0, 3)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def hang(path: str, seed: int) -> None:
    """Reserve, write half, say so, and write the rest when it wakes up, again and again."""
    client = attach(path, [make.space()], group=f"hanger-{seed}", timeout_s=30)
    for turn in itertools.count():
        with client.reserve(make.keys(4, ("hang", seed, turn)), PAGE) as reservation:
            views = [reservation.view(at) for at in reservation.writable]
            for view in views:
                view[: PAGE // 2] = b"h" * (PAGE // 2)
            if turn == 0:
                ready()
            time.sleep(0.2)
            for view in views:
                view[PAGE // 2 :] = b"h" * (PAGE // 2)
            reservation.commit()


def come_and_go(path: str, seed: int) -> None:
    """Attach, reserve, and leave without a word, or with one."""
    rng = random.Random(seed)
    for turn in itertools.count():
        client = attach(path, [make.space()], group=f"visitor-{seed}", timeout_s=30)
        reservation = client.reserve(make.keys(3, ("visit", seed, rng.random())), PAGE)
        if rng.random() < 0.5:
            reservation.abort()
        client.close()
        del reservation, client
        if turn == 0:
            ready()
        time.sleep(0.02)


def fork(path: str, seed: int) -> None:
    """Fork with leases and reservations open; children try the inherited client."""
    client = attach(path, [make.space()], group=f"forker-{seed}", timeout_s=30)
    ready()
    while True:
        lease = client.acquire(chain(seed % 7)[0])
        reservation = client.reserve(make.keys(2, ("fork", seed, time.monotonic())), PAGE)
        child = os.fork()
        if child == 0:
            try:
                assert client.lookup(chain(0)[0]) == 0
                assert reservation.commit().blocks == 0
                lease.release()
                del lease, reservation, client
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        reservation.abort()
        lease.release()
        time.sleep(0.02)


ROLES: dict[str, Callable[[str, int], None]] = {
    each.__name__: each
    for each in (scribble_ring, scribble_header, scribble_counters, lie, be_deaf, babble, hang,
                 come_and_go, fork)
}  # fmt: skip

if __name__ == "__main__":
    ROLES[sys.argv[1]](sys.argv[2], int(sys.argv[3]))

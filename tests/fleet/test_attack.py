"""Strangers at the join socket: whatever they send, memory stays bounded, nothing is raised, and the fleet goes on."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import zmq

from app.supervisor.descriptors import allow_descriptors
from dataplane.protocol.codec import encode
from dataplane.protocol.join import MAX_JOIN_BYTES, VERSION, Join
from dataplane.sockets.curve import key_pair
from tests.e2e.larder import until
from tests.fleet.fleet import APPLIED_WITHIN, PAGE, WAIT_S, Fleet, Manager
from tests.fleet.test_machines import NAMES

pytestmark = [pytest.mark.full]
MIB = 1 << 20
MAX_GROWTH = 192 * MIB
"""Of a management plane's memory, whatever unknown peers send."""
CROWD = 1200
"""More than are listened to at once."""
FLOOD = 1024 * MIB
FLOOD_S = 4.0
PARTS = 5000
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00%s" + bytes(48)
HELLO = Join(VERSION, "foreign", "0", {}, "tcp://0.0.0.0:9", "tcp://0.0.0.0:9", "none", bytes(32))


@pytest.fixture(autouse=True)
def many_descriptors() -> None:
    allow_descriptors()


def memory_of(pid: int) -> int:
    """Bytes in RAM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@contextmanager
def unharmed(fleet: Fleet) -> Iterator[Callable[[], None]]:
    """Gives a look at the memory to take in between. At the end nodes get the new records, and another one joins."""
    app = fleet.app
    assert app.process is not None
    pid, log = app.process.pid, len(app.log())
    before, most = memory_of(pid), 0

    def look() -> None:
        nonlocal most
        grown = memory_of(pid) - before
        most = max(grown, most)
        assert grown < MAX_GROWTH, f"{grown / MIB:.0f} MiB more than before"

    yield look
    look()
    app.put_quota("acme", PAGE, wait=APPLIED_WITHIN)
    app.until_applied("acme", NAMES)
    fleet.node("honest").start()
    app.until_states(**dict.fromkeys((*NAMES, "honest"), "in_sync"))
    look()
    print(f"{most / MIB:.0f} MiB more at most")
    log_text = app.log()[log:]
    for wrong in ("Traceback", "join.failed", "task.failed"):
        assert wrong not in log_text, log_text[-3000:]


def connect(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=WAIT_S)


def send(connection: socket.socket, data: bytes) -> None:
    """As far as the other end takes it."""
    with suppress(OSError):
        connection.sendall(data)


def closed(connection: socket.socket) -> bool:
    """Read what comes until the other end has closed."""
    with suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return True


def garbage(chance: random.Random) -> bytes:
    greeting = GREETING % chance.choice([b"CURVE", b"NULL\0", b"PLAIN"]).ljust(20, b"\0")
    kinds: list[Callable[[], bytes]] = [
        lambda: chance.randbytes(chance.randrange(1, 4096)),
        lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(512),
        lambda: greeting[: chance.randrange(1, len(greeting))] + b"\0" * 200,
        lambda: greeting + b"\x06" + (1 << 40).to_bytes(8, "big") + chance.randbytes(1024),
        lambda: greeting + b"\x02" + (1 << 62).to_bytes(8, "big"),
        lambda: greeting + b"\x04\xc8\x05HELLO" + chance.randbytes(194),
        lambda: greeting + b"\x04\xff\x05HELLO" + chance.randbytes(249),
        lambda: greeting + b"\x04\x20\x05ERROR" + chance.randbytes(26),
        lambda: greeting + b"\x00\x05hello" * 50,
        lambda: greeting + b"\x04\xc8\x05HELLO\x01\x00" + bytes(192) + b"\x04\xff\x08INITIATE" + chance.randbytes(246),
        lambda: b"\x01\x00" * 500,
    ]
    return chance.choice(kinds)()


def test_garbage_instead_of_a_handshake_is_cut_off_by_everybody(fleet: Fleet) -> None:
    chance = random.Random(1)
    with unharmed(fleet) as look, ExitStack() as stack:
        addresses = [("127.0.0.1", fleet.app.join_port)] * 300
        addresses += [(node.machine.far, port) for node in fleet.nodes.values() for port in (8472, 8473)] * 20
        crowd = [stack.enter_context(connect(*address)) for address in addresses]
        for each in crowd:
            send(each, garbage(chance))
        look()
        assert all(closed(each) for each in crowd)


def test_many_silent_connections_are_closed_and_others_connect(fleet: Fleet) -> None:
    with ExitStack() as stack, unharmed(fleet):
        crowd = [stack.enter_context(connect("127.0.0.1", fleet.app.join_port)) for _ in range(CROWD)]
        assert all(closed(each) for each in crowd)


# ---- behind the handshake


class Crowd:
    """Strangers that know the key of the management plane; each has one of its own."""

    def __init__(self, app: Manager, server_key: bytes | None = None) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 4 * CROWD)
        self._url = f"tcp://127.0.0.1:{app.join_port}"
        self._server_key = server_key or key_pair(app.folder / "manager.key").public.encode()
        self._stack = ExitStack()

    def enter(self, count: int) -> list[zmq.Socket[bytes]]:
        return [self._one() for _ in range(count)]

    def _one(self) -> zmq.Socket[bytes]:
        made = self._stack.enter_context(self.context.socket(zmq.DEALER))
        made.linger = 0
        made.sndhwm = 10
        made.curve_serverkey = self._server_key
        made.curve_publickey, made.curve_secretkey = zmq.curve_keypair()
        made.reconnect_ivl = -1
        made.immediate = 1  # nothing waits here for a connection
        made.connect(self._url)
        return made

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.context.term()


def connected(peers: list[zmq.Socket[bytes]]) -> None:
    until(lambda: all(peer.poll(0, zmq.POLLOUT) for peer in peers), "they have shaken hands", WAIT_S)


def push(peer: zmq.Socket[bytes], data: bytes) -> int:
    """As far as the other end takes it: how many bytes."""
    with suppress(zmq.Again):
        peer.send(data, zmq.NOBLOCK)
        return len(data)
    return 0


def flood(peers: list[zmq.Socket[bytes]], data: bytes, look: Callable[[], None]) -> None:
    """Send as much as they can for some time."""
    connected(peers)
    began, sent = time.monotonic(), 0
    while sent < FLOOD and time.monotonic() - began < FLOOD_S:
        now = sum(push(peer, data) for peer in peers)
        sent += now
        if not now:
            peers[0].poll(10, zmq.POLLOUT)
        look()
    print(f"{sent / MIB:.0f} MiB sent in {time.monotonic() - began:.1f} s")


def gone(peer: zmq.Socket[bytes]) -> bool:
    """Nothing can be sent any more: it was cut off, and does not come back."""
    return not peer.poll(0, zmq.POLLOUT)


def test_a_wrong_key_of_the_management_plane_gets_no_answer(fleet: Fleet) -> None:
    other = zmq.curve_keypair()[0]
    with unharmed(fleet), Crowd(fleet.app, other) as crowd:
        peers = crowd.enter(200)
        for peer in peers:
            push(peer, encode(HELLO))
        assert not any(peer.poll(5) for peer in peers)


def test_an_invalid_join_is_answered_and_raises_nothing(fleet: Fleet) -> None:
    chance = random.Random(2)
    good = encode(HELLO)
    with unharmed(fleet), Crowd(fleet.app) as crowd:
        for peer in crowd.enter(100):
            kind = chance.randrange(6)
            if kind == 0:
                peer.send(chance.randbytes(chance.randrange(0, 2000)))
            elif kind == 1:
                peer.send_multipart([good] * chance.choice([2, 3, 200]))
            elif kind == 2:
                cut = bytearray(good)
                for _ in range(chance.randrange(1, 8)):
                    cut[chance.randrange(len(cut))] = chance.randrange(256)
                peer.send(bytes(cut))
            elif kind == 3:
                peer.send(b"\x91" * (MAX_JOIN_BYTES - 1024))
            elif kind == 4:
                peer.send(msgspec.msgpack.encode({"op": "join", "version": "1", "labels": {"a" * 5000: 1}}))
            else:
                peer.send(b"")
            assert peer.poll(int(WAIT_S * 1000)), f"kind {kind} is answered"
            assert peer.recv(), "with a refusal"


def test_a_message_that_is_too_long_is_not_kept(fleet: Fleet) -> None:
    with unharmed(fleet) as look, Crowd(fleet.app) as crowd:
        peers = crowd.enter(20)
        connected(peers)
        for peer in peers:
            push(peer, bytes(MAX_JOIN_BYTES + 1))
            push(peer, bytes(8 * MIB))
        until(lambda: all(gone(peer) for peer in peers), "they are cut off", WAIT_S)
        look()


def test_a_message_without_an_end_is_cut_off(fleet: Fleet) -> None:
    with unharmed(fleet) as look, Crowd(fleet.app) as crowd:
        peers = crowd.enter(4)
        part = bytes(MAX_JOIN_BYTES - 1024)
        connected(peers)
        for peer in peers:
            peer.send_multipart([part] * PARTS, copy=False)

        def cut_off() -> bool:
            look()
            return all(gone(peer) for peer in peers)

        until(cut_off, "they are cut off", WAIT_S)


def test_many_messages_of_many_do_not_pile_up(fleet: Fleet) -> None:
    with unharmed(fleet) as look, Crowd(fleet.app) as crowd:
        peers = crowd.enter(50)
        long = b"\xc1" * (MAX_JOIN_BYTES - 1024)
        flood(peers, long, look)


def test_many_authenticated_connections_without_requests_are_closed(fleet: Fleet) -> None:
    with Crowd(fleet.app) as crowd:
        with unharmed(fleet):
            peers = crowd.enter(CROWD)
            for peer in peers:
                push(peer, b"")
        until(lambda: all(gone(peer) for peer in peers), "they are cut off", WAIT_S)

"""ZMTP byte by byte: what a connection may say, in pieces of any size, and what costs it the connection."""

from __future__ import annotations

import random
import select
import socket
from contextlib import suppress

import pytest

from dataplane.gateways.lmcache.zmtp import connections
from dataplane.gateways.lmcache.zmtp.protocol import GREETING_BYTES, ZmtpConnection, ZmtpError, message
from tests.lmcache.client import Client, lookup_key, packed, prompt
from tests.lmcache.gateway import Gateway

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + bytes(32)


def ready(kind: bytes = b"DEALER") -> bytes:
    body = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind + b"\x08Identity" + bytes(4)
    return bytes((4, len(body))) + body


def stream(max_bytes: int = 1000, max_frames: int = 5) -> ZmtpConnection:
    return ZmtpConnection(max_bytes, max_frames)


def all_of(stream: ZmtpConnection, data: bytes, size: int) -> list[list[bytes]]:
    found = []
    for at in range(0, len(data), size):
        stream.receive_data(data[at : at + size])
        while (frames := stream.next_message()) is not None:
            found.append(frames)
    return found


MESSAGES = [[b"\x01", b"\x16", b"\xc0"], [b"x"], [b"a", b"", b"b" * 255, b"c" * 256], [b"\x02", b"d" * 700]]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100, 5000])
def test_messages_are_the_same_in_pieces_of_any_size(size: int) -> None:
    data = GREETING + ready() + b"".join(map(message, MESSAGES)) * 3
    assert all_of(stream(), data, size) == MESSAGES * 3


def test_the_server_sends_its_greeting_and_properties_first() -> None:
    talk = stream()
    assert len(talk.data_to_send) == GREETING_BYTES
    all_of(talk, GREETING, 100)
    assert talk.data_to_send[GREETING_BYTES:].startswith(b"\x04")
    assert b"Socket-Type\x00\x00\x00\x06ROUTER" in talk.data_to_send
    assert (talk.greeted, talk.ready) == (True, False)
    all_of(talk, ready(), 100)
    assert talk.ready


def test_a_heartbeat_is_answered_with_its_context() -> None:
    talk = stream()
    all_of(talk, GREETING + ready(), 100)
    talk.data_to_send.clear()
    assert all_of(talk, b"\x04\x0a\x04PING\x00\x10abc" + message([b"x"]), 3) == [[b"x"]]
    assert talk.data_to_send == b"\x04\x08\x04PONGabc"


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_heartbeat_between_the_frames_of_a_message_is_answered_once(size: int) -> None:
    """libzmq says it whenever its time has come."""
    talk = stream()
    all_of(talk, GREETING + ready(), 100)
    talk.data_to_send.clear()
    ping = b"\x04\x0a\x04PING\x00\x10abc"
    sent = b"\x01\x01a" + ping + b"\x01\x02bc" + ping + b"\x00\x01d" + message([b"x"])
    found: list[list[bytes]] = []
    in_kernel = b""  # what a connection leaves in the kernel
    for at in range(0, len(sent), size):
        data = in_kernel + sent[at : at + size]
        talk.receive_data(data)
        while (frames := talk.next_message()) is not None:
            found.append(frames)
        left = talk.give_back(1000)
        in_kernel = data[len(data) - left :]
    assert found == [[b"a", b"bc", b"d"], [b"x"]]
    assert talk.data_to_send == b"\x04\x08\x04PONGabc" * 2


def test_frames_beyond_the_number_are_left_out_and_counted_by_bytes() -> None:
    talk = stream(max_bytes=100, max_frames=2)
    all_of(talk, GREETING + ready(), 100)
    assert all_of(talk, message([b"a", b"b", b"c" * 50, b"d"]) * 2, 30) == 2 * [[b"a", b"b"]]
    with pytest.raises(ZmtpError, match="at most 100 bytes"):
        all_of(talk, message([b"a", b"b", b"c" * 50, b"d" * 50]), 30)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1", "first byte"),
        (b"\xff" + bytes(9), "tenth byte"),
        (GREETING[:10] + b"\x01", "expected ZMTP 3"),
        (GREETING[:12] + b"PLAIN" + GREETING[17:], "mechanism NULL"),
        (GREETING + message([b"x"]), "READY before messages"),
        (GREETING + b"\x04\x06\x05ERROR", "expected the command READY"),
        (GREETING + b"\x04\x00", "expected the command READY"),
        (GREETING + ready(b"SUB"), "no business"),
        (GREETING + b"\x04\x08\x05READY\x0bS", "ends within"),
        (GREETING + b"\x04\x0d\x05READY\x01S\x00\x00\x00\x09x", "ends within"),
        (GREETING + ready() + b"\x08\x00", "flags 0x8"),
        (GREETING + ready() + b"\x05\x00", "no frame of a message"),
        (GREETING + ready() + b"\x01\x00" * 4096, "at most 4096 frames"),
        (GREETING + ready() + b"\x02" + b"\xff" * 8, "at most 1000 bytes"),
        (GREETING + ready() + b"\x06" + (1 << 20).to_bytes(8, "big"), "a command has"),
    ],
)
def test_a_peer_without_zmtp_is_refused_at_its_first_wrong_byte(data: bytes, why: str) -> None:
    with pytest.raises(ZmtpError, match=why):
        all_of(stream(), data, 1)


def test_anything_is_either_words_or_malformed() -> None:
    chance = random.Random(4)
    good = GREETING + ready() + b"".join(map(message, MESSAGES))
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with suppress(ZmtpError):
            all_of(stream(), bytes(data), chance.choice((1, 9, 50, 2000)))


class TestConnections:
    """Plain sockets at a gateway."""

    def connect(self, gateway: Gateway, data: bytes) -> socket.socket:
        _, _, port = gateway.server.url.rpartition(":")
        peer = socket.create_connection(("127.0.0.1", int(port)))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setblocking(False)
        peer.sendall(data)
        return peer

    def heard(self, gateway: Gateway, peer: socket.socket, nbytes: int) -> bytes:
        data = b""

        def enough() -> bool:
            nonlocal data
            with suppress(BlockingIOError):
                data += peer.recv(1 << 16)
            return len(data) >= nbytes

        for _ in range(2000):
            if enough():
                return data
            gateway.turn()
            select.select([peer], [], [], 0.01)
        raise AssertionError(f"{nbytes} bytes are said, got {len(data)}")

    def test_a_request_sent_byte_by_byte_is_answered(self, gateway: Gateway) -> None:
        with self.connect(gateway, b"") as peer:
            for byte in GREETING + ready() + message([b"\x01", b"\x18"]):
                peer.send(bytes((byte,)))
                gateway.turn()
            answer = message([b"\x01", b"\x18", b"\xa2OK"])
            hello = GREETING_BYTES + len(stream_ready())
            assert self.heard(gateway, peer, hello + len(answer)).endswith(answer)

    def test_a_silent_peer_is_not_waited_for(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        with self.connect(gateway, b"") as peer:
            self.heard(gateway, peer, GREETING_BYTES)
            gateway.server.tick()
            monkeypatch.setattr(connections, "HANDSHAKE_S", -1.0)
            gateway.server.tick()
            peer.setblocking(True)
            assert peer.recv(1) == b""

    def test_nothing_is_read_of_a_peer_that_takes_no_answers_and_nothing_is_lost(self, gateway: Gateway) -> None:
        count = 40_000
        with gateway.client() as other, self.connect(gateway, GREETING + ready()) as peer:
            request = message([b"\xce\x00\x00\x00\x01", b"\xa4noop", b""])  # refused, and answered
            data = memoryview(request * count)
            sent = idle = 0
            while sent < len(data) and idle < 200:
                try:
                    sent, idle = sent + peer.send(data[sent:]), 0
                except BlockingIOError:
                    gateway.turn()
                    idle += 1
                    assert other.ask("noop") == "OK" if idle == 100 else True
            hello = GREETING_BYTES + len(stream_ready())
            answer = len(message([b"\xce\x00\x00\x00\x01", b"\xa4noop"]))
            heard = 0
            while heard < hello + count * answer:
                gateway.turn()
                with suppress(BlockingIOError):
                    heard += len(peer.recv(1 << 20))
                with suppress(BlockingIOError):
                    sent += peer.send(data[sent:])
            assert heard == hello + count * answer
        assert gateway.server.counters.unanswered == 0

    def test_a_turn_ends_in_time_and_the_rest_is_served_in_the_next_ones(
        self, gateway: Gateway, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.register()
        client.store(prompt(1))
        monkeypatch.setattr(connections, "TURN_S", 0.0)
        for at in range(50):
            client.send([packed(at), b"\x08", packed(lookup_key(prompt(1), f"r{at}")), b"\x01"])
        assert [client.receive() for _ in range(50)] == [[packed(at), b"\x08"] for at in range(50)]
        assert client.ask("noop") == "OK"


def stream_ready() -> bytes:
    """What this end says after its greeting."""
    talk = stream()
    all_of(talk, GREETING, 100)
    return bytes(talk.data_to_send[GREETING_BYTES:])

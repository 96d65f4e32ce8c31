"""Connections that close at odd moments leave nothing behind."""

from __future__ import annotations

import ctypes
import os
import random
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest
import zmq

from dataplane.gateways.lmcache.zmtp import connections
from dataplane.gateways.lmcache.zmtp.connections import ZmtpServer
from dataplane.gateways.lmcache.zmtp.protocol import GREETING_BYTES, ZmtpConnection, ZmtpError, message
from dataplane.gateways.lmcache.zmtp.sockets import listen, release, url_of
from tests.free_port import free_port
from tests.lmcache.client import Client, context, lookup_key, packed, prompt
from tests.lmcache.gateway import Gateway, Holder
from tests.require import require
from tests.threads import join

CLONE_NEWNET = 0x40000000


def send_and_close(gateway: Gateway, *messages: list[bytes]) -> None:
    """A client that closes with its last word."""
    own: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = own.socket(zmq.DEALER)
    socket.linger = 60_000
    socket.connect(gateway.server.url)
    for each in messages:
        socket.send_multipart(each)
    socket.close()
    ending = Thread(target=own.term)  # ends when everything is sent
    ending.start()
    while ending.is_alive():
        gateway.turn()


def schedulers(gateway: Gateway) -> int:
    groups = [engine.group for engine in gateway.bench.node.engines.values()]
    return sum(group.startswith("lmcache:scheduler:") for group in groups)


def test_a_look_up_of_a_client_that_is_gone_holds_nothing(worker: Client, gateway: Gateway) -> None:
    worker.store(prompt(2))
    handler = gateway.server.counters.of("lookup")
    for at in range(6):
        send_and_close(gateway, [b"\x01", b"\x08", packed(lookup_key(prompt(2), f"r{at}")), b"\x01"])
    gateway.until(lambda: handler.requests == 6, "what they said is read")
    gateway.until(lambda: len(gateway.server.connections) == 1, "they are forgotten")
    assert (gateway.leased(), len(gateway.server.sessions), schedulers(gateway)) == (0, 0, 0)


def test_a_registration_of_a_gone_client_is_absent(gateway: Gateway) -> None:
    handler = gateway.server.counters.of("register_kv_cache_engine_driven_context")
    for at in range(4):
        send_and_close(gateway, [b"\x01", b"\x0e", packed(context(at))])
    gateway.until(lambda: handler.requests == 4, "what they said is read")
    gateway.until(lambda: len(gateway.server.connections) == 0, "they are forgotten")
    assert not any(instance.attached for instance in gateway.server.registry)


def test_connections_that_say_nothing_are_not_remembered(client: Client, gateway: Gateway) -> None:
    for _ in range(6):
        send_and_close(gateway)
    assert client.ask("noop") == "OK"
    gateway.until(lambda: len(gateway.server.connections) == 1, "they are forgotten")


def test_many_clients_come_and_go(gateway: Gateway) -> None:
    with gateway.client() as worker:
        worker.register()
        worker.store(prompt(1))
        for at in range(20):
            with gateway.client() as client:
                assert client.lookup(prompt(1), f"r{at}") == 1
    gateway.until(lambda: len(gateway.server.connections) == 0, "they are forgotten")
    gateway.until(lambda: gateway.leased() == 0, "what they held is released")
    assert schedulers(gateway) == 0


def test_connections_beyond_those_that_are_remembered_are_served_in_a_common_name(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataplane.gateways.lmcache.zmtp.connections.MAX_CONNECTIONS", 2)
    clients = [gateway.client() for _ in range(5)]
    peers = gateway.server.connections._by_fd.values()
    gateway.until(lambda: all(peer.resolved_owner for peer in peers), "the process of each peer is known")
    clients[0].register()
    clients[4].register(8)
    assert clients[4].store(prompt(1), instance=8) is True
    for _ in range(3):
        assert [client.lookup(prompt(1), f"r{at}") for at, client in enumerate(clients)] == 5 * [1]
    assert (len(gateway.server.connections), schedulers(gateway), gateway.leased()) == (2, 2, 5)
    for at, client in enumerate(clients):
        client.ask("end_session", f"r{at}")
    assert gateway.leased() == 0


class TestWhatHoldersKeep:
    """Duplicates of sockets, for the next data plane."""

    def test_a_connection_is_kept_from_its_handshake_to_its_end(self, gateway: Gateway) -> None:
        with gateway.client(greet=False) as client:
            gateway.until(lambda: gateway.holder.descriptors, "it is kept before it says anything")
            assert client.ask("noop") == "OK"
            assert gateway.holder.calls == ["listener made", "connection made"]
        gateway.until(lambda: not gateway.holder.descriptors, "it is released")

    def test_the_bytes_of_a_request_stay_in_the_kernel_until_it_is_answered(
        self, gateway: Gateway, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[int] = []
        (fd,) = gateway.holder.descriptors.values()
        handle = gateway.server._operations.handle

        def looking(*arguments: Any) -> object:
            with socket.socket(fileno=os.dup(fd)) as other:
                seen.append(len(other.recv(1000, socket.MSG_PEEK)))
            return handle(*arguments)

        monkeypatch.setattr(gateway.server._operations, "handle", looking)
        for _ in range(3):
            assert client.ask("noop") == "OK"
        assert len(seen) == 3
        assert min(seen) > 0
        with socket.socket(fileno=os.dup(fd)) as other, pytest.raises(BlockingIOError):
            other.recv(1000, socket.MSG_PEEK)

    def test_an_inherited_connection_is_kept_only_after_its_request_is_served(self, gateway: Gateway) -> None:
        """A request that ended the data plane must not end the next one, and the one after it."""
        with gateway.client() as client:
            (fd,) = gateway.holder.descriptors.values()
            inherited = os.dup(fd)
            client.send([b"\x01", b"\x18"])
            assert select.select([inherited], [], [], 60)[0], "it lies in the kernel"
            holder = Holder()
            holder.descriptors[5] = inherited
            served: list[bool] = []
            after = ZmtpServer(
                gateway.loop,
                "tcp://127.0.0.1:0",
                lambda connection, frames: served.append(bool(holder.descriptors)),
                lambda connection: None,
                16,
                holder,
                [("connection", 5, inherited)],
            )
            try:
                after.turn()
                assert served == [False]
                assert list(holder.descriptors) == [5]
                assert holder.calls == ["listener made", "connection dropped", "connection made"]
            finally:
                after.close()

    def test_a_message_that_is_too_long_to_stay_in_the_kernel_lets_the_connection_go_until_it_is_served(
        self, gateway: Gateway, client: Client
    ) -> None:
        assert client.call("noop", bytes(2_000_000)) == []
        assert gateway.holder.calls[-2:] == ["connection dropped", "connection made"]
        assert client.ask("noop") == "OK"

    def test_the_end_of_a_message_that_does_not_come_is_waited_for_outside_of_the_kernel(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dataplane.gateways.lmcache.zmtp.connections.LEFT_S", -1.0)
        data = GREETING + ready() + b"\x00\x05ab"
        _, _, port = gateway.server.url.rpartition(":")
        with socket.create_connection(("127.0.0.1", int(port))) as peer:
            peer.sendall(data)
            gateway.until(lambda: gateway.holder.descriptors, "it waits for the rest")
            gateway.server.tick()
            gateway.until(lambda: not gateway.holder.descriptors, "it was taken out")
            peer.sendall(b"cde")
            gateway.until(lambda: gateway.holder.descriptors, "it is whole")


def test_a_listener_of_another_network_namespace_is_replaced(gateway: Gateway) -> None:
    """As after the restart of a container."""
    libc = ctypes.CDLL(None, use_errno=True)
    port = free_port()
    url = f"tcp://0.0.0.0:{port}"

    def listen_elsewhere() -> None:
        if libc.unshare(CLONE_NEWNET) == 0:
            made.append(listen(url))

    made: list[socket.socket] = []
    thread = Thread(target=listen_elsewhere)
    thread.start()
    join(thread)
    require(bool(made), "this user may not create a network namespace")
    with gateway.client() as client:
        (fd,) = gateway.holder.descriptors.values()
        holder = Holder()
        inherited = [("connection", 5, os.dup(fd)), ("listener", 0, made[0].detach())]
        holder.descriptors.update((number, each) for _, number, each in inherited)
        after = ZmtpServer(gateway.loop, url, lambda *_: None, lambda _: None, 16, holder, inherited)
        try:
            assert holder.calls == ["listener dropped", "connection dropped", "listener made"]
            socket.create_connection(("127.0.0.1", port)).close()
            client.wait_lost()
        finally:
            after.close()


def test_a_listener_of_this_network_namespace_is_continued(gateway: Gateway) -> None:
    with listen("tcp://127.0.0.1:0") as listener:
        fd = os.dup(listener.fileno())
        after = ZmtpServer(
            gateway.loop, url_of(listener), lambda *_: None, lambda _: None, 16, Holder(), [("listener", 0, fd)]
        )
        try:
            assert after._listener.fileno() == fd
        finally:
            after.close()


def test_sockets_without_a_next_data_plane_are_closed(gateway: Gateway) -> None:
    with gateway.client() as client:
        (fd,) = gateway.holder.descriptors.values()
        holder = Holder()
        holder.descriptors = {1: os.dup(fd), 0: os.open("/dev/null", os.O_RDONLY)}
        release([("connection", 1, holder.descriptors[1]), ("listener", 0, holder.descriptors[0])], holder)
        assert not holder.descriptors
        client.wait_lost()


class TestPeersThatDisconnect:
    """The kernel tells once that there is an end, however much came before it."""

    def connect(self, gateway: Gateway, receives_bytes: int = 1 << 17) -> socket.socket:
        _, _, port = gateway.server.url.rpartition(":")
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives_bytes)
        peer.connect(("127.0.0.1", int(port)))
        peer.sendall(GREETING + ready())
        gateway.until(lambda: gateway.holder.descriptors, "it is there")
        return peer

    @pytest.mark.parametrize(
        "last",
        [b"", b"\x00\x05a", b"\x04\x05\x04PONG", b"\x02" + (300_000).to_bytes(8, "big") + bytes(200_000)],
        ids=["nothing", "part of a message", "what has no answer", "part of a long one"],
    )
    def test_connections_are_forgotten_after_any_last_message(self, gateway: Gateway, last: bytes) -> None:
        with self.connect(gateway) as peer:
            peer.sendall(last)
        gateway.until(lambda: not gateway.holder.descriptors, "it is released")
        gateway.until(lambda: not gateway.server.connections._by_fd, "it is forgotten")
        assert gateway.server.connections._taken_bytes == 0

    def test_a_peer_that_shuts_down_its_side_gets_its_answers_and_the_end(self, gateway: Gateway) -> None:
        with self.connect(gateway) as peer:
            peer.sendall(message([b"\x01", b"\x18"]) * 5000)
            peer.shutdown(socket.SHUT_WR)
            peer.setblocking(False)
            heard = b""
            for _ in range(5000):
                gateway.turn()
                try:
                    piece = peer.recv(1 << 20)
                except BlockingIOError:
                    continue
                if not piece:
                    break
                heard += piece
            assert heard.count(b"\xa2OK") == 5000

    def test_half_an_answer_is_nothing_to_continue_with(self, gateway: Gateway) -> None:
        listener = gateway.server.connections._listener
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)  # its connections inherit it
        with self.connect(gateway, receives_bytes=1 << 12) as peer:  # few answers fit
            peer.setblocking(False)
            data = memoryview(message([b"\x01", b"\x18"]) * 100_000)
            while gateway.holder.descriptors:
                with suppress(BlockingIOError):
                    data = data[peer.send(data[: 1 << 16]) :]
                gateway.turn()
            with suppress(BlockingIOError):
                while True:
                    peer.recv(1 << 20)
                    gateway.turn()
            gateway.until(lambda: gateway.holder.descriptors or not _drained(peer), "it takes its answers again")
            while not gateway.holder.descriptors:
                _drained(peer)
                gateway.turn()


def _drained(peer: socket.socket) -> bool:
    with suppress(BlockingIOError):
        while peer.recv(1 << 20):
            pass
    return True


def test_leases_of_all_clients_are_bounded(gateway: Gateway, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.gateways.lmcache.zmtp.connections.MAX_TAKEN_BYTES", 5_000_000)
    _, _, port = gateway.server.url.rpartition(":")
    peers = [socket.create_connection(("127.0.0.1", int(port))) for _ in range(4)]
    data = GREETING + ready() + b"\x02" + (60 << 20).to_bytes(8, "big") + bytes(2_000_000)
    for peer in peers:
        peer.setblocking(False)
        left = memoryview(data)
        for _ in range(300):
            with suppress(BlockingIOError, ConnectionError):
                left = left[peer.send(left) :]
            gateway.turn()
            if not left:
                break
        for _ in range(20):
            gateway.turn()
    connections = gateway.server.connections
    assert 2_000_000 < connections._taken_bytes <= 5_000_000
    assert len(connections._by_fd) == 3  # two that wait, and the client
    assert client.ask("noop") == "OK"
    for peer in peers:
        peer.close()
    gateway.until(lambda: not connections._taken_bytes, "what they held is given back")


def test_an_unfinished_message_is_given_up(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.gateways.lmcache.zmtp.connections.MESSAGE_S", -1.0)
    _, _, port = gateway.server.url.rpartition(":")
    with socket.create_connection(("127.0.0.1", int(port))) as peer:
        peer.sendall(GREETING + ready() + b"\x02" + (300_000).to_bytes(8, "big") + bytes(200_000))
        gateway.until(lambda: gateway.server.connections._taken_bytes, "it is taken out of the kernel")
        gateway.server.tick()
        assert not gateway.server.connections._by_fd


def test_the_loop_is_notified_once_of_remaining_work(
    gateway: Gateway, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each turn would make the next ones longer, and others of the process wait ever longer."""
    monkeypatch.setattr("dataplane.gateways.lmcache.zmtp.connections.TURN_S", 0.0)
    usual = len(gateway.loop._timers)
    for at in range(300):
        client.send([packed(at), b"\x18"])
    heard = 0
    while heard < 300:
        gateway.turn()
        assert len(gateway.loop._timers) <= usual + 1
        while client.socket.poll(0):
            client.socket.recv_multipart()
            heard += 1


def test_look_ups_continue_however_often_the_node_is_started_again(make_gateway: Callable[..., Gateway]) -> None:
    """Each start leaves the schedulers of before behind: they do not take the places of those that are there."""
    gateway = make_gateway(max_clients=8)
    with gateway.client() as worker:
        worker.register()
        worker.store(prompt(1))
    for turn in range(5):
        clients = [gateway.client() for _ in range(4)]
        for at, client in enumerate(clients):
            assert client.lookup(prompt(1), f"{turn}.{at}") == 1
        url = gateway.stop()
        for client in clients:
            client.close()
        gateway.begin(url)
        gateway.pass_time(20)
    assert gateway.leased() == 0


# ---- ZMTP


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

"""Connections that close at odd moments leave nothing behind."""

from __future__ import annotations

from threading import Thread

import pytest
import zmq

from tests.lmcache.client import Client, context, lookup_key, packed, prompt
from tests.lmcache.gateway import Gateway


def said_and_closed(gateway: Gateway, *messages: list[bytes]) -> None:
    """A client that closes with its last word."""
    own: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = own.socket(zmq.DEALER)
    socket.linger = 5000
    socket.connect(gateway.server.url)
    for message in messages:
        socket.send_multipart(message)
    socket.close()
    ending = Thread(target=own.term)  # ends when everything is sent
    ending.start()
    while ending.is_alive():
        gateway.turn()


def schedulers(gateway: Gateway) -> int:
    groups = [engine.group for engine in gateway.bench.node.engines.values()]
    return sum(group.startswith("lmcache:scheduler:") for group in groups)


def test_a_look_up_of_a_client_that_is_gone_holds_nothing(client: Client, gateway: Gateway) -> None:
    client.register()
    client.store(prompt(2))
    asked = gateway.server.counters.of("lookup")
    for at in range(20):
        said_and_closed(gateway, [b"\x01", b"\x08", packed(lookup_key(prompt(2), f"r{at}")), b"\x01"])
    gateway.until(lambda: asked.requests == 20, "what they said is read")
    gateway.until(lambda: len(gateway.server.connections) == 1, "they are forgotten")
    assert (gateway.leased(), len(gateway.server.sessions), schedulers(gateway)) == (0, 0, 0)


def test_a_registration_of_a_client_that_is_gone_is_away_or_never_was(gateway: Gateway) -> None:
    asked = gateway.server.counters.of("register_kv_cache_engine_driven_context")
    for at in range(10):
        said_and_closed(gateway, [b"\x01", b"\x0e", packed(context(at))])
    gateway.until(lambda: asked.requests == 10, "what they said is read")
    gateway.until(lambda: len(gateway.server.connections) == 0, "they are forgotten")
    assert not any(instance.attached for instance in gateway.server.instances)


def test_connections_that_say_nothing_are_not_remembered(client: Client, gateway: Gateway) -> None:
    for _ in range(20):
        said_and_closed(gateway)
    assert client.ask("noop") == "OK"
    assert len(gateway.server.connections) == 1


def test_many_clients_come_and_go(gateway: Gateway) -> None:
    with gateway.client() as worker:
        worker.register()
        worker.store(prompt(1))
        for at in range(60):
            with gateway.client() as client:
                assert client.lookup(prompt(1), f"r{at}") == 1
    gateway.until(lambda: len(gateway.server.connections) == 0, "they are forgotten")
    gateway.until(lambda: gateway.leased() == 0, "what they held is let go")
    assert schedulers(gateway) == 0


def test_connections_beyond_those_that_are_remembered_are_served_in_a_common_name(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataplane.transport.lmcache.connections.MAX_CONNECTIONS", 2)
    clients = [gateway.client() for _ in range(5)]
    clients[0].register()
    clients[4].register(8)
    assert clients[4].store(prompt(1), instance=8) is True
    for _ in range(3):
        assert [client.lookup(prompt(1), f"r{at}") for at, client in enumerate(clients)] == 5 * [1]
    assert (len(gateway.server.connections), schedulers(gateway), gateway.leased()) == (2, 2, 5)
    for at, client in enumerate(clients):
        client.ask("end_session", f"r{at}")
    assert gateway.leased() == 0

"""Records of requests of LMCache's clients: what each got, and why its first missing chunk was missing."""

from __future__ import annotations

from dataplane.gateways.lmcache.wire.tokens import CHUNK_TOKENS
from dataplane.protocol.control.requests import RequestRecord
from tests.lmcache.client import Client, prompt
from tests.lmcache.gateway import Gateway


def record(gateway: Gateway, request: str = "r") -> RequestRecord | None:
    records = gateway.bench.node.requests.find(request)
    return records[0] if records else None


def test_a_request_that_finds_nothing_is_recorded_with_the_reason(client: Client, gateway: Gateway) -> None:
    client.register()
    assert client.lookup(prompt(2)) == 0
    kept = record(gateway)
    assert kept is not None
    assert (kept.prompt_tokens, kept.loaded_tokens, kept.missed_tokens, kept.reason) == (
        2 * CHUNK_TOKENS,
        {},
        2 * CHUNK_TOKENS,
        "never_stored",
    )
    tenant = gateway.bench.node.pool.tenants.get("")
    assert tenant.missed_tokens == {"never_stored": 2 * CHUNK_TOKENS}


def test_a_request_that_reads_its_hits_is_recorded_when_it_ends(client: Client, gateway: Gateway) -> None:
    client.register()
    client.store(prompt(2))
    assert client.lookup(prompt(3)) == 2
    client.prepare_retrieve(prompt(2))
    assert client.commit_retrieve(prompt(2))
    client.ask("end_session", "r")
    kept = record(gateway)
    assert kept is not None
    assert (kept.loaded_tokens, kept.missed_tokens, kept.reason) == (
        {"host": 2 * CHUNK_TOKENS},
        CHUNK_TOKENS,
        "never_stored",
    )


def test_a_request_that_reads_no_hits_is_not_recorded(client: Client, gateway: Gateway) -> None:
    client.register()
    client.store(prompt(2))
    assert client.lookup(prompt(3)) == 2
    client.ask("end_session", "r")
    assert record(gateway) is None


def test_an_invalidated_chunk_is_the_reason(client: Client, gateway: Gateway) -> None:
    client.register()
    client.store(prompt(2))
    client.ask("clear", True)
    assert client.lookup(prompt(2)) == 0
    kept = record(gateway)
    assert kept is not None
    assert kept.reason == "invalidated"

"""Records of requests of LMCache's clients: what each got, and why its first missing chunk was missing."""

from __future__ import annotations

from typing import Any

from dataplane.gateways.lmcache.wire.tokens import CHUNK_TOKENS
from dataplane.protocol.control.requests import RequestRecord
from tests.lmcache.client import Client, lookup_key, prompt
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


def test_chunks_before_the_first_one_that_workers_read_are_those_of_the_engine(
    client: Client, gateway: Gateway
) -> None:
    client.register()
    client.store(prompt(4))
    assert client.lookup(prompt(4)) == 4
    client.ask("free_lookup_locks", lookup_key(prompt(4), end=3 * CHUNK_TOKENS), 1)
    client.prepare_retrieve(prompt(4), start=3 * CHUNK_TOKENS)
    assert client.commit_retrieve(prompt(4), start=3 * CHUNK_TOKENS)
    kept = record(gateway)
    assert kept is not None
    assert (kept.engine_tokens, kept.loaded_tokens, kept.missed_tokens) == (3 * CHUNK_TOKENS, {"host": CHUNK_TOKENS}, 0)


def test_chunks_that_workers_read_in_parts_are_all_loaded(client: Client, gateway: Gateway) -> None:
    client.register()
    client.store(prompt(4))
    assert client.lookup(prompt(4)) == 4
    for start in (2, 1):
        part: dict[str, Any] = {"start": start * CHUNK_TOKENS, "end": (start + 1) * CHUNK_TOKENS}
        client.prepare_retrieve(prompt(4), **part)
        assert client.commit_retrieve(prompt(4), **part)
    client.ask("end_session", "r")
    kept = record(gateway)
    assert kept is not None
    assert (kept.engine_tokens, kept.loaded_tokens) == (CHUNK_TOKENS, {"host": 2 * CHUNK_TOKENS})


def test_a_prompt_has_no_more_tokens_than_its_look_up_sent(client: Client, gateway: Gateway) -> None:
    client.register()
    tokens = prompt(2)
    assert client.lookup(tokens, end=(1 << 64) - 1) == 0
    kept = record(gateway)
    assert kept is not None
    assert kept.prompt_tokens == len(tokens)

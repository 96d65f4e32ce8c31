"""LMCache clients find chunks that lie in a tier: a look-up is pending until they are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.plane import Plane, wait_for
from tests.lmcache.client import NOTHING, Client, lookup_key, prompt
from tests.lmcache.planes import Segment, check, gateway_plane, gateway_stats, mapped, store, url_of

CHUNKS = 4


@pytest.fixture
def plane(socket_dir: Path, tmp_path: Path) -> Iterator[Plane]:
    settings = {"dataplane__disk_tier_directories": str(tmp_path / "tier"), "dataplane__disk_tier_bytes": "256MiB"}
    with gateway_plane(socket_dir, **settings) as running:
        yield running


@pytest.fixture
def client(plane: Plane) -> Iterator[Client]:
    with Client(url_of(plane)) as client:
        yield client


def begin(client: Client, tokens: list[int], request: str, **fields: Any) -> None:
    assert client.ask("lookup", lookup_key(tokens, request, **fields), 1) is NOTHING


def result(client: Client, request: str) -> int:
    """Return the result of a look-up, which is null while it is pending."""
    found: list[int | None] = [None]

    def known() -> bool:
        found[0] = client.ask("query_prefetch_status", request)
        return found[0] is not None

    wait_for(known, "the look-up ends")
    assert found[0] is not None
    return found[0]


def looked_up(client: Client, tokens: list[int], request: str) -> int:
    begin(client, tokens, request)
    return result(client, request)


def push_out(plane: Plane, client: Client, segment: Segment, tokens: list[int]) -> None:
    """Store other prompts until the first chunks of a prompt are not in memory any more."""
    spilled = plane.describe().tiers[0]
    wait_for(lambda: plane.describe().tiers[0].blocks >= CHUNKS, "the chunks are on disk")
    assert spilled.refused == {}
    evicted = plane.describe().totals.evicted_blocks
    number = 100
    while plane.describe().totals.evicted_blocks < evicted + CHUNKS:
        assert store(client, segment, prompt(CHUNKS, number), number, f"filler-{number}")
        client.ask("end_session", f"filler-{number}")
        number += 1
        assert number < 2000


def test_chunks_on_disk_are_hits_and_have_their_bytes(plane: Plane, client: Client) -> None:
    tokens = prompt(CHUNKS, 1)
    with mapped(client.register()) as segment:
        assert store(client, segment, tokens, 1, "first")
        push_out(plane, client, segment, tokens)
        before = gateway_stats(plane)
        assert looked_up(client, tokens, "r") == CHUNKS
        assert check(client, segment, tokens, 1, "r")
        client.ask("end_session", "r")
        after = gateway_stats(plane)
    assert plane.describe().tiers[0].loaded_blocks == CHUNKS
    assert after.hit_chunks - before.hit_chunks == CHUNKS
    assert after.tier_hit_chunks - before.tier_hit_chunks == CHUNKS


def test_a_client_may_wait_for_the_result(plane: Plane, client: Client) -> None:
    tokens = prompt(CHUNKS, 1)
    with mapped(client.register()) as segment:
        assert store(client, segment, tokens, 1, "first")
        push_out(plane, client, segment, tokens)
        begin(client, tokens, "r")
        assert client.ask("wait_prefetch_status", "r", 60.0) == CHUNKS
        assert client.ask("wait_prefetch_status", "r", 60.0) == 0, "a result is fetched once"
        assert check(client, segment, tokens, 1, "r")
        client.ask("end_session", "r")


def test_concurrent_stores_of_another_client_are_found(plane: Plane, client: Client) -> None:
    tokens = prompt(CHUNKS, 1)
    with mapped(client.register()) as segment:
        assert store(client, segment, tokens, 1, "first")
        push_out(plane, client, segment, tokens)
        begin(client, tokens, "a")
        begin(client, tokens, "b")
        assert [result(client, "a"), result(client, "b")] == [CHUNKS, CHUNKS]
        client.ask("end_session", "a")
        client.ask("end_session", "b")
    stats = plane.describe()
    assert stats.tiers[0].loaded_blocks == CHUNKS, "one load for each key"
    assert sum(engine.leased_blocks for engine in stats.engines) == 0


def test_a_client_that_leaves_while_its_look_up_waits_keeps_nothing(plane: Plane, client: Client) -> None:
    tokens = prompt(CHUNKS, 1)
    with mapped(client.register()) as segment:
        assert store(client, segment, tokens, 1, "first")
        push_out(plane, client, segment, tokens)
        with Client(url_of(plane)) as other:
            begin(other, tokens, "r")
        plane.wait_stats(lambda stats: sum(engine.leased_blocks for engine in stats.engines) == 0, "no lease is left")
        assert looked_up(client, tokens, "again") == CHUNKS
        client.ask("end_session", "again")


def test_chunks_that_no_tier_holds_are_a_miss_at_once(plane: Plane, client: Client) -> None:
    with mapped(client.register()):
        begin(client, prompt(CHUNKS, 9), "r")
        assert client.status("r") == 0

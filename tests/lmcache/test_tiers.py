"""LMCache clients find chunks that lie in a tier: a look-up is pending until they are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.plane import Plane, wait_for
from tests.lmcache.client import NOTHING, Client, lookup_key, prompt
from tests.lmcache.planes import Segment, check, gateway_plane, gateway_stats, leased, mapped, store, url_of
from tests.run_marks import short_folder

CHUNKS = 4
_names = count(1)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A data plane whose memory holds 256 chunks, and whose tier holds more."""
    tier: Path = tmp_path_factory.mktemp("tier")
    settings = {"dataplane__disk_tier_directories": str(tier), "dataplane__disk_tier_bytes": "256MiB"}
    with short_folder() as folder, gateway_plane(folder, pool_bytes="4MiB", **settings) as running:
        yield running


@pytest.fixture
def client(plane: Plane) -> Iterator[Client]:
    with Client(url_of(plane)) as client:
        yield client


@pytest.fixture
def segment(client: Client) -> Iterator[Segment]:
    with mapped(client.register()) as segment:
        yield segment


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


def spilled(plane: Plane, client: Client, segment: Segment) -> tuple[list[int], int]:
    """Store a prompt, and others until memory holds no chunk of it any more. Return its tokens and its name."""
    first = next(_names)
    before = plane.describe()
    assert store(client, segment, prompt(CHUNKS, first), first, f"first-{first}")
    plane.wait_stats(lambda stats: not stats.tiers[0].waiting_blocks | stats.tiers[0].spilling_bytes, "it is on disk")
    for _ in range(4 << 20 >> 16):  # as much as memory holds
        name = next(_names)
        assert store(client, segment, prompt(CHUNKS, name), name, f"filler-{name}")
        client.ask("end_session", f"filler-{name}")
    after = plane.describe()
    assert after.totals.evicted_blocks >= before.totals.evicted_blocks + CHUNKS
    assert after.tiers[0].blocks >= before.tiers[0].blocks + CHUNKS
    assert after.tiers[0].refused == {}
    return prompt(CHUNKS, first), first


def test_chunks_on_disk_are_hits_and_have_their_bytes(plane: Plane, client: Client, segment: Segment) -> None:
    tokens, name = spilled(plane, client, segment)
    before, loaded = gateway_stats(plane), plane.describe().tiers[0].loaded_blocks
    begin(client, tokens, "r")
    assert result(client, "r") == CHUNKS
    assert check(client, segment, tokens, name, "r")
    client.ask("end_session", "r")
    after = gateway_stats(plane)
    assert plane.describe().tiers[0].loaded_blocks == loaded + CHUNKS
    assert after.hit_chunks - before.hit_chunks == CHUNKS
    assert after.tier_hit_chunks - before.tier_hit_chunks == CHUNKS


def test_a_client_may_wait_for_the_result(plane: Plane, client: Client, segment: Segment) -> None:
    tokens, name = spilled(plane, client, segment)
    begin(client, tokens, "r")
    assert client.ask("wait_prefetch_status", "r", 60.0) == CHUNKS
    assert client.ask("wait_prefetch_status", "r", 60.0) == 0, "a result is fetched once"
    assert check(client, segment, tokens, name, "r")
    client.ask("end_session", "r")


def test_concurrent_look_ups_of_one_prompt_load_it_once(plane: Plane, client: Client, segment: Segment) -> None:
    tokens, _ = spilled(plane, client, segment)
    loaded = plane.describe().tiers[0].loaded_blocks
    begin(client, tokens, "a")
    begin(client, tokens, "b")
    assert [result(client, "a"), result(client, "b")] == [CHUNKS, CHUNKS]
    client.ask("end_session", "a")
    client.ask("end_session", "b")
    stats = plane.describe()
    assert stats.tiers[0].loaded_blocks == loaded + CHUNKS, "one load for each key"
    assert leased(stats) == 0


def test_a_client_that_leaves_while_its_look_up_waits_keeps_nothing(
    plane: Plane, client: Client, segment: Segment
) -> None:
    tokens, _ = spilled(plane, client, segment)
    with Client(url_of(plane)) as other:
        begin(other, tokens, "r")
    plane.wait_stats(lambda stats: leased(stats) == 0, "no lease is left")
    begin(client, tokens, "again")
    assert result(client, "again") == CHUNKS
    client.ask("end_session", "again")


def test_chunks_that_no_tier_holds_are_a_miss_at_once(client: Client, segment: Segment) -> None:
    begin(client, prompt(CHUNKS, next(_names)), "r")
    assert client.status("r") == 0

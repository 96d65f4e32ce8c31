"""The tier directory: what is listed is found, what is removed is not, and memory that is no directory is refused."""

from __future__ import annotations

import random
from math import inf

import numpy as np
import pytest

from dataplane.protocol.layout import LayoutError, pack_keys
from dataplane.protocol.tier_directory import (
    HEADER_WORDS,
    MAX_TIERS,
    TierDirectory,
    buckets_for,
    directory_bytes,
    space_word,
)
from tests.dataplane import factories as make

SPACE, OTHER = space_word(make.space("a").identity()), space_word(make.space("b").identity())


def directory(blocks: int = 4096) -> TierDirectory:
    buckets = buckets_for(blocks)
    return TierDirectory.make(memoryview(bytearray(directory_bytes(buckets))), buckets)


def sizes(count: int, nbytes: int = 4096) -> np.ndarray:
    return np.full(count, nbytes, np.uint64)


def serve(found: TierDirectory, *tiers: int, bytes_per_s: int = 1 << 20) -> None:
    for tier in tiers:
        found.publish(tier, waiting_bytes=0, bytes_per_s=bytes_per_s, latency_us=0, serves=True)


def clear(found: TierDirectory, tier: int) -> None:
    part = 0
    while found.clear_part(tier, part):
        part += 1


def test_listed_blocks_are_found_in_their_space_only() -> None:
    found, words = directory(), pack_keys(make.keys(100))
    found.add(words, SPACE, 3, sizes(100))
    assert found.find(words, SPACE).tiers.tolist() == [8] * 100
    assert found.find(words, SPACE).nbytes.tolist() == [4096] * 100
    assert not found.find(words, OTHER).tiers.any()
    assert not found.find(pack_keys(make.keys(100, "other")), SPACE).tiers.any()


def test_a_block_may_be_in_several_tiers() -> None:
    found, words = directory(), pack_keys(make.keys(10))
    for tier in (0, 7):
        found.add(words, SPACE, tier, sizes(10))
    assert found.find(words, SPACE).tiers.tolist() == [0x81] * 10
    found.remove(words, SPACE, 0)
    assert found.find(words, SPACE).tiers.tolist() == [0x80] * 10
    clear(found, 7)
    assert not found.find(words, SPACE).tiers.any()
    assert found.header[2] == 0


def test_a_chain_ends_where_no_tier_in_service_holds_a_block() -> None:
    found, words = directory(), pack_keys(make.keys(10))
    found.add(words[:6], SPACE, 0, sizes(6))
    found.add(words[6:], SPACE, 1, sizes(4))
    assert len(found.leading(words, SPACE).tiers) == 0
    serve(found, 0)
    assert len(found.leading(words, SPACE).tiers) == 6
    serve(found, 1)
    assert len(found.leading(words, SPACE).tiers) == 10


def test_the_estimate_covers_waiting_and_requested_bytes() -> None:
    found, words = directory(), pack_keys(make.keys(8))
    found.add(words, SPACE, 0, sizes(8, 1 << 20))
    serve(found, 0, bytes_per_s=4 << 20)
    found_hits = found.leading(words, SPACE)
    assert found.estimate_s(found_hits) == 2.0
    found.publish(0, waiting_bytes=4 << 20, bytes_per_s=4 << 20, latency_us=500_000, serves=True)
    assert found.estimate_s(found_hits) == 3.5
    found.publish(0, waiting_bytes=0, bytes_per_s=0, latency_us=0, serves=True)
    assert found.estimate_s(found_hits) == inf


def test_it_agrees_with_a_dictionary() -> None:
    chance, found = random.Random(3), directory(2000)
    keys = make.keys(1500)
    tiers: dict[int, int] = {}
    for _ in range(6000):
        at, tier = chance.randrange(1500), chance.randrange(MAX_TIERS)
        word = pack_keys([keys[at]])
        if chance.random() < 0.6:
            found.add(word, SPACE, tier, sizes(1, at + 1))
            tiers[at] = tiers.get(at, 0) | 1 << tier
        else:
            found.remove(word, SPACE, tier)
            tiers[at] = tiers.get(at, 0) & ~(1 << tier)
    entries = found.find(pack_keys(keys), SPACE)
    assert entries.tiers.tolist() == [tiers.get(at, 0) for at in range(1500)]
    assert found.header[3] == 0, "none was left out"
    assert found.header[2] == sum(mask != 0 for mask in tiers.values())


def test_blocks_without_room_are_counted_and_missing() -> None:
    found = directory(1)
    words = pack_keys(make.keys(2000))
    found.add(words, SPACE, 0, sizes(2000))
    listed = int((found.find(words, SPACE).tiers != 0).sum())
    assert listed + int(found.header[3]) == 2000
    assert int(found.header[2]) == listed


@pytest.mark.parametrize("fault", ["magic", "buckets", "size"])
def test_memory_that_is_not_a_directory_is_refused(fault: str) -> None:
    memory = bytearray(directory_bytes(64))
    TierDirectory.make(memoryview(memory), 64)
    cells = np.frombuffer(memory, np.uint64)
    if fault == "magic":
        cells[0] = 1
    elif fault == "buckets":
        cells[1] = 63
    else:
        cells[1] = 128
    with pytest.raises(LayoutError):
        TierDirectory(memoryview(memory))
    with pytest.raises(LayoutError):
        TierDirectory(memoryview(bytearray(8 * (HEADER_WORDS - 1))))


def test_blocks_that_do_not_fit_are_counted() -> None:
    found, words = directory(64), pack_keys(make.keys(1000))
    found.add(words, SPACE, 0, sizes(1000))
    listed = int(np.count_nonzero(found.find(words, SPACE).tiers))
    assert 0 < found.listed() == listed < 1000
    assert found.unlisted() == 1000 - listed
    clear(found, 0)
    assert (found.listed(), found.unlisted()) == (0, 1000 - listed), "it counts since the start"

"""The bucketed index: what was put in is found, under its key and space alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from dataplane.core.blocks.lookup_leases import LookupLease, SpaceLock
from dataplane.protocol.codes import Code
from dataplane.protocol.layout import (
    BUCKET_ENTRIES,
    AreaMemory,
    IndexMemory,
    LayoutError,
    area_bytes,
    bucket_count,
    index_bytes,
    pack_keys,
)
from tests.core.tenancy import bench_of
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench

PAGE = 4096


def forged(first: int, second: int, tag: int, rest: int) -> bytes:
    """A key that falls into chosen buckets with a chosen tag (spaces mix all keys in the same way)."""
    return b"".join(word.to_bytes(8, "little") for word in (first, second, tag, rest))


def test_thousands_of_keys_are_found_and_after_their_eviction_are_not() -> None:
    _, engine = bench_of(4096, max_blocks=4096)
    chains = [make.keys(64, number) for number in range(64)]
    for chain in chains:
        assert engine.store(chain, PAGE).written == 64
    assert all(engine.lookup(chain) == 64 for chain in chains)
    assert engine.lookup(make.keys(64, "absent")) == 0
    fresh = [make.keys(64, f"fresh-{number}") for number in range(32)]
    for chain in fresh:
        assert engine.store(chain, PAGE).written == 64
    assert [engine.lookup(chain) for chain in chains] == [0] * 32 + [64] * 32
    assert all(engine.lookup(chain) == 64 for chain in fresh)


def test_a_key_of_one_space_is_not_found_in_another() -> None:
    bench = Bench(4 * make.MIB)
    engine = bench.attach(make.space(dtype="bf16"), make.space(dtype="fp8"))
    chain = make.keys(4)
    engine.store(chain, PAGE, space=0)
    assert engine.lookup(chain, space=0) == 4
    assert engine.lookup(chain, space=1) == 0
    engine.store(chain, PAGE, space=1)
    assert bench.pool.blocks == 8


def test_keys_with_the_same_buckets_and_tag_are_distinguished_by_the_whole_key() -> None:
    bench, engine = bench_of(64)
    colliding = [forged(8, 9, 77, rest) for rest in range(6)]
    for key in colliding:
        engine.store([key], PAGE)
    assert bench.pool.blocks == 6
    assert [engine.lookup([key]) for key in colliding] == [1] * 6
    assert engine.lookup([forged(8, 9, 77, 99)]) == 0


def test_a_tag_collision_beside_an_absent_key_hides_nothing() -> None:
    """As many tag matches as keys: one key has two, the other none."""
    _, engine = bench_of(64)
    colliding = [forged(8, 9, 77, rest) for rest in range(2)]
    for key in colliding:
        engine.store([key], PAGE)
    for key in colliding:
        assert engine.has([key, make.key("absent")]) == [True, False]
        assert engine.has([make.key("absent"), key]) == [False, True]


def test_a_block_is_never_stored_twice_because_of_tag_collisions() -> None:
    _, engine = bench_of(64)
    colliding = [forged(8, 9, 77, rest) for rest in range(2)]
    for key in colliding:
        engine.store([key], PAGE)
    for at, key in enumerate(colliding):
        stored = engine.store([key, make.key(("absent", at))], PAGE)
        assert stored.outcomes == {"PRESENT": 1, "WRITE": 1}


def test_when_both_buckets_are_full_an_unleased_entry_of_them_goes() -> None:
    _, engine = bench_of(64)
    crowd = [forged(8, 9, number, number) for number in range(2 * BUCKET_ENTRIES)]
    for each in crowd:
        engine.store([each], PAGE)
    assert engine.acquire(crowd[:1]) == 1
    assert engine.store([forged(8, 9, 1000, 1)], PAGE).written == 1
    found = engine.has(crowd)
    assert found[0], "the leased one stays"
    assert found.count(False) == 1


def test_a_store_is_refused_when_both_buckets_are_full_of_leased_blocks() -> None:
    bench, engine = bench_of(64)
    crowd = [forged(8, 9, number, number) for number in range(2 * BUCKET_ENTRIES)]
    for each in crowd:
        engine.store([each], PAGE)
        engine.acquire([each])
    stored = engine.store([forged(8, 9, 1000, 1), make.key("elsewhere")], PAGE)
    assert stored.refused == {Code.INDEX_FULL}
    assert bench.refused()["index_full"] == 2, "the rest of the chain is of no use without its head"
    assert bench.faults() == []
    engine.release()
    assert engine.store([forged(8, 9, 1000, 1)], PAGE).written == 1


def test_look_ups_give_up_the_leases_that_fill_both_buckets_and_no_others() -> None:
    bench, engine = bench_of(64)
    scheduler = bench.attach()
    pool = bench.node.pool
    crowd = [forged(8, 9, number, number) for number in range(2 * BUCKET_ENTRIES)]
    lookups = []
    for key in (make.key("elsewhere"), *crowd):
        engine.store([key], PAGE)
        assert scheduler.acquire([key]) == 1
        held = scheduler._leased[-1]
        lookups.append(LookupLease(scheduler.client, {scheduler.spaces[0]: SpaceLock([held], [1])}))
        pool.lookups.add(lookups[-1])
    assert engine.store([forged(8, 9, 1000, 1)], PAGE).written == 1
    assert [lookup.taken_back for lookup in lookups] == [False, True] + [False] * (len(crowd) - 1)
    assert engine.has([make.key("elsewhere"), *crowd[:2]]) == [True, False, True]
    assert "index_full" not in bench.refused()
    assert bench.faults() == []


def test_random_inserts_and_removals_keep_the_index_right() -> None:
    rng = random.Random(3)
    bench, engine = bench_of(256, max_blocks=256)
    names = [make.key(number) for number in range(600)]
    for _ in range(2000):
        engine.store([rng.choice(names)], PAGE)
    found = sum(engine.has(names))
    assert found == bench.pool.blocks == 256


def test_no_descriptor_left_is_a_refusal_that_ends_with_the_leases() -> None:
    _, engine = bench_of(1024, max_blocks=64)
    chain = make.keys(64)
    engine.store(chain, PAGE)
    engine.acquire(chain)
    assert engine.store(make.keys(1, "more"), PAGE).refused == {Code.NO_DESCRIPTOR}
    engine.release()
    assert engine.store(make.keys(1, "more"), PAGE).written == 1


def test_an_index_is_at_most_half_full() -> None:
    for blocks in (1, 2, 63, 64, 65, 1000, 4096, 1 << 20):
        buckets = bucket_count(blocks)
        assert buckets & (buckets - 1) == 0
        assert 2 * blocks <= buckets * BUCKET_ENTRIES


def test_memory_of_another_kind_or_version_is_not_taken() -> None:
    size = index_bytes(64)
    memory = bytearray(size)
    with pytest.raises(LayoutError, match="not index memory"):
        IndexMemory.attach(memory)
    IndexMemory(memory, 64).format(1, 1)
    assert IndexMemory.attach(memory).max_blocks == 64
    for word in (1, 3, 4):  # version, max_blocks, buckets
        broken = bytearray(memory)
        np.frombuffer(broken, np.uint64)[word] = 1 << 40
        with pytest.raises(LayoutError):
            IndexMemory.attach(broken)
    with pytest.raises(LayoutError):
        IndexMemory.attach(memory[: size // 2])
    with pytest.raises(LayoutError):
        AreaMemory.attach(bytearray(area_bytes(64, 16)))


def test_packed_keys_accept_lists_bytes_and_words_and_nothing_else() -> None:
    chain = make.keys(3)
    words = pack_keys(chain)
    assert words.shape == (3, 4)
    assert (pack_keys(make.packed(chain)) == words).all()
    assert pack_keys(words) is words
    assert pack_keys([]).shape == (0, 4)
    wrongs: list[Any] = [[b"short"], b"x" * 33, np.zeros((2, 3), np.uint64), np.zeros((2, 4), np.int64)]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="expected"):
            pack_keys(wrong)

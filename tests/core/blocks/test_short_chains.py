"""Short chains are found key by key, long ones by vectors: the answers are the same."""

from __future__ import annotations

import random

import pytest

from dataplane.core import inprocess
from dataplane.core.inprocess import LeasedChain
from dataplane.protocol.layout import H_INVALID_COUNT, pack_keys
from dataplane.protocol.short_chains import MAX_KEYS, leading_of
from tests.core.gateway import Peer, peer, space
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench

SLOT = 4 << 10
BLOCKS = 400


@pytest.fixture
def engine() -> Peer:
    return peer(Bench(BLOCKS * SLOT, named_bytes=BLOCKS * SLOT), space(), space(rank=1))


def by_vectors(engine: Peer, chain: list[bytes], monkeypatch: pytest.MonkeyPatch, number: int = 0) -> LeasedChain:
    with monkeypatch.context() as patch:
        patch.setattr(inprocess, "MAX_KEYS", -1)
        return engine.hold(chain, number=number)


def test_both_ways_find_and_hold_the_same(engine: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    stored = [make.keys(chance.randrange(1, MAX_KEYS + 4), f"chain {at}") for at in range(30)]
    for at, chain in enumerate(stored):
        engine.store(chain, SLOT, space=at % 2)
        engine.reserve(make.keys(2, f"writing {at}"), SLOT)
    chains = [chain[: chance.randrange(1, len(chain) + 1)] for chain in stored]
    chains += [[*chain[:3], make.key("missing"), *chain[3:]] for chain in stored]
    chains += [make.keys(2, f"writing {at}") for at in range(30)]
    for chain in chains:
        for number in (0, 1):
            short, long = engine.hold(chain, number=number), by_vectors(engine, chain, monkeypatch, number)
            assert short == long
            assert sorted(engine.core.held(engine.client)) == sorted(2 * short.descriptors)
            engine.release(short)
            with monkeypatch.context() as patch:
                patch.setattr(inprocess, "MAX_KEYS", -1)
                engine.release(long)
    assert engine.core.held(engine.client) == []


def test_both_ways_note_the_same_uses(engine: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = make.keys(5)
    engine.store(chain, SLOT)
    area = engine.bench.node.engines[engine.client].ring.area
    engine.hold(chain)
    by_vectors(engine, chain, monkeypatch)
    assert area.ring[:5].tolist() == area.ring[5:10].tolist()
    before = engine.bench.node.pool.totals.read_bytes
    core = engine.core
    for _ in range(3):
        core.use(engine.client, engine.hold(chain, used=False).descriptors, engine.bench.now)
    assert core.unsettled == 15
    core.settle(engine.bench.now)
    assert core.unsettled == 0
    assert engine.bench.node.pool.totals.read_bytes == before + 5 * 5 * SLOT


def test_invalidations_are_left_to_the_vectors(engine: Peer) -> None:
    chain = make.keys(3)
    engine.store(chain, SLOT)
    memory = engine.bench.node.pool.table.memory
    words = pack_keys(chain)
    found = leading_of(memory, words, engine.spaces[0])
    assert found is not None
    assert len(found.numbers) == 3
    memory.cells[H_INVALID_COUNT] = 1
    assert leading_of(memory, words, engine.spaces[0]) is None
    memory.cells[H_INVALID_COUNT] = 0

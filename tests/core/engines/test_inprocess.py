"""Engines that a gateway of this process attaches: what they do is what engines of the socket do."""

from __future__ import annotations

import random

import pytest

from dataplane.core import inprocess
from dataplane.core.inprocess import InProcess, LeasedChain
from dataplane.protocol.codes import Code, ReserveOutcome
from dataplane.protocol.engine import VERSION, Attach, SpaceRequest
from dataplane.protocol.layout import H_INVALID_COUNT, pack_keys
from dataplane.protocol.short_chains import MAX_KEYS, leading_of
from dataplane.protocol.spaces import LMCACHE, Space
from tests.core.gateway import Peer, peer, space
from tests.dataplane import factories as make
from tests.dataplane.bench_node import RING_ENTRIES, Bench, refused

SLOT = 64 << 10
BLOCKS = 32


def bench(blocks: int = BLOCKS) -> Bench:
    return Bench(blocks * SLOT, named_bytes=blocks * SLOT)


def test_leased_blocks_stay_until_released() -> None:
    made = bench()
    engine = peer(made, space())
    chain = make.keys(20)
    assert engine.store(chain, SLOT) == 20
    chain_held = engine.hold(chain)
    assert len(chain_held) == 20
    assert len(set(zip(chain_held.segments, chain_held.offsets, strict=True))) == 20
    assert engine.core.held(engine.client) == sorted(chain_held.descriptors)
    assert engine.store(make.keys(BLOCKS, "other"), SLOT) == BLOCKS - 20
    engine.release(chain_held)
    assert engine.store(make.keys(BLOCKS, "third"), SLOT) == BLOCKS
    assert engine.core.held(engine.client) == []
    assert made.node.stats(made.now).engines[0].leased_blocks == 0


def test_no_more_blocks_are_leased_than_requested() -> None:
    made = bench()
    engine = peer(made, space())
    chain = make.keys(6)
    engine.store(chain, SLOT)
    requested = [*chain, make.key("missing")]
    assert [len(engine.hold(requested, most=most)) for most in (None, 3, 0, -1)] == [6, 3, 0, 0]
    assert len(engine.core.held(engine.client)) == 9


def test_uses_and_look_ups_count_as_those_of_other_engines() -> None:
    made = bench()
    engine = peer(made, space())
    chain = make.keys(4)
    engine.store(chain, SLOT, tenant="a")
    engine.hold([*chain, *make.keys(2, "missing")])
    engine.core.looked_up("a", engine.spaces[0], 6, 4, made.now)
    made.pass_time(0.1)
    tenant = made.tenant("a")
    assert (tenant.requested_blocks, tenant.hit_blocks) == (6, 4)
    assert made.node.pool.totals.read_bytes == 4 * SLOT
    assert [block.hits for block in made.node.pool.table.blocks.values()] == [1] * 4
    assert [prefix.hits for prefix in made.hot_prefixes("hits", None, 5)] == [1]
    (usage,), _ = made.node.read_usage(0.0, 0, made.now)
    assert (usage.requested_tokens, usage.served_tokens) == (6 * 256, 4 * 256)
    assert made.node.stats(made.now).engines[0].ring_entries_rejected == 0


def test_leased_blocks_count_as_used_only_once_read() -> None:
    made = bench()
    engine = peer(made, space())
    chain = make.keys(4)
    engine.store(chain, SLOT)
    chain_held = engine.hold(chain, used=False)
    made.pass_time(0.1)
    assert made.node.pool.totals.read_bytes == 0
    engine.core.use(engine.client, chain_held.descriptors, made.now)
    made.pass_time(0.1)
    assert made.node.pool.totals.read_bytes == 4 * SLOT


def test_a_full_ring_is_drained_and_nothing_is_dropped() -> None:
    made = bench()
    engine = peer(made, space())
    chain = make.keys(BLOCKS)
    engine.store(chain, SLOT)
    rounds = 3 * RING_ENTRIES // BLOCKS + 1
    for _ in range(rounds):
        engine.release(engine.hold(chain))
    made.pass_time(0.1)
    assert made.node.pool.totals.read_bytes == rounds * BLOCKS * SLOT
    stats = made.node.stats(made.now).engines[0]
    assert (stats.ring_dropped, stats.ring_entries_rejected) == (0, 0)


def test_an_engine_without_spaces_holds_blocks_of_all_spaces_of_its_gateway() -> None:
    made = bench(2 * BLOCKS)
    scheduler = peer(made)
    worker, own = peer(made, space(rank=1)), made.attach(make.space())
    chain = make.keys(5)
    worker.store(chain, SLOT)
    own.store(chain, SLOT)
    chain_held = scheduler.hold(chain, number=worker.spaces[0])
    made.pass_time(0.1)
    assert len(chain_held) == 5
    assert made.node.pool.totals.read_bytes == 5 * SLOT
    for number in (own.spaces[0], 99):
        with refused(Code.UNKNOWN_SPACE):
            scheduler.hold(chain, number=number)


def test_a_lost_peer_publishes_nothing_and_its_bytes_wait_for_its_process() -> None:
    made = bench()
    engine = peer(made, space(), pid=7)
    granted = engine.reserve(make.keys(4), SLOT)
    assert granted.outcomes.tolist() == [ReserveOutcome.WRITE] * 4
    engine.detach()
    assert [each.client for each in engine.core.lost(LMCACHE)] == [engine.client]
    for ask in (
        lambda: engine.commit(granted.reservation),
        lambda: engine.abort(granted.reservation),
        lambda: engine.reserve(make.keys(4), SLOT),
        lambda: engine.hold(make.keys(4)),
    ):
        with refused(Code.NOT_ATTACHED):
            ask()
    assert made.node.pool.quarantined_bytes == 4 * SLOT
    engine.die()
    assert made.node.pool.used_bytes == 0
    assert made.node.engines == {}
    engine.die()
    engine.core.node.detach_cleanly(engine.client, made.now)
    engine.core.release(engine.client, [0])
    assert engine.core.held(engine.client) == []


def test_engines_of_the_socket_are_none_of_a_gateway() -> None:
    made = bench()
    own = made.attach(make.space())
    with refused(Code.NOT_ATTACHED):
        InProcess(made.node).hold(own.client, own.spaces[0], make.key(1))


@pytest.mark.parametrize("gateway", ["lmcache", "other"])
def test_engines_of_the_socket_cannot_attach_a_space_of_a_gateway(gateway: str) -> None:
    made = bench()
    engine = peer(made, space(), pid=100, group="g")
    engine.detach()
    foreign = Space(model=make.MODEL, world_size=2, gateway=gateway)
    for message in (
        Attach(1, VERSION, "mine", [SpaceRequest(make.space()), SpaceRequest(foreign)]),
        Attach(1, VERSION, "g", [SpaceRequest(foreign)], resume=engine.client),
    ):
        with refused(Code.BAD_SPACE, f"spaces[{len(message.spaces) - 1}].space.gateway"):
            made.node.attach(message, 100, made.now)


def test_engines_of_the_socket_cannot_continue_as_one_of_a_gateway() -> None:
    made = bench()
    engine = peer(made, pid=100, group="g")
    engine.detach()
    with refused(Code.BAD_SPACE, "spaces"):
        made.node.attach(Attach(1, VERSION, "g", [], resume=engine.client), 100, made.now)


def test_a_gateway_cannot_attach_a_space_of_the_socket() -> None:
    with refused(Code.BAD_SPACE, "spaces[0].space.gateway"):
        peer(bench(), make.space())


def test_spaces_with_and_without_a_gateway_never_meet() -> None:
    made = bench(2 * BLOCKS)
    own, engine = made.attach(Space(model=make.MODEL, world_size=2)), peer(made, space())
    chain = make.keys(3)
    own.store(chain, SLOT)
    assert len(engine.hold(chain)) == 0
    assert engine.store(chain, SLOT) == 3
    assert made.index.find(pack_keys(chain), own.spaces[0])[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("force", [False, True])
def test_a_gateway_clears_its_own_spaces_alone(force: bool) -> None:
    made = bench(3 * BLOCKS)
    own, engine = made.attach(make.space()), peer(made, space())
    chain, leased, writing = make.keys(3), make.keys(3, "leased"), make.keys(3, "writing")
    own.store(chain, SLOT)
    engine.store(chain, SLOT)
    engine.store(leased, SLOT)
    chain_held = engine.hold(leased)
    open_one = engine.reserve(writing, SLOT).reservation
    engine.core.node.clear_gateway(LMCACHE, made.now, force=force)
    assert len(engine.hold(chain)) == 0
    assert own.lookup(chain) == 3
    assert len(engine.hold(leased)) == (0 if force else 3)
    if force:
        with refused(Code.INVALIDATED):
            engine.commit(open_one)
    else:
        assert engine.commit(open_one) == 3
    made.pass_time(0.1)
    assert len(made.node.pool.table.blocks) == (6 if force else 9)
    engine.release(chain_held)
    made.pass_time(0.1)
    made.pass_time(0.1)
    assert made.faults() == []
    assert len(made.node.pool.table.blocks) == (3 if force else 9)


# ---- short chains are found key by key, long ones by vectors


PAGE = 4 << 10
CHAIN_BLOCKS = 400


@pytest.fixture
def engine() -> Peer:
    return peer(Bench(CHAIN_BLOCKS * PAGE, named_bytes=CHAIN_BLOCKS * PAGE), space(), space(rank=1))


def by_vectors(engine: Peer, chain: list[bytes], monkeypatch: pytest.MonkeyPatch, number: int = 0) -> LeasedChain:
    with monkeypatch.context() as patch:
        patch.setattr(inprocess, "MAX_KEYS", -1)
        return engine.hold(chain, number=number)


def test_both_ways_find_and_hold_the_same(engine: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    stored = [make.keys(chance.randrange(1, MAX_KEYS + 4), f"chain {at}") for at in range(30)]
    for at, chain in enumerate(stored):
        engine.store(chain, PAGE, space=at % 2)
        engine.reserve(make.keys(2, f"writing {at}"), PAGE)
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
    engine.store(chain, PAGE)
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
    assert engine.bench.node.pool.totals.read_bytes == before + 5 * 5 * PAGE


def test_invalidations_are_left_to_the_vectors(engine: Peer) -> None:
    chain = make.keys(3)
    engine.store(chain, PAGE)
    memory = engine.bench.node.pool.table.memory
    words = pack_keys(chain)
    found = leading_of(memory, words, engine.spaces[0])
    assert found is not None
    assert len(found.numbers) == 3
    memory.cells[H_INVALID_COUNT] = 1
    assert leading_of(memory, words, engine.spaces[0]) is None
    memory.cells[H_INVALID_COUNT] = 0

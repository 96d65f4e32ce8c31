"""Engines that a gateway of this process attaches: what they do is what engines of the socket do."""

from __future__ import annotations

import pytest

from dataplane.core.inprocess import Attachment, InProcess
from dataplane.protocol.codes import Code, Outcome, ProtocolError
from dataplane.protocol.engine import VERSION, Attach, SpaceRequest
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.spaces import LMCACHE, Space
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench

SLOT = 64 << 10
BLOCKS = 32


def space(model: str = make.MODEL, rank: int = 0) -> Space:
    return Space(model=model, rank=rank, world_size=2, gateway=LMCACHE)


def peer(bench: Bench, *spaces: Space, pid: int = 0) -> Attachment:
    return InProcess(bench.node, LMCACHE).attach(
        spaces or (space(),),
        group=f"lmcache:{len(bench.node.engines)}",
        name="worker",
        pid=pid,
        now=bench.now,
    )


def store(bench: Bench, engine: Attachment, chain: list[bytes], tenant: str = "") -> int:
    granted = engine.reserve(engine.spaces[0], tenant, make.packed(chain), SLOT, bench.now)
    return engine.commit(granted.reservation, bench.now) if granted.reservation else 0


def bench(blocks: int = BLOCKS) -> Bench:
    return Bench(blocks * SLOT)


def test_what_is_stored_is_held_until_it_is_let_go() -> None:
    made = bench()
    engine = peer(made)
    chain = make.keys(20)
    assert store(made, engine, chain) == 20
    held = engine.acquire(pack_keys(chain), engine.spaces[0])
    assert len(held) == 20
    assert held.sizes == [SLOT] * 20
    assert len(set(zip(held.segments, held.offsets, strict=True))) == 20
    assert store(made, engine, make.keys(BLOCKS, "other")) == BLOCKS - 20
    engine.release(held)
    engine.release(held)
    assert store(made, engine, make.keys(BLOCKS, "third")) == BLOCKS
    assert made.node.stats(made.now).engines[0].leased_blocks == 0
    assert made.faults() == []


def test_no_more_is_held_than_is_wanted() -> None:
    made = bench()
    engine = peer(made)
    chain = make.keys(6)
    store(made, engine, chain)
    words = pack_keys([*chain, make.key("missing")])
    number = engine.spaces[0]
    assert [len(engine.acquire(words, number, want)) for want in (None, 3, 0, -1)] == [6, 3, 0, 0]
    held = engine.acquire(words, number)
    engine.shorten(held, 2)
    assert len(held) == 2
    assert int(engine._area.counters.sum()) == 6 + 3 + 2


def test_uses_and_look_ups_count_as_those_of_other_engines() -> None:
    made = bench()
    engine = peer(made)
    chain = make.keys(4)
    store(made, engine, chain, "a")
    held = engine.acquire(pack_keys(chain), engine.spaces[0])
    engine.looked_up("a", 6, 4, made.now)
    engine.used(held, made.now)
    made.pass_time(0.1)
    tenant = made.tenant("a")
    assert (tenant.requested_blocks, tenant.hit_blocks) == (6, 4)
    assert made.node.pool.totals.bytes_out == 4 * SLOT
    assert [block.hits for block in made.node.pool.table.blocks.values()] == [1] * 4
    assert [prefix.hits for prefix in made.node.hot_prefixes("hits", None, 5, made.now)] == [1]
    assert made.node.stats(made.now).engines[0].ring_invalid == 0


def test_a_full_ring_is_drained_and_nothing_is_dropped() -> None:
    made = bench()
    engine = peer(made)
    chain = make.keys(BLOCKS)
    store(made, engine, chain, "a")
    held = engine.acquire(pack_keys(chain), engine.spaces[0])
    for _ in range(200):
        engine.looked_up("a", BLOCKS, BLOCKS, made.now)
        engine.used(held, made.now)
    made.pass_time(0.1)
    assert made.tenant("a").hit_blocks == 200 * BLOCKS
    assert made.node.pool.totals.bytes_out == 200 * BLOCKS * SLOT
    stats = made.node.stats(made.now).engines[0]
    assert (stats.ring_dropped, stats.ring_invalid) == (0, 0)


def test_a_lost_peer_publishes_nothing_and_its_bytes_wait_for_its_process() -> None:
    made = bench()
    engine = peer(made, pid=7)
    granted = engine.reserve(engine.spaces[0], "", make.packed(make.keys(4)), SLOT, made.now)
    assert granted.outcomes.tolist() == [Outcome.WRITE] * 4
    engine.detach("connection closed", made.now)
    assert not engine.attached
    for ask in (
        lambda: engine.commit(granted.reservation, made.now),
        lambda: engine.abort(granted.reservation, made.now),
        lambda: engine.reserve(engine.spaces[0], "", make.packed(make.keys(4)), SLOT, made.now),
        lambda: engine.acquire(pack_keys(make.keys(4)), engine.spaces[0]),
    ):
        with pytest.raises(ProtocolError) as refused:
            ask()
        assert refused.value.code is Code.NOT_ATTACHED
    assert made.node.pool.quarantined_bytes == 4 * SLOT
    engine.process_gone(made.now)
    assert made.node.pool.used_bytes == 0
    assert made.node.engines == {}
    engine.goodbye(made.now)
    engine.process_gone(made.now)
    assert made.faults() == []


def test_a_commit_of_nothing_publishes_nothing() -> None:
    made = bench()
    engine = peer(made)
    granted = engine.reserve(engine.spaces[0], "", make.packed(make.keys(4)), SLOT, made.now)
    assert engine.commit(granted.reservation, made.now, []) == 0
    assert made.node.pool.used_bytes == 0


@pytest.mark.parametrize("gateway", ["lmcache", "other"])
def test_engines_of_the_socket_cannot_attach_a_space_of_a_gateway(gateway: str) -> None:
    made = bench()
    engine = peer(made, pid=100)
    engine.detach("restart", made.now)
    wanted = Space(model=make.MODEL, world_size=2, gateway=gateway)
    for message in (
        Attach(1, VERSION, "mine", [SpaceRequest(make.space()), SpaceRequest(wanted)]),
        Attach(1, VERSION, "lmcache:0", [SpaceRequest(wanted)], resume=engine.client),
    ):
        with pytest.raises(ProtocolError) as refused:
            made.node.attach(message, 100, made.now)
        assert refused.value.code is Code.BAD_SPACE
        assert refused.value.field == f"spaces[{len(message.spaces) - 1}].space.gateway"


def test_a_gateway_cannot_attach_a_space_of_the_socket() -> None:
    with pytest.raises(ProtocolError) as refused:
        peer(bench(), make.space())
    assert (refused.value.code, refused.value.field) == (Code.BAD_SPACE, "spaces[0].space.gateway")


def test_spaces_with_and_without_a_gateway_never_meet() -> None:
    made = bench(2 * BLOCKS)
    own, engine = made.attach(Space(model=make.MODEL, world_size=2)), peer(made)
    chain = make.keys(3)
    own.store(chain, SLOT)
    assert len(engine.acquire(pack_keys(chain), engine.spaces[0])) == 0
    assert store(made, engine, chain) == 3
    assert made.node.pool.table.memory.find(pack_keys(chain), own.spaces[0])[0].tolist() == [0, 1, 2]

"""Two real data planes that share a real Redis server or an S3 bucket: what one stored, the other finds and loads."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from dataplane.client import Client
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.control.scopes import Invalidate, Scope
from dataplane.protocol.tiers import TierSpec
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, wait_for
from tests.dataplane.tiering.chains import (
    BLOCKS,
    connect,
    copied,
    disk_tier,
    in_service,
    known_tier,
    listed,
    load,
    move,
    push,
    push_out,
    read,
    s3_tier,
    set_credentials,
    store,
    tier,
)
from tests.tiers.redis_server import RedisServer
from tests.tiers.s3_server import S3Server, s3_server

CHAIN = make.keys(BLOCKS, "chain")
POOL_BYTES = "4MiB"
"""Room for 64 blocks: what pushes a chain out goes to the tier too."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["redis", "s3"])
def spec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[TierSpec]:
    """A tier that holds nothing."""
    if request.param == "s3":
        set_credentials(monkeypatch)
        yield s3_tier(request.getfixturevalue("s3"), re.sub(r"\W", "-", request.node.name))
        return
    server = RedisServer()
    try:
        server.start()
        yield TierSpec("fast", "redis", 64 << 20, {"servers": [server.address]})
    finally:
        server.stop()


@pytest.fixture
def planes(spec: TierSpec, make_plane: Callable[..., Plane]) -> tuple[Plane, Plane]:
    """Two nodes with the tier in service."""
    first, second = (make_plane(dataplane__node=name, pool_bytes=POOL_BYTES).start() for name in ("a", "b"))
    for plane in (first, second):
        push(plane, 1, spec)
        in_service(plane)
    return first, second


def unknown(client: Client, chain: list[bytes]) -> int:
    return client.lookup_tiers(chain, counted=False).unknown


def test_a_block_of_one_node_is_found_and_loaded_by_another(planes: tuple[Plane, Plane]) -> None:
    first, second = planes
    with connect(first) as one, connect(second) as two:
        store(one, CHAIN, "acme")
        copied(first, BLOCKS)
        wait_for(lambda: unknown(two, CHAIN) == BLOCKS, "the engine learns that there is a shared tier")
        load(two, CHAIN, BLOCKS)
        assert read(two, CHAIN) == BLOCKS
        known = known_tier(second)
        assert (known.shared, known.blocks, known.stored_bytes) == (True, 0, 0), "it pays for what it wrote"
        assert known.loaded_blocks == BLOCKS
        assert [each.tenant for each in second.describe().tenants if each.blocks] == ["acme"]
        push_out(two, CHAIN)
        wait_for(lambda: two.lookup_tiers(CHAIN, counted=False).coming == BLOCKS, "it is in the directory")


def test_missing_blocks_are_remembered_for_a_while_and_the_start_of_a_chain_is_loaded(
    planes: tuple[Plane, Plane],
) -> None:
    first, second = planes
    part = make.keys(BLOCKS, "part")
    with connect(first) as one, connect(second) as two:
        wait_for(lambda: unknown(two, CHAIN) == BLOCKS, "the engine learns that there is a shared tier")
        assert two.prefetch(CHAIN, wait_s=60.0)
        wait_for(lambda: unknown(two, CHAIN) == 0, "the answer is known")
        store(one, CHAIN)
        store(one, part[:5])
        copied(first, BLOCKS + 5)
        load(two, part, 5)
        wait_for(lambda: two.lookup_tiers(part, counted=False)[:5] == (5, 0, 0.0, 0, 0), "the rest is not there")
        wait_for(lambda: unknown(two, CHAIN) == BLOCKS, "the answer is forgotten")
        load(two, CHAIN, BLOCKS)


@pytest.mark.parametrize("prefix", [0, 4])
def test_blocks_of_others_invalidated_by_this_node_are_not_loaded(planes: tuple[Plane, Plane], prefix: int) -> None:
    first, second = planes
    with connect(first) as one, connect(second) as two:
        store(one, CHAIN, "acme")
        copied(first, BLOCKS)
        wait_for(lambda: unknown(two, CHAIN) == BLOCKS, "the engine learns that there is a shared tier")
        scope = Scope(keys=b"".join(CHAIN[:prefix])) if prefix else Scope(tenant="acme")
        with second.manager() as manager:
            manager.ask(Invalidate("n", scope))
        assert two.prefetch(CHAIN, wait_s=60.0)
        wait_for(lambda: sum(known_tier(second).lost.values()) >= BLOCKS, "the blocks are not published")
        assert two.lookup(CHAIN) == 0
        later = make.keys(BLOCKS, "later")
        store(one, later, "acme")
        copied(first, 2 * BLOCKS)
        load(two, later, BLOCKS)


def test_a_restart_counts_earlier_writes_and_finds_their_blocks(planes: tuple[Plane, Plane], spec: TierSpec) -> None:
    first, second = planes
    theirs = make.keys(BLOCKS, "theirs")
    with connect(first) as one, connect(second) as two:
        store(one, CHAIN, "acme")
        store(two, theirs, "acme")
        copied(first, BLOCKS)
        copied(second, BLOCKS)
    before = known_tier(first)
    first.kill()
    first.start()
    known = listed(first)
    assert (known.blocks, known.stored_bytes) == (BLOCKS, before.stored_bytes)
    assert [(each.tenant, each.blocks) for each in known.tenants] == [("acme", BLOCKS)]
    with connect(first) as one:
        load(one, CHAIN, BLOCKS)
        assert read(one, CHAIN) == BLOCKS
        smaller = msgspec.structs.replace(spec, budget_bytes=before.stored_bytes // BLOCKS * 4)
        push(first, 2, smaller)
        wait_for(lambda: blocks_of(first) == 4, "what is beyond the budget is evicted")
        with first.manager() as manager:
            manager.ask(Invalidate("n", Scope(tenant="acme")))
        wait_for(lambda: blocks_of(first) == 0, "the invalidation reaches what was written before the start")
    second.kill()
    second.start()
    assert listed(second).blocks == BLOCKS, "the first node deleted its own blocks alone"


def test_blocks_move_from_a_disk_to_a_shared_tier_and_back(spec: TierSpec, tmp_path: Path, plane: Plane) -> None:
    def moved(to: str, source: str) -> MoveState:
        return move(plane, Move("n", Scope(tenant="acme"), to, release=True, source=source))

    push(plane, 1, disk_tier(tmp_path / "t", name="nvme"), msgspec.structs.replace(spec, spill="off", order=1))
    in_service(plane, "nvme", "fast")
    listed(plane)
    with connect(plane) as client:
        store(client, CHAIN, "acme")
        copied(plane, BLOCKS, "nvme")
    there = moved("fast", "nvme")
    assert (there.moved_blocks, there.released_blocks, there.refused) == (BLOCKS, BLOCKS, {})
    assert (blocks_of(plane), blocks_of(plane, "nvme")) == (BLOCKS, 0)
    plane.kill()
    plane.start()
    assert listed(plane).blocks == BLOCKS
    in_service(plane, "nvme")
    with connect(plane) as client:
        back = moved("nvme", "fast")
        # Of what the disk freed just before the kill, it may find blocks again, which then need no copy.
        assert (back.released_blocks, back.refused) == (BLOCKS, {})
        assert (blocks_of(plane), blocks_of(plane, "nvme")) == (0, BLOCKS)
        load(client, CHAIN, BLOCKS)
        assert read(client, CHAIN) == BLOCKS
    assert plane.stop() == 0


def blocks_of(plane: Plane, name: str = "fast") -> int:
    return known_tier(plane, name).blocks


def test_blocks_invalidated_before_a_restart_are_deleted_after_it(planes: tuple[Plane, Plane]) -> None:
    first, second = planes
    with connect(first) as one:
        store(one, CHAIN, "acme")
        store(one, make.keys(BLOCKS, "kept"), "other")
        copied(first, 2 * BLOCKS)
    first.kill()
    with second.manager() as manager:
        manager.ask(Invalidate("n", Scope(tenant="acme")))
    shutil.copy(second.folder / "tombstones", first.folder / "tombstones")
    first.start()
    known = listed(first)
    assert [(each.tenant, each.blocks) for each in known.tenants] == [("other", BLOCKS)]


def test_a_server_that_is_not_there_is_shown_and_used_when_it_comes(plane: Plane) -> None:
    server = RedisServer()
    try:
        push(plane, 1, TierSpec("fast", "redis", 64 << 20, {"servers": [server.address], "connect_timeout_s": 0.5}))
        wait_for(lambda: (known := tier(plane)) and known.state == "not opened" and known.reason, "it is not opened")
        with connect(plane) as client:
            assert store(client, CHAIN) == BLOCKS
            assert client.lookup_tiers(make.keys(4, "none"))[:5] == (0, 0, 0.0, 0, 0)
        server.start()
        in_service(plane)
        assert plane.stop() == 0
    finally:
        server.stop()


# ---- moves that are killed


CHAINS = [make.keys(BLOCKS, ("kill", number)) for number in range(8)]
ROUNDS = 2


def restarted(plane: Plane, specs: list[TierSpec]) -> None:
    """Start the data plane with both tiers, and wait until it knows their blocks."""
    plane.start()
    push(plane, 1, *specs)
    in_service(plane, "nvme")
    listed(plane)


def has_released(blocks: int, state: MoveState) -> bool:
    return state.released_blocks >= blocks


@pytest.mark.full
def test_moves_that_are_killed_lose_nothing(tmp_path: Path, socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = random.Random(7)
    set_credentials(monkeypatch)
    with s3_server() as server:
        s3 = s3_tier(server, spill="off", order=1)
        plane = Plane(socket_dir)
        try:
            restarted(plane, [disk_tier(tmp_path / "t", name="nvme"), s3])
            with connect(plane) as client:
                for chain in CHAINS:
                    store(client, chain, "acme")
                copied(plane, BLOCKS * len(CHAINS), "nvme")
            specs = [disk_tier(tmp_path / "t", name="nvme", spill="off"), s3]
            for number in range(ROUNDS):
                plane.kill()
                restarted(plane, specs)
                there = ("fast", "nvme") if number % 2 == 0 else ("nvme", "fast")
                message = Move("n", Scope(tenant="acme"), there[0], release=True, source=there[1])
                move(plane, message, partial(has_released, choice.randrange(BLOCKS * len(CHAINS))))
                plane.kill()
                restarted(plane, specs)
                with connect(plane) as client:
                    for chain in CHAINS:
                        load(client, chain, BLOCKS)
                        assert read(client, chain) == BLOCKS
        finally:
            if plane.alive:
                plane.kill()

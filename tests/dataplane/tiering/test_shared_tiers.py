"""Two real data planes that share a real Redis server or an S3 bucket: what one stored, the other finds and loads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from dataplane.client import Client
from dataplane.protocol.control.moves import Move, MoveState, ReadMove
from dataplane.protocol.control.scopes import Invalidate, Scope
from dataplane.protocol.stats.tiers import TierStats
from dataplane.protocol.tiers import TierSpec
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, wait_for
from tests.dataplane.tiering.chains import (
    BLOCKS,
    connect,
    copied,
    disk_tier,
    in_service,
    load,
    push,
    push_out,
    right,
    s3_tier,
    set_credentials,
    store,
    tier,
)
from tests.tiers.redis_server import RedisServer
from tests.tiers.s3_server import s3_server

CHAIN = make.keys(BLOCKS, "chain")


@contextmanager
def redis_spec() -> Iterator[TierSpec]:
    server = RedisServer()
    try:
        server.start()
        parameters = {"servers": [server.address]}
        yield TierSpec(name="fast", type="redis", budget_bytes=64 << 20, parameters=parameters)
    finally:
        server.stop()


@contextmanager
def s3_spec(monkeypatch: pytest.MonkeyPatch) -> Iterator[TierSpec]:
    set_credentials(monkeypatch)
    with s3_server() as server:
        yield s3_tier(server)


@pytest.fixture(params=["redis", "s3"])
def spec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[TierSpec]:
    with redis_spec() if request.param == "redis" else s3_spec(monkeypatch) as spec:
        yield spec


@pytest.fixture
def planes(spec: TierSpec, tmp_path: Path, socket_dir: Path) -> Iterator[tuple[Plane, Plane]]:
    """Two nodes with the tier in service."""
    both = []
    for name in ("a", "b"):
        folder = socket_dir / name
        folder.mkdir()
        both.append(Plane(folder, {"dataplane__node": name}).start())
    try:
        for plane in both:
            push(plane, 1, spec)
            in_service(plane)
        yield both[0], both[1]
    finally:
        for plane in both:
            if plane.alive:
                plane.kill()


def unknown(client: Client, chain: list[bytes]) -> int:
    return client.lookup_tiers(chain, counted=False).unknown


def test_a_block_of_one_node_is_found_and_loaded_by_another(planes: tuple[Plane, Plane]) -> None:
    first, second = planes
    with connect(first) as one, connect(second) as two:
        store(one, CHAIN, "acme")
        copied(first, BLOCKS)
        wait_for(lambda: unknown(two, CHAIN) == BLOCKS, "the engine learns that there is a shared tier")
        load(two, CHAIN, BLOCKS)
        assert right(two, CHAIN) == BLOCKS
        known = tier(second)
        assert known is not None
        assert (known.shared, known.blocks, known.stored_bytes) == (True, 0, 0), "it pays for what it wrote"
        assert known.loaded_blocks == BLOCKS
        assert [each.tenant for each in second.describe().tenants if each.blocks] == ["acme"]
        push_out(two, CHAIN)
        wait_for(lambda: client_finds(two), "it is in the directory")


def client_finds(client: Client) -> bool:
    return client.lookup_tiers(CHAIN, counted=False).coming == BLOCKS


def test_missing_blocks_are_remembered_for_a_while(planes: tuple[Plane, Plane]) -> None:
    first, second = planes
    with connect(first) as one, connect(second) as two:
        wait_for(lambda: unknown(two, CHAIN) == BLOCKS, "the engine learns that there is a shared tier")
        assert two.prefetch(CHAIN, wait_s=60.0)
        wait_for(lambda: unknown(two, CHAIN) == 0, "the answer is known")
        store(one, CHAIN)
        copied(first, BLOCKS)
        wait_for(lambda: unknown(two, CHAIN) == BLOCKS, "the answer is forgotten")
        load(two, CHAIN, BLOCKS)


def test_the_start_of_a_chain_that_is_there_is_loaded(planes: tuple[Plane, Plane]) -> None:
    first, second = planes
    with connect(first) as one, connect(second) as two:
        store(one, CHAIN[:5])
        copied(first, 5)
        wait_for(lambda: unknown(two, CHAIN) == BLOCKS, "the engine learns that there is a shared tier")
        load(two, CHAIN, 5)
        wait_for(lambda: two.lookup_tiers(CHAIN, counted=False)[:5] == (5, 0, 0.0, 0, 0), "the rest is not there")


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

        def refused() -> bool:
            known = tier(second)
            return known is not None and sum(known.lost.values()) >= BLOCKS

        wait_for(refused, "the blocks are not published")
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
    before = tier(first)
    assert before is not None
    first.kill()
    first.start()
    known = listed(first)
    assert (known.blocks, known.stored_bytes) == (BLOCKS, before.stored_bytes)
    assert [(each.tenant, each.blocks) for each in known.tenants] == [("acme", BLOCKS)]
    with connect(first) as one:
        load(one, CHAIN, BLOCKS)
        assert right(one, CHAIN) == BLOCKS
        smaller = msgspec.structs.replace(spec, budget_bytes=before.stored_bytes // BLOCKS * 4)
        push(first, 2, smaller)
        wait_for(lambda: blocks_of(first) == 4, "what is beyond the budget is evicted")
        with first.manager() as manager:
            manager.ask(Invalidate("n", Scope(tenant="acme")))
        wait_for(lambda: blocks_of(first) == 0, "the invalidation reaches what was written before the start")
    second.kill()
    second.start()
    assert listed(second).blocks == BLOCKS, "the first node deleted its own blocks alone"


def move(plane: Plane, to: str, source: str) -> MoveState:
    """Move all blocks of the tenant from one tier to another and release them; return the result."""
    with plane.manager() as manager:
        state = manager.ask(Move("n", Scope(tenant="acme"), to, release=True, source=source)).state

        def ended() -> MoveState | None:
            progress = manager.ask(ReadMove("n", state.number)).state
            return progress if progress.ended_at is not None else None

        found = wait_for(ended, "the move ends")
    assert isinstance(found, MoveState)
    return found


def test_blocks_move_from_a_disk_to_a_shared_tier_and_back(spec: TierSpec, tmp_path: Path, socket_dir: Path) -> None:
    plane = Plane(socket_dir).start()
    try:
        push(plane, 1, disk_tier(tmp_path / "t", name="nvme"), msgspec.structs.replace(spec, spill="off", order=1))
        in_service(plane, "nvme")
        in_service(plane)
        listed(plane)
        with connect(plane) as client:
            store(client, CHAIN, "acme")
            copied(plane, BLOCKS, "nvme")
        there = move(plane, "fast", "nvme")
        assert (there.moved_blocks, there.released_blocks, there.refused) == (BLOCKS, BLOCKS, {})
        assert (blocks_of(plane), blocks_of(plane, "nvme")) == (BLOCKS, 0)
        plane.kill()
        plane.start()
        assert listed(plane).blocks == BLOCKS
        in_service(plane, "nvme")
        with connect(plane) as client:
            back = move(plane, "nvme", "fast")
            # Of what the disk freed just before the kill, it may find blocks again, which then need no copy.
            assert (back.released_blocks, back.refused) == (BLOCKS, {})
            assert (blocks_of(plane), blocks_of(plane, "nvme")) == (0, BLOCKS)
            load(client, CHAIN, BLOCKS)
            assert right(client, CHAIN) == BLOCKS
        assert plane.stop() == 0
    finally:
        if plane.alive:
            plane.kill()


def blocks_of(plane: Plane, name: str = "fast") -> int:
    known = tier(plane, name)
    return -1 if known is None else known.blocks


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


def listed(plane: Plane) -> TierStats:
    """Wait until the tier has been listed, and return what the node says about it."""

    def complete() -> TierStats | None:
        known = tier(plane)
        return known if known is not None and known.serves and known.listed_blocks is None else None

    known = wait_for(complete, "the tier is listed")
    assert isinstance(known, TierStats)
    return known


def test_a_server_that_is_not_there_is_shown_and_used_when_it_comes(socket_dir: Path) -> None:
    server = RedisServer()
    plane = Plane(socket_dir).start()
    try:
        parameters = {"servers": [server.address], "connect_timeout_s": 0.5}
        push(plane, 1, TierSpec("fast", "redis", 64 << 20, parameters))

        def is_reported() -> bool:
            known = tier(plane)
            return known is not None and known.state == "not opened" and bool(known.reason)

        wait_for(is_reported, "it is not opened")
        with connect(plane) as client:
            assert store(client, CHAIN) == BLOCKS
            assert client.lookup_tiers(make.keys(4, "none"))[:5] == (0, 0, 0.0, 0, 0)
        server.start()
        in_service(plane)
        assert plane.stop() == 0
    finally:
        server.stop()
        if plane.alive:
            plane.kill()

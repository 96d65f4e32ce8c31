"""A real data plane whose tiers are added, changed and removed by records while engines store and load."""

from __future__ import annotations

import threading
from pathlib import Path

from dataplane.protocol.codes import Code
from dataplane.protocol.control.moves import Move
from dataplane.protocol.control.records import encode_tiers
from dataplane.protocol.control.scopes import Invalidate, Scope
from dataplane.protocol.control.snapshots import Nack
from dataplane.protocol.engine import VERSION, Attach, SpaceRequest
from dataplane.protocol.spaces import TIER_MOVER
from dataplane.protocol.tiers import MEMORY
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, RawEngine, wait_for
from tests.dataplane.tiering.chains import (
    BLOCKS,
    connect,
    copied,
    disk_tier,
    in_service,
    known_tier,
    load,
    move,
    push,
    push_out,
    right,
    store,
    tier,
)
from tests.threads import join

CHAIN = make.keys(BLOCKS, "chain")


def test_a_tier_that_is_added_serves_engines_that_attached_before(plane: Plane, tmp_path: Path) -> None:
    with connect(plane) as client:
        store(client, make.keys(4, "before"))
        push(plane, 1, disk_tier(tmp_path / "t"))
        in_service(plane)
        known = known_tier(plane)
        assert (known.state, known.from_settings) == ("in service", False)
        store(client, CHAIN)
        copied(plane, BLOCKS)
        push_out(client, CHAIN)
        with connect(plane) as later:
            assert later.lookup_tiers(CHAIN).coming == BLOCKS, "the first look-up after an attach finds tiers"
        load(client, CHAIN, BLOCKS)
        assert right(client, CHAIN) == BLOCKS
        assert client.lookup_tiers(CHAIN)[:5] == (BLOCKS, 0, 0.0, 0, 0)
    assert plane.stop() == 0


def test_a_removed_tier_is_left_as_it_is_and_serves_when_it_comes_back(plane: Plane, tmp_path: Path) -> None:
    with connect(plane) as client:
        push(plane, 1, disk_tier(tmp_path / "t"))
        in_service(plane)
        store(client, CHAIN)
        copied(plane, BLOCKS)
        push_out(client, CHAIN)
        wait_for(lambda: client.lookup_tiers(CHAIN).coming == BLOCKS, "it is listed")
        push(plane, 2)
        wait_for(lambda: tier(plane) is None, "it is closed")
        assert client.lookup_tiers(CHAIN)[:5] == (0, 0, 0.0, 0, 0)
        push(plane, 3, disk_tier(tmp_path / "t", name="again", order=3))
        in_service(plane, "again")
        wait_for(lambda: client.lookup_tiers(CHAIN).coming == BLOCKS, "it is listed again")
        load(client, CHAIN, BLOCKS)
        assert right(client, CHAIN) == BLOCKS
    assert plane.stop() == 0


def test_blocks_invalidated_during_an_outage_of_a_tier_do_not_come_back(plane: Plane, tmp_path: Path) -> None:
    other = make.keys(4, "other")
    with connect(plane) as client:
        push(plane, 1, disk_tier(tmp_path / "t"))
        in_service(plane)
        store(client, CHAIN, "acme")
        store(client, other)
        copied(plane, BLOCKS + 4)
        push(plane, 2)
        wait_for(lambda: tier(plane) is None, "it is closed")
        with plane.manager() as manager:
            manager.ask(Invalidate("n", Scope(tenant="acme")))
        push_out(client, other)
        plane.kill()
        plane.start()
        wait_for(lambda: client.lookup(CHAIN) == 0, "it is gone from memory")
        push(plane, 3, disk_tier(tmp_path / "t"))
        in_service(plane)
        wait_for(lambda: client.lookup_tiers(other).coming == 4, "the others are listed")
        assert client.lookup_tiers(CHAIN).coming == 0
    assert plane.stop() == 0


def test_a_tier_of_a_record_is_open_again_after_a_kill_and_a_move_loads_blocks_before_an_engine_attaches(
    plane: Plane, tmp_path: Path
) -> None:
    with connect(plane) as client:
        push(plane, 7, disk_tier(tmp_path / "t"))
        in_service(plane)
        store(client, CHAIN, "acme")
        copied(plane, BLOCKS)
        wait_for((plane.folder / "tiers.snapshot").exists, "the snapshot is saved")
    plane.kill()
    plane.start()
    assert plane.describe().observed["tiers"].generation == 7
    in_service(plane)
    state = move(plane, Move("n", Scope(tenant="acme"), MEMORY))
    assert (state.moved_blocks, state.refused) == (BLOCKS, {})
    with connect(plane) as client:
        assert right(client, CHAIN) == BLOCKS
    assert plane.stop() == 0


def test_a_kill_while_tiers_are_applied_leaves_a_state_that_opens(plane: Plane, tmp_path: Path) -> None:
    for generation in range(1, 5):
        folder = tmp_path / str(generation % 2)
        push(plane, generation, disk_tier(folder), disk_tier(tmp_path / f"b{generation % 2}", "second"))
        plane.kill()
        plane.start()
    push(plane, 9, disk_tier(tmp_path / "last"))
    in_service(plane)
    with connect(plane) as client:
        store(client, CHAIN)
        copied(plane, BLOCKS)
    wait_for(lambda: tier(plane, "second") is None, "the other one is closed")
    wrong = disk_tier(tmp_path / "u", "other", parameters={"directories": ["relative"]})
    with plane.manager() as manager:
        answer = manager.push(make.snapshot("tiers", encode_tiers([disk_tier(tmp_path / "last"), wrong]), 10))
        assert isinstance(answer, Nack)
        assert [fault.path for fault in answer.errors] == ["tiers[1].parameters.directories[0]"]
    assert [each.name for each in plane.describe().tiers] == ["fast"], "a refused snapshot changes nothing"
    assert plane.stop() == 0


def test_changes_that_need_no_new_store_apply_at_once(plane: Plane, tmp_path: Path) -> None:
    with connect(plane) as client:
        push(plane, 1, disk_tier(tmp_path / "t", spill="off"))
        in_service(plane)
        opened = wait_for(lambda: plane.log().count("tier.opened"), "the log says that the tier is open")
        store(client, make.keys(4, "off"))
        push(plane, 2, disk_tier(tmp_path / "t", spill="commit", order=5, budget_bytes=128 << 20))
        store(client, CHAIN)
        copied(plane, BLOCKS)
        assert known_tier(plane).budget_bytes == 128 << 20
        assert plane.log().count("tier.opened") == opened
        for number in range(12):
            store(client, make.keys(BLOCKS, ("old", number)))
            copied(plane, (number + 2) * BLOCKS)  # the pool is smaller: what it evicts first is not copied
        push(plane, 3, disk_tier(tmp_path / "t", order=5, budget_bytes=8 << 20))
        wait_for(lambda: (known := known_tier(plane)).serves and known.stored_bytes <= 8 << 20, "the budget holds")
        assert sum(each.stat().st_size for each in (tmp_path / "t").glob("segment-*")) <= 8 << 20
    assert plane.stop() == 0


def test_tiers_come_and_go_under_stores_and_loads(plane: Plane, tmp_path: Path) -> None:
    ends = threading.Event()
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            with connect(plane) as client:
                number = 0
                while not ends.is_set():
                    chain = make.keys(BLOCKS, (name, number % 40))
                    store(client, chain)
                    older = make.keys(BLOCKS, (name, (number + 20) % 40))
                    client.prefetch(older, wait_s=1.0)
                    right(client, chain)
                    right(client, older)
                    number += 1
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    try:
        for generation in range(1, 13):
            specs = [
                disk_tier(tmp_path / f"{name}{generation // 4}", name, order=generation % 3)
                for at, name in enumerate(("a", "b", "c"))
                if generation >> at & 1
            ]
            push(plane, generation, *specs)
            for spec in specs:
                in_service(plane, spec.name)
        push(plane, 99)
        wait_for(lambda: not plane.describe().tiers, "all are closed")
    finally:
        ends.set()
        join(*threads)
    assert failures == []
    plane.describe()  # it audits
    assert plane.stop() == 0


def test_an_engine_cannot_take_the_group_of_the_data_plane(plane: Plane) -> None:
    with RawEngine(plane.socket) as engine:
        message = Attach(1, VERSION, TIER_MOVER, [SpaceRequest(make.space())])
        assert engine.refusal(message) == (Code.BAD_GROUP, "group")

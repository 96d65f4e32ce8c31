"""Real data planes with disks, of records and of the settings: blocks outlive evictions, kills and disks that fail."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dataplane.client import Client, attach
from dataplane.protocol.codes import Code
from dataplane.protocol.control.moves import Move
from dataplane.protocol.control.records import QuotaSpec, TierQuota, encode_tiers
from dataplane.protocol.control.scopes import Invalidate, Scope
from dataplane.protocol.control.snapshots import Ack, Nack
from dataplane.protocol.engine import VERSION, Attach, SpaceRequest
from dataplane.protocol.spaces import TIER_MOVER
from dataplane.protocol.stats.tiers import TierStats
from dataplane.protocol.tiers import MEMORY
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, RawEngine, contents, wait_for
from tests.dataplane.tiering.chains import (
    BLOCKS,
    NBYTES,
    connect,
    copied,
    disk_tier,
    in_service,
    known_tier,
    load,
    move,
    push,
    push_out,
    read,
    store,
    tier,
)
from tests.threads import join

# ---- tiers of records


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
        assert read(client, CHAIN) == BLOCKS
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
        assert read(client, CHAIN) == BLOCKS
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
        assert read(client, CHAIN) == BLOCKS
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
                    read(client, chain)
                    read(client, older)
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


# ---- a disk of the settings


LONGEST_PROBE_S = 60


def settings(folder: Path, **more: str) -> dict[str, str]:
    return {"dataplane__disk_tier_directories": str(folder / "tier"), "dataplane__disk_tier_bytes": "256MiB", **more}


@pytest.fixture
def disk_plane(make_plane: Callable[..., Plane], tmp_path: Path) -> Plane:
    return make_plane(**settings(tmp_path)).start()


def in_tier(client: Client, chain: Sequence[bytes]) -> int:
    found = client.lookup_tiers(chain, counted=False)
    return found.ready + found.coming


def on_disk(plane: Plane, blocks: int) -> None:
    """Wait until so many blocks were copied."""
    wait_for(lambda: plane.describe().tiers[0].blocks >= blocks, "the blocks are on disk")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_disk_keeps_blocks_evicted_from_memory(disk_plane: Plane, end: str) -> None:
    chain, dead = make.keys(BLOCKS, "chain"), make.keys(4, "dead")
    with connect(disk_plane) as client:
        store(client, chain, "acme")
        store(client, dead, "rival")
        on_disk(disk_plane, BLOCKS + 4)
    with disk_plane.manager() as manager:
        manager.ask(Invalidate("n", Scope(tenant="rival")))
    if end == "stop":
        disk_plane.stop()
    else:
        disk_plane.kill()
    disk_plane.start()
    with connect(disk_plane) as client:
        wait_for(lambda: client.lookup_tiers(chain).coming == BLOCKS, "the chain was found on disk")
        assert client.lookup(chain) == 0, "memory began empty"
        load(client, chain, BLOCKS)
        assert read(client, chain) == BLOCKS
        assert in_tier(client, dead) == 0, "what was invalidated does not come back"


def test_flipped_bytes_are_a_miss_and_never_data(disk_plane: Plane, tmp_path: Path) -> None:
    chain = make.keys(BLOCKS, "chain")
    with connect(disk_plane) as client:
        store(client, chain)
        on_disk(disk_plane, BLOCKS)
        push_out(client, chain)
        expected = contents(chain, NBYTES)[5]
        for segment in (tmp_path / "tier").rglob("*"):
            if segment.is_file() and expected in (data := segment.read_bytes()):
                with segment.open("r+b") as file:
                    file.seek(data.index(expected) + 100)
                    file.write(b"wrong")
        load(client, chain, 5)
        wait_for(lambda: in_tier(client, chain) == 5, "the bad block is forgotten")
        assert read(client, chain) == 5


def test_a_prefetch_of_blocks_that_no_tier_holds_does_nothing(disk_plane: Plane) -> None:
    with connect(disk_plane) as client:
        wait_for(lambda: client.prefetch(make.keys(4, "nowhere")), "the directory arrived")
        assert client.lookup_tiers(make.keys(4, "nowhere"))[:5] == (0, 0, 0.0, 0, 0)
        for wait_s in (0.0, -1.0, float("nan"), 301.0):
            with pytest.raises(ValueError, match="wait_s"):
                client.prefetch(make.keys(1), wait_s=wait_s)
        wait_for(lambda: client.cancel_prefetch(make.keys(4, "nowhere")), "no answer is outstanding")
        assert disk_plane.describe().totals.malformed_messages == 0


def test_a_prefetch_goes_on_with_the_first_space_that_is_left(disk_plane: Plane) -> None:
    chain = make.keys(4096, "long")
    spaces = [make.space(rank=rank, world_size=4) for rank in range(4)]
    with attach(disk_plane.socket, spaces, timeout_s=30) as client:
        wait_for(lambda: client.prefetch(make.keys(1)), "the directory arrived")
        with disk_plane.frozen():
            while (first := client.prefetch(chain)) == client.spaces:
                pass  # until the socket has no room
            assert client.prefetch(chain, first_space=first) == first
            assert not client.cancel_prefetch(chain)
        sent = [first]

        def all_requested() -> bool:
            sent.append(client.prefetch(chain, first_space=sent[-1]))
            return sent[-1] == client.spaces

        wait_for(all_requested, "the data plane takes them")
        assert client.prefetch(chain, first_space=client.spaces) == client.spaces


def test_a_directory_of_another_node_is_left_alone_and_memory_is_served(disk_plane: Plane, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    second = Plane(folder, settings(tmp_path)).start()
    try:
        wait_for(lambda: "tier.lost" in second.log(), "the log says so")
        assert "not opened: " in second.log()
        with connect(second) as client:
            assert store(client, make.keys(4, "chain")) == 4
            assert client.lookup_tiers(make.keys(4, "chain"))[:5] == (4, 0, 0.0, 0, 0)
    finally:
        second.kill()


def test_a_disk_that_fails_stops_no_store_and_serves_again_when_it_is_back(disk_plane: Plane, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    with connect(disk_plane) as client:
        store(client, make.keys(4, "before"))
        on_disk(disk_plane, 4)
        tier.rename(tmp_path / "away")
        for number in range(20):
            assert store(client, make.keys(BLOCKS, ("during", number))) == BLOCKS
        (tmp_path / "away").rename(tier)
        wait_for(lambda: disk_plane.describe().tiers[0].serves, "a probe finds it", 2 * LONGEST_PROBE_S)
        wait_for(lambda: in_tier(client, make.keys(4, "before")) == 4, "it serves")
    assert disk_plane.stop() == 0


def test_a_stop_during_copies_and_loads_ends(disk_plane: Plane) -> None:
    with connect(disk_plane) as client:
        for number in range(32):
            store(client, make.keys(BLOCKS, number))
        client.prefetch(make.keys(BLOCKS, 0))
        disk_plane.signal(signal.SIGTERM)
        assert disk_plane.process is not None
        assert disk_plane.process.wait(60) == 0


# ---- quotas and pins


CHARGE = NBYTES + 4096
"""Bytes of a block in a disk tier: its data and a header."""
DISK_BYTES = 16 << 20
CHAIN_BLOCKS = 16


@pytest.fixture
def small_disk_plane(make_plane: Callable[..., Plane], tmp_path: Path) -> Plane:
    folder = {"dataplane__disk_tier_directories": str(tmp_path / "tier")}
    return make_plane(**folder, dataplane__disk_tier_bytes=str(DISK_BYTES)).start()


def disk(plane: Plane) -> TierStats:
    return plane.describe().tiers[0]


def stored_bytes(plane: Plane, tenant: str) -> int:
    return next((each.blocks for each in disk(plane).tenants if each.tenant == tenant), 0)


def all_copied(plane: Plane) -> None:
    """Wait until no block waits to be copied."""
    wait_for(lambda: not (now := disk(plane)).waiting_blocks and not now.spilling_bytes, "all blocks are copied")


def limit(plane: Plane, blocks: int, generation: int) -> None:
    spec = QuotaSpec("acme", tiers={"disk": TierQuota(CHARGE, blocks * CHARGE)})
    with plane.manager() as manager:
        assert isinstance(manager.push(make.shares(spec, generation=generation)), Ack)


def test_a_limit_holds_on_the_disk_and_after_a_kill(small_disk_plane: Plane) -> None:
    limit(small_disk_plane, 8, 1)
    with connect(small_disk_plane) as client:
        for number in range(4):
            store(client, make.keys(CHAIN_BLOCKS, ("acme", number)), "acme")
            store(client, make.keys(CHAIN_BLOCKS, ("rival", number)), "rival")
            all_copied(small_disk_plane)
        assert (stored_bytes(small_disk_plane, "acme"), stored_bytes(small_disk_plane, "rival")) == (
            8,
            4 * CHAIN_BLOCKS,
        )
    snapshot = small_disk_plane.folder / "quotas.snapshot"
    wait_for(snapshot.exists, "the first is saved")
    before = snapshot.read_bytes()
    limit(small_disk_plane, 3, 2)
    wait_for(lambda: snapshot.read_bytes() != before, "the snapshot is saved, in the background")
    wait_for(lambda: stored_bytes(small_disk_plane, "acme") == 3, "the lowered limit has taken effect")
    small_disk_plane.kill()
    small_disk_plane.start()
    wait_for(lambda: stored_bytes(small_disk_plane, "rival") == 4 * CHAIN_BLOCKS, "the disk was read")
    wait_for(
        lambda: stored_bytes(small_disk_plane, "acme") == 3, "the limit holds, also if the kill came before a deletion"
    )
    (acme,) = [each for each in disk(small_disk_plane).tenants if each.tenant == "acme"]
    assert (acme.blocks, acme.floor_bytes, acme.effective_floor_bytes) == (3, CHARGE, CHARGE)
    assert acme.limit_bytes == 3 * CHARGE


def test_a_pin_knows_its_blocks_on_the_disk_after_a_kill_before_an_engine_attaches(small_disk_plane: Plane) -> None:
    chain = make.keys(CHAIN_BLOCKS, "pinned")
    with small_disk_plane.manager() as manager:
        assert isinstance(manager.push(*make.pins([make.pin("p", chain)])), Ack)
    with connect(small_disk_plane) as client:
        store(client, chain, "")
        all_copied(small_disk_plane)
    small_disk_plane.kill()
    small_disk_plane.start()
    wait_for(lambda: small_disk_plane.describe().pins[0].not_loaded == "detached", "the pin knows what the disk holds")
    (pin,) = small_disk_plane.describe().pins
    assert (pin.resident, pin.only_in_tiers, pin.tiers["disk"].blocks) == (0, CHAIN_BLOCKS, CHAIN_BLOCKS)
    with connect(small_disk_plane) as client:
        wait_for(lambda: client.lookup(chain) == CHAIN_BLOCKS, "the pin loads its blocks")

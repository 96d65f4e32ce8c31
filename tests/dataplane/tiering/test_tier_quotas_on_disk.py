"""A real data plane with a disk tier that tenants share: limits and pins hold, also after a kill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dataplane.protocol.control.records import QuotaSpec, TierQuota
from dataplane.protocol.control.snapshots import Ack
from dataplane.protocol.stats.tiers import TierStats
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, wait_for
from tests.dataplane.tiering.chains import NBYTES, connect, store

CHARGE = NBYTES + 4096
"""Bytes of a block in a disk tier: its data and a header."""
DISK_BYTES = 16 << 20
CHAIN = 16


@pytest.fixture
def plane(make_plane: Callable[..., Plane], tmp_path: Path) -> Plane:
    folder = {"dataplane__disk_tier_directories": str(tmp_path / "tier")}
    return make_plane(**folder, dataplane__disk_tier_bytes=str(DISK_BYTES)).start()


def disk(plane: Plane) -> TierStats:
    return plane.describe().tiers[0]


def stored_bytes(plane: Plane, tenant: str) -> int:
    return next((each.blocks for each in disk(plane).tenants if each.tenant == tenant), 0)


def copied(plane: Plane) -> None:
    """Wait until no block waits to be copied."""
    wait_for(lambda: not (now := disk(plane)).waiting_blocks and not now.spilling_bytes, "all blocks are copied")


def limit(plane: Plane, blocks: int, generation: int) -> None:
    spec = QuotaSpec("acme", tiers={"disk": TierQuota(CHARGE, blocks * CHARGE)})
    with plane.manager() as manager:
        assert isinstance(manager.push(make.shares(spec, generation=generation)), Ack)


def test_a_limit_holds_on_the_disk_and_after_a_kill(plane: Plane) -> None:
    limit(plane, 8, 1)
    with connect(plane) as client:
        for number in range(4):
            store(client, make.keys(CHAIN, ("acme", number)), "acme")
            store(client, make.keys(CHAIN, ("rival", number)), "rival")
            copied(plane)
        assert (stored_bytes(plane, "acme"), stored_bytes(plane, "rival")) == (8, 4 * CHAIN)
    snapshot = plane.folder / "quotas.snapshot"
    wait_for(snapshot.exists, "the first is saved")
    before = snapshot.read_bytes()
    limit(plane, 3, 2)
    wait_for(lambda: snapshot.read_bytes() != before, "the snapshot is saved, in the background")
    wait_for(lambda: stored_bytes(plane, "acme") == 3, "the lowered limit has taken effect")
    plane.kill()
    plane.start()
    wait_for(lambda: stored_bytes(plane, "rival") == 4 * CHAIN, "the disk was read")
    wait_for(lambda: stored_bytes(plane, "acme") == 3, "the limit holds, also if the kill came before a deletion")
    (acme,) = [each for each in disk(plane).tenants if each.tenant == "acme"]
    assert (acme.blocks, acme.floor_bytes, acme.effective_floor_bytes) == (3, CHARGE, CHARGE)
    assert acme.limit_bytes == 3 * CHARGE


def test_a_pin_knows_its_blocks_on_the_disk_after_a_kill_before_an_engine_attaches(plane: Plane) -> None:
    chain = make.keys(CHAIN, "pinned")
    with plane.manager() as manager:
        assert isinstance(manager.push(*make.pins([make.pin("p", chain)])), Ack)
    with connect(plane) as client:
        store(client, chain, "")
        copied(plane)
    plane.kill()
    plane.start()
    wait_for(lambda: plane.describe().pins[0].not_loaded == "detached", "the pin knows what the disk holds")
    (pin,) = plane.describe().pins
    assert (pin.resident, pin.only_in_tiers, pin.tiers["disk"].blocks) == (0, CHAIN, CHAIN)
    with connect(plane) as client:
        wait_for(lambda: client.lookup(chain) == CHAIN, "the pin loads its blocks")
